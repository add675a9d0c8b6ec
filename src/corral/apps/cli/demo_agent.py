"""`corral demo agent`: each step as it comes, then what changed, the trace as a tree, and whether all is as it must be."""

from __future__ import annotations

import os
import sys
import tempfile

from corral._lib.terminal import clip, printable, terminal_of, wrap
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.model.errors import CorralError
from corral.model.render_result import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from corral._lib.terminal import Terminal
    from corral.apps.agentdemo.run_agent import Report, Step

INDENT = "    "


class MissingError(CorralError):
    """The extra is not installed."""


def main(options: argparse.Namespace) -> int:
    """Run the demo; 0 only if the tests are green in the end and all is as it must be."""
    terminal = terminal_of(sys.stderr, os.environ)
    with tempfile.TemporaryDirectory(prefix="corral-demo-", dir=process_temp_dir()) as place:
        # mini-swe-agent greets when it is imported, and makes a directory in the user's own config.
        os.environ.update({"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": place})
        try:
            from corral.apps.agentdemo import model, run_agent  # noqa: PLC0415  they need an extra
        except ImportError as error:
            if (error.name or "").startswith("corral"):
                raise
            from corral.integrations.extras import MissingExtraError  # noqa: PLC0415  only a message needs it

            raise MissingError(str(MissingExtraError("corral demo agent", "demo", error))) from None
        name = model.name_for(options.model, os.environ)

        def say(line: str) -> None:
            if not options.json:
                print(line, file=sys.stderr, flush=True)

        intro = (
            f"{run_agent.AGENT} with the model {printable(name)} mends a small repository, behind gates and contained"
        )
        say("\n".join(wrap(intro, terminal.columns, "")) + "\n")
        report = run_agent.run_demo(name, lambda step: say("\n".join(step_text(step, terminal))))
        for line in ending_text(report, terminal):
            say(line)
    if options.json:
        print(json_text(report.to_dict()))
    return 1 if report.problems else 0


def step_text(step: Step, terminal: Terminal) -> Iterator[str]:
    """Yield the lines of one step."""
    cut, width = terminal.sign("cut"), terminal.columns
    first, *more = wrap(printable(step.thought.strip()), width, INDENT)
    yield terminal.paint("head", f"{step.number:2}  {first[len(INDENT) :]}")
    yield from (terminal.paint("head", line) for line in more)
    yield INDENT + terminal.paint("mark", clip(f"$ {printable(step.command)}", width - len(INDENT), cut))
    ruling, result = step.ruling, step.result
    if result.denied:
        axis = f", {min(f.axis for f in ruling.verdict.findings)} axis" if ruling.verdict is not None else ""
        said = f"{terminal.sign('deny')} refused by the {ruling.gate} gate{axis}: {ruling.rule}"
        yield INDENT + terminal.paint("deny", said)
        for label, text in (("why    ", ruling.reason), ("instead", ruling.instead)):
            first, *more = wrap(printable(text), width, INDENT + " " * 11)
            yield f"{INDENT}  {label}  {first[len(INDENT) + 11 :]}"
            yield from more
    else:
        sign, style = ("allow", "allow") if result.ok else ("stop", "ask")
        last = (result.stdout_text + result.stderr_text).strip().rpartition("\n")[2].strip()
        said = clip(printable(f"exit {result.exit_code}" + (f": {last}" if last else "")), width - len(INDENT) - 2, cut)
        yield f"{INDENT}{terminal.paint(style, terminal.sign(sign))} {said}"
    yield ""


def ending_text(report: Report, terminal: Terminal) -> Iterator[str]:
    """Yield what is shown when the agent has ended."""
    from corral.apps.agentdemo.trace import tree_text  # noqa: PLC0415  as above

    yield terminal.paint("head", "what changed")
    for line in report.diff:
        style = {"+": "allow", "-": "deny"}.get(line[:1], "dim")
        yield "  " + terminal.paint(style, clip(printable(line), terminal.columns - 2, terminal.sign("cut")))
    yield ""
    yield terminal.paint("head", "trace")
    for line in tree_text(list(report.spans), terminal.replace(columns=terminal.columns - 2)):
        yield f"  {line}"
    yield ""
    gates = dict.fromkeys(step.ruling.gate for step in report.refused)
    green = "green" if report.tests.ok else "red"
    said = (
        f"tests {green}, enforcement {report.tests.enforcement}; {len(report.refused)} of {len(report.steps)} calls refused"
        + (f", by the gates {', '.join(gates)}" if gates else "")
        + f"; {report.tokens_shown} tokens shown; {report.log.lines} lines in the log"
    )
    yield from wrap(said, terminal.columns, "")
    if report.problems:
        yield terminal.paint("deny", f"not as it must be: {'; '.join(report.problems)}")
    else:
        yield terminal.paint("allow", "every outcome is as expected")

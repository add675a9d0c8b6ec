"""Shows `corral demo agent`: each step of the agent, then the diff, the trace as a tree, and whether all is as expected."""

from __future__ import annotations

import os
import sys
import tempfile

from corral._lib.terminal import Terminal, clip, printable, terminal_of, wrap
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.integrations.extras import MissingExtraError
from corral.model.errors import CorralError
from corral.model.render_result import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.apps.agentdemo.run_agent import Report, Step
    from corral.apps.cli.verb import Options

INDENT = "    "


def main(options: Options) -> int:
    """Run the demo. Returns 0 only if the tests pass in the end and every outcome is as expected."""
    terminal = terminal_of(sys.stderr, os.environ)
    with tempfile.TemporaryDirectory(prefix="corral-demo-", dir=process_temp_dir()) as place:
        # On import, mini-swe-agent prints a greeting and creates a directory in the user's config.
        os.environ.update({"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": place})
        try:
            from corral.apps.agentdemo import model, run_agent  # noqa: PLC0415  they need an extra
        except ImportError as error:
            if (error.name or "").startswith("corral"):
                raise
            raise CorralError(str(MissingExtraError("corral demo agent", "demo", error))) from None
        name = model.name_for(options.model, os.environ)

        def show(lines: list[str]) -> None:
            if not options.json:
                print("\n".join(lines), file=sys.stderr, flush=True)

        intro = f"{run_agent.AGENT} with the model {printable(name)} repairs a small repository, in the sandbox and behind gates"
        show([*wrap(intro, terminal.columns, ""), ""])
        report = run_agent.run_demo(name, lambda step: show([*step_lines(step, terminal)]))
        show([*report_lines(report, terminal)])
    if options.json:
        print(json_text(report.to_dict()))
    return 1 if report.problems else 0


def step_lines(step: Step, terminal: Terminal) -> Iterator[str]:
    """Yield the lines of one step."""
    cut, width = terminal.sign("cut"), terminal.columns
    first, *more = wrap(printable(step.thought.strip()), width, INDENT)
    yield terminal.paint("head", f"{step.number:2}  {first[len(INDENT) :]}")
    yield from (terminal.paint("head", line) for line in more)
    yield INDENT + terminal.paint("mark", clip(f"$ {printable(step.command)}", width - len(INDENT), cut))
    ruling, result = step.ruling, step.result
    if result.denied:
        axis = f", {min(f.axis for f in ruling.verdict.findings)} axis" if ruling.verdict is not None else ""
        text = f"{terminal.sign('deny')} refused by the {ruling.gate} gate{axis}: {ruling.rule}"
        yield INDENT + terminal.paint("deny", text)
        for label, text in (("why    ", ruling.reason), ("instead", ruling.instead)):
            first, *more = wrap(printable(text), width, INDENT + " " * 11)
            yield f"{INDENT}  {label}  {first[len(INDENT) + 11 :]}"
            yield from more
    else:
        sign, style = ("allow", "allow") if result.ok else ("stop", "ask")
        last = (result.stdout_text + result.stderr_text).strip().rpartition("\n")[2].strip()
        text = clip(printable(f"exit {result.exit_code}" + (f": {last}" if last else "")), width - len(INDENT) - 2, cut)
        yield f"{INDENT}{terminal.paint(style, terminal.sign(sign))} {text}"
    yield ""


def report_lines(report: Report, terminal: Terminal) -> Iterator[str]:
    """Yield the diff, the trace and the summary."""
    from corral.apps.agentdemo.trace import tree_text  # noqa: PLC0415  needs an extra

    yield terminal.paint("head", "changes")
    for line in report.diff:
        style = {"+": "allow", "-": "deny"}.get(line[:1], "dim")
        yield "  " + terminal.paint(style, clip(printable(line), terminal.columns - 2, terminal.sign("cut")))
    yield ""
    yield terminal.paint("head", "trace")
    for line in tree_text(list(report.spans), terminal.replace(columns=terminal.columns - 2)):
        yield f"  {line}"
    yield ""
    gates = dict.fromkeys(step.ruling.gate for step in report.refused)
    text = (
        f"tests {'green' if report.tests.ok else 'red'}, enforcement {report.tests.enforcement}; "
        f"{len(report.refused)} of {len(report.steps)} calls refused{', by the gates ' if gates else ''}{', '.join(gates)}; "
        f"{report.tokens_shown} tokens shown; {report.log.lines} lines in the log"
    )
    yield from wrap(text, terminal.columns, "")
    if report.problems:
        yield terminal.paint("deny", f"not as expected: {'; '.join(report.problems)}")
    else:
        yield terminal.paint("allow", "every outcome is as expected")

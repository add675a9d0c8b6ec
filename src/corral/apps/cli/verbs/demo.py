"""`corral demo`: shows the guard and the kernel at work, as text and as JSON. Fails if an outcome is not as expected."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import Terminal, clip, columns, pad, printable, terminal_of, wrap
from corral.apps.cli.next_steps import install_steps, own_command
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.apps.evals.demo import CASES, TIMEOUT_SECONDS, Outcome, Trial, run_demo
from corral.model.call_excerpt import one_line
from corral.model.errors import ContainmentError
from corral.model.render_result import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.model.call import Call

CANNOT_CONTAIN_STATUS = 3
MAX_TEXT_COLUMNS = 100  # longer lines are hard to read
LABEL_COLUMNS = 13
TITLE_COLUMNS = 28
ALONE_COLUMNS = 15
INTRODUCTION = "Real calls, under the profile strict, in a temporary project and home."
GUARD = "The guard judges a call before anything starts"
KERNEL = "The kernel confines scripts while they run"
HEADS = ("a script tries to", "without corral", "contained")
VERB = Verb(
    "machine",
    "Show the guard and the kernel at work in a temporary project.",
    examples="""\
corral demo
corral demo --json | jq -r '.[] | .outcome'
corral demo agent                             let a coding agent repair a small repository
corral demo agent --model deterministic       use no model service, although the environment has a key for one
""",
    notes="""\
The guard refuses calls on each of its axes. The kernel stops scripts that read a key, open a connection, leave a daemon
running and plant a git hook; each script also runs without corral, to prove that it works. The page goes to stderr. The
outcomes go to stdout as JSON with --json, or when stdout is not a terminal.

`corral demo agent` prints JSON only with --json. It needs an extra: run pip install '.[demo]' in a clone of corral.

All files, including the log, are in a temporary directory.
""",
    exit_codes="0 every outcome is as expected, 3 the same but this machine cannot contain commands, 1 otherwise, 125 corral itself failed",
    arguments=(
        argument("what agent", "Show a coding agent at work.", nargs="?", choices=("agent",)),
        argument(
            "--model NAME",
            "Use this model: deterministic, or a name that litellm knows (default: by the API key in the environment).",
            default="",
        ),
    ),
)


def check_arguments(options: Options, _: list[str]) -> None:
    """Refuse a model without an agent."""
    if options.model and not options.what:
        raise UsageError("--model needs `corral demo agent`")


def main(options: Options) -> int:
    """Run the demo. Returns 0 if every outcome is as expected, 3 if so but this machine cannot contain commands, else 1."""
    if options.what == "agent":
        from corral.apps.cli import demo_agent  # noqa: PLC0415  it needs an extra

        return demo_agent.main(options)
    page = Page(terminal_of(sys.stderr, os.environ), is_silent=options.json)
    outcomes: list[Outcome | Trial] = []
    why_not = ""
    try:
        for outcome in run_demo():
            outcomes.append(outcome)
            page.add(outcome)
    except ContainmentError as error:
        if not outcomes:
            raise  # not even the guard's half could run
        why_not = str(error)
    right = sum(outcome.as_expected for outcome in outcomes)
    page.end(right, len(outcomes), why_not)
    if options.json or not sys.stdout.isatty():
        print("[" + ",\n ".join(json_text(outcome.to_dict()) for outcome in outcomes) + "]")
    if right < len(outcomes):
        return 1
    return CANNOT_CONTAIN_STATUS if why_not else 0


class Page:
    """Prints outcomes as they come: the first refusal of an axis with its reason, the others on shared lines."""

    def __init__(self, terminal: Terminal, *, is_silent: bool) -> None:
        self._terminal = terminal
        self._width = min(terminal.columns, MAX_TEXT_COLUMNS)
        self._is_silent = is_silent
        self._group = ""
        self._lines: list[str] = []
        self._short: list[str] = []

    def add(self, outcome: Outcome | Trial) -> None:
        """Show one outcome: at once if it has a line of its own, else at the end of its group."""
        group = "kernel" if isinstance(outcome, Trial) else outcome.case.group
        if group in ("kernel", "limits"):
            if self._group not in ("kernel", "limits"):
                self._end_group()
                self._head_kernel()
            self._say(kernel_line(outcome, self._terminal))
        elif isinstance(outcome, Outcome):
            if not self._group:
                self._say(f"{INTRODUCTION}\n\n{self._terminal.paint('head', GUARD)}")
            if group != self._group:
                self._end_group()
            self._add_guarded(outcome, is_first=group != self._group)
        self._group = group
        if not outcome.as_expected:
            self._end_group()
            self._say(self._terminal.paint("deny", f"    unexpected: this must be {wanted_text(outcome)}"))

    def _add_guarded(self, outcome: Outcome, *, is_first: bool) -> None:
        code = outcome.result.exit_code
        ending = f" (exit code {code})" if outcome.word == "ran" and code else ""
        line = f"{_sign(outcome, self._terminal)} {call_text(outcome.case.call, self._terminal)}{ending}"
        if not (is_first and outcome.word == "denied"):
            self._short.append(line)
            return
        self._lines = [line, *wrap(printable(outcome.result.reason), self._width - LABEL_COLUMNS, "  ")]

    def _head_kernel(self) -> None:
        title, alone, contained = HEADS
        heads = f"    {pad(title, TITLE_COLUMNS)}{pad(alone, ALONE_COLUMNS)}{contained}"
        self._say(f"\n{self._terminal.paint('head', KERNEL)}\n{self._terminal.paint('dim', heads)}")

    def _end_group(self) -> None:
        lines = [*self._lines, *flow_lines(self._short, self._width - LABEL_COLUMNS)]
        label = self._terminal.paint("mark", pad(self._group, LABEL_COLUMNS - 2))
        for number, line in enumerate(lines):
            self._say(f"  {label if number == 0 else ' ' * (LABEL_COLUMNS - 2)}{line}")
        self._lines, self._short = [], []

    def end(self, right: int, tried: int, why_not: str) -> None:
        """Show how many outcomes are as expected, and the next steps."""
        self._end_group()
        terminal = self._terminal
        if why_not:
            self._say(f"\n{terminal.paint('ask', f'{KERNEL}, but not on this machine')}")
            self._say("\n".join(wrap(printable(why_not), self._width, "  ")))
            self._say("  corral doctor shows every layer and how to get a missing one.")
        style = "deny" if right < tried else "ask" if why_not else "allow"
        left_out = f" {len(CASES) - tried} could not be tried." if why_not else ""
        self._say(f"\n{terminal.paint(style, f'{right} of {tried} outcomes are as expected.')}{left_out} Next:")
        for what, commands in next_steps(os.environ):
            self._say("\n".join([f"  {what}", *(f"    {command}" for command in commands)]))

    def _say(self, text: str) -> None:
        if not self._is_silent:
            print(text, file=sys.stderr, flush=True)


def _sign(outcome: Outcome | Trial, terminal: Terminal) -> str:
    name = "deny" if outcome.word in ("denied", "got out") else "allow"
    return terminal.paint(name, terminal.sign(name))


def call_text(call: Call, terminal: Terminal) -> str:
    """Return a call on one line that fits beside its label."""
    room = max(min(terminal.columns, MAX_TEXT_COLUMNS) - LABEL_COLUMNS - 12, 12)
    text = one_line(call, room, terminal.sign("cut")) or "an empty call"
    return f"{text} (in {call.cwd})" if call.cwd else text


def kernel_line(outcome: Outcome | Trial, terminal: Terminal) -> str:
    """Return the line of one script: its attempt, and the outcome without corral and contained."""
    result = outcome.result
    nothing = "–" if terminal.unicode else "-"
    if isinstance(outcome, Trial):
        title, alone = outcome.attempt.title, outcome.attempt.success if outcome.works_alone else "nothing"
        said = result.stderr_text.strip().rpartition("\n")[2] or "ended with its command"
        detail = outcome.attempt.success if outcome.got_out else result.reason or said
    elif outcome.word == "timed out":
        title, alone, detail = "run for a minute", nothing, f"the limit is {TIMEOUT_SECONDS:g} s"
    else:
        title, alone, detail = f"print {result.stdout_bytes:,} bytes", nothing, f"{len(result.stdout):,} bytes are kept"
    ours = f"{outcome.word}: {printable(detail)}"
    room = max(terminal.columns - 4 - TITLE_COLUMNS - ALONE_COLUMNS, 8)
    style = "allow" if outcome.as_expected else "deny"
    ours = terminal.paint(style, clip(ours, room, terminal.sign("cut")))
    return f"  {_sign(outcome, terminal)} {pad(title, TITLE_COLUMNS)}{pad(alone, ALONE_COLUMNS)}{ours}"


def wanted_text(outcome: Outcome | Trial) -> str:
    """Return the expected outcome of a case."""
    if isinstance(outcome, Trial):
        return "stopped by the kernel, and work without it"
    case = outcome.case
    if case.expected == "ran":
        return f"ran, with exit code {case.exit_code}"
    return f"denied by {case.group}" if case.expected == "denied" else case.expected


def flow_lines(parts: list[str], width: int) -> list[str]:
    """Return the parts on lines, as many on each as fit. No part is broken."""
    lines: list[str] = []
    used = 0
    for part in parts:
        size = columns(_plain(part))
        if lines and used + 3 + size <= width:
            lines[-1] += f"   {part}"
            used += 3 + size
        else:
            lines.append(part)
            used = size
    return lines


def _plain(text: str) -> str:
    while "\x1b[" in text:
        head, _, rest = text.partition("\x1b[")
        text = head + rest.partition("m")[2]
    return text


def next_steps(environ: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return the next steps, each with commands that work in the current directory."""
    program = own_command(environ)
    return [
        ("run one command contained", [f"{program} run ls -la"]),
        ("let corral check every command of Claude Code", install_steps("claude", environ)),
        ("attack the sandbox in more ways", [f"{program} selftest"]),
    ]

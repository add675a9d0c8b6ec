"""Renders the outcomes of the attacks as text and as JSON."""

from __future__ import annotations

from corral import __version__
from corral._lib.terminal import Terminal, columns, pad, printable, wrap
from corral.apps.selftest.run_attacks import HELD, NOT_HELD, NOT_SHOWN, NOT_TESTABLE, Outcome, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


SELFTEST_SCHEMA = "corral.selftest/1"
# The sign and colour of each result.
SHOWN = {HELD: ("allow", "allow"), NOT_HELD: ("deny", "deny"), NOT_SHOWN: ("warn", "ask"), NOT_TESTABLE: ("dot", "dim")}
OVERALL = {0: "allow", 1: "deny", 3: "ask"}
WORD_COLUMNS = len(f"? {NOT_TESTABLE}")
NAME_COLUMNS = 38
GROUPS = {
    "files": "Files outside the project",
    "project": "Files of the project that run outside later",
    "processes": "Processes",
    "network": "Network",
    "kernel": "Kernel",
}


def heading(setting: Setting, count: int, terminal: Terminal) -> str:
    """Return the lines that describe the sandbox under attack."""
    missing = f", without {', '.join(setting.missing_layers)}" if setting.missing_layers else ""
    about = f"{count} attempts on a sandbox as `corral run --profile {setting.profile}` starts it: "
    lines = wrap(f"{about}backend {setting.backend}, enforcement {setting.enforcement}{missing}", terminal.columns, "")
    if setting.refusal:
        lines += wrap(f"`corral run` itself refuses to run here: {printable(setting.refusal)}.", terminal.columns, "")
    return "\n".join(lines)


def outcome_text(outcome: Outcome, terminal: Terminal) -> str:
    """Return one outcome on one line, or with its detail below if the terminal is narrow."""
    sign, style = SHOWN[outcome.result]
    mark = terminal.paint(style, pad(f"{terminal.sign(sign)} {outcome.result}", WORD_COLUMNS))
    name = printable(outcome.attempt.name)
    detail = f"{', '.join(outcome.attempt.layers)}: {printable(outcome.said)}"
    used = 2 + WORD_COLUMNS + 2
    if used + NAME_COLUMNS + columns(detail) <= terminal.columns:
        return f"  {mark}  {pad(name, NAME_COLUMNS)}{terminal.paint('dim', detail)}"
    indent = " " * used
    first, *rest = wrap(name, terminal.columns, indent)
    below = [terminal.paint("dim", line) for line in wrap(detail, terminal.columns, f"{indent}  ")]
    return "\n".join([f"  {mark}  {first[used:]}", *rest, *below])


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return how often each result occurred."""
    return {result: sum(outcome.result == result for outcome in outcomes) for result in SHOWN}


def status(outcomes: Sequence[Outcome]) -> int:
    """Return the exit code: 0 all held, 1 an attack got through, 3 an attack proved nothing."""
    found = counts(outcomes)
    return 1 if found[NOT_HELD] else 3 if found[NOT_SHOWN] or not found[HELD] else 0


def summary(outcomes: Sequence[Outcome], terminal: Terminal) -> str:
    """Return the counts in one line."""
    text = ", ".join(f"{number} {result}" for result, number in counts(outcomes).items() if number)
    code = status(outcomes)
    sign = {0: "allow", 1: "deny", 3: "warn"}[code]
    return "\n".join(
        terminal.paint(OVERALL[code], line) for line in wrap(f"{terminal.sign(sign)} {text}", terminal.columns, "")
    )


def to_dict(setting: Setting, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return the sandbox and its outcomes as JSON-ready data."""
    data: dict[str, object] = {name: getattr(setting, name) for name in setting._fields}
    return {
        "schema": SELFTEST_SCHEMA,
        "corral": __version__,
        **data,
        "missing_layers": list(setting.missing_layers),
        "counts": {result.replace(" ", "_"): number for result, number in counts(outcomes).items()},
        "attempts": [outcome.to_dict() for outcome in outcomes],
    }

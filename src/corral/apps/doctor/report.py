"""Renders the report as text: a line for each check, and for a problem its meaning and the commands that fix it."""

from __future__ import annotations

from corral._lib.terminal import Terminal, pad, printable, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.apps.doctor.check import Check
    from corral.apps.doctor.checks import Report

# The sign and colour of each status.
SHOWN = {"ok": ("allow", "allow"), "warn": ("warn", "ask"), "fail": ("deny", "deny")}
OVERALL = {"full": "ok", "partial": "warn", "none": "fail"}
GROUPS = {"layers": "Layers", "bounds": "Limits", "around": "Surroundings", "hooks": "Hooks"}
NAME_COLUMNS = len("privileges  ")
CONTINUED = " \\"
MIN_TEXT_COLUMNS = 40  # with less room beside a name, the text goes below it


def report_text(report: Report, terminal: Terminal) -> str:
    """Return the whole report."""
    facts = report.facts
    user = "root" if facts.uid == 0 else f"user {facts.uid}"
    where = f", in {facts.container}" if facts.container else ""
    about = f"corral {facts.corral}, Linux {facts.kernel} {facts.machine}, Python {facts.python}, {user}{where}"
    lines = wrap(printable(about), terminal.columns, "")
    for group, title in GROUPS.items():
        checks = [check for check in report.checks if check.group == group]
        lines += ["", terminal.paint("head", title)] if checks else []
        for check in checks:
            lines += _check_lines(check, terminal)
    return "\n".join([*lines, "", *_overall(report, terminal)])


def _overall(report: Report, terminal: Terminal) -> Iterator[str]:
    sign, style = SHOWN[OVERALL[report.enforcement]]
    yield f"{terminal.paint(style, f'{terminal.sign(sign)} {report.enforcement}')}"
    yield from wrap(printable(report.means), terminal.columns, "  ")
    if report.missing:
        yield from wrap(f"Missing: {', '.join(report.missing)}.", terminal.columns, "  ")


def _check_lines(check: Check, terminal: Terminal) -> Iterator[str]:
    sign, style = SHOWN[check.status]
    mark = terminal.paint(style, terminal.sign(sign))
    indent = " " * (4 + NAME_COLUMNS)
    if terminal.columns - len(indent) >= MIN_TEXT_COLUMNS:
        first, *rest = wrap(printable(check.found), terminal.columns, indent)
        yield f"  {mark} {terminal.paint('head', pad(check.name, NAME_COLUMNS))}{first[len(indent) :]}"
        yield from rest
    else:
        indent = " " * 4
        yield f"  {mark} {terminal.paint('head', check.name)}"
        yield from wrap(printable(check.found), terminal.columns, indent)
    if check.status == "ok" and not check.means:
        return
    yield from wrap(printable(check.means), terminal.columns, indent)
    for fix in check.fixes:
        if fix.why:
            yield from wrap(printable(fix.why), terminal.columns, indent)
        if fix.command:
            yield from (terminal.paint("mark", line) for line in _command_lines(fix.command, terminal.columns, indent))


def _command_lines(command: str, width: int, indent: str) -> list[str]:
    """Return a command on several lines, joined as a shell accepts. A quoted word is not broken and may run over."""
    line = f"{indent}$"
    lines: list[str] = []
    for word in _words(printable(command)):
        if len(line) + len(word) + len(" " + CONTINUED) > width and line.strip(" $"):
            lines.append(line + CONTINUED)
            line = f"{indent} "
        line += f" {word}"
    return [*lines, line]


def _words(command: str) -> list[str]:
    words, quote = [""], ""
    for char in command:
        if char == " " and not quote:
            words.append("")
            continue
        if char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        words[-1] += char
    return words

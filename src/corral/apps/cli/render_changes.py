"""A transaction's changes as lines for people: the diff in colour, where that is welcome, and nothing in it that drives a terminal."""

from __future__ import annotations

from corral._lib.terminal import printable, wrap
from corral.transactions.changes import summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral._lib.terminal import Terminal
    from corral.transactions.apply import Applied
    from corral.transactions.changes import Change

MAX_LINES = 200  # of a diff that nobody asked to see whole
TAB = " " * 4
_HEADS = (("diff ", "head"), ("@@", "mark"), ("+++", "head"), ("---", "head"), ("#", "ask"))
_LINES = (("@@", "mark"), ("+", "allow"), ("-", "deny"))
_SIGNS = {"added": ("+", "allow"), "deleted": ("-", "deny")}


def diff_lines(diff: str, terminal: Terminal) -> list[str]:
    """Return a diff's lines, painted, with room between files. A tab is spaces: as an escape nobody could read code by it."""
    lines: list[str] = []
    styles: tuple[tuple[str, str], ...] = _HEADS
    for line in diff.split("\n")[:-1]:
        if line.startswith("diff ") and lines:
            lines.append("")
        # A line that was deleted may begin with two dashes of its own: only before the first hunk is that a head.
        styles = _HEADS if line.startswith("diff ") else _LINES if line.startswith("@@") else styles
        style = next((style for start, style in styles if line.startswith(start)), "")
        shown = printable(line.replace("\t", TAB))
        lines.append(terminal.paint(style, shown) if style else shown)
    return lines


def bounded(lines: list[str], most: int, terminal: Terminal) -> tuple[list[str], bool]:
    """Return lines, without the middle where they are too many, and whether these are all."""
    if len(lines) <= most:
        return lines, True
    omitted = f"{terminal.sign('cut')} {len(lines) - most} lines are not shown here"
    return [*lines[: most // 2], terminal.paint("ask", omitted), *lines[-(most // 2) :]], False


def change_line(change: Change, terminal: Terminal) -> str:
    """Return one change as a line."""
    sign, style = _SIGNS.get(change.kind, ("~", "ask"))
    folder = "/" if change.what == "directory" else ""
    path = printable(change.path or ".") + folder
    told = f"{printable(change.old_path)} {'→' if terminal.unicode else '->'} {path}" if change.old_path else path
    more = " (protected: never applied)" if change.protected else ""
    return f"  {terminal.paint(style, sign)} {told}{more}"


def applied_lines(applied: Applied, terminal: Terminal, done: str, then: str) -> list[str]:
    """Return what became of an application: what was `done`, or what stood in the way, and what was left out."""
    lines: list[str] = []
    for style, sign, head, found in (
        ("deny", "deny", "", applied.conflicts),
        ("ask", "warn", "left out: ", applied.refused),
    ):
        for each in found:
            text = f"{terminal.sign(sign)} {head}{printable(each.path)}: {printable(each.why)}"
            lines += [terminal.paint(style, line) for line in wrap(text, terminal.columns, "")]
    if not applied.ok or not applied.changes:
        return [*lines, f"corral: nothing was {done.partition(' ')[0]}"]
    return [*lines, terminal.paint("allow", f"{terminal.sign('allow')} {done}, {summary(applied.changes)}; {then}")]

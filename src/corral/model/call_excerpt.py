"""Renders a call as printable text, with a line of carets under a span of it. Pure.

The cost depends on the length of the excerpt, not of the call: a long call is first cut around the span.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral._lib.terminal import clip, columns, glyph

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Call

    # The shown text, and the argument and character that it stands for; (None, -1) for added quotes.
    Cell = tuple[str, int | None, int]

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-")
TAB = "    "
MAX_LINES = 6  # of one span; the rest is counted


@frozen
class Span(Record):
    """A span of a call: `length` characters from `start`, in the shell string or in argument number `argument`."""

    start: int = 0
    length: int = 0
    argument: int | None = None

    def contains(self, argument: int | None, at: int) -> bool:
        """Return whether a character of the call is in the span."""
        return argument == self.argument and self.start <= at < self.start + self.length


def _argument(text: str, number: int, first: int, last: int, cut: str) -> list[Cell]:
    """Quote one argument for bash, and return only its characters first..last."""
    first, shown = max(first, 0), text[max(first, 0) : last]
    before: list[Cell] = [(cut, None, -1)] if first else []
    after: list[Cell] = [(cut, None, -1)] if last < len(text) else []
    if shown and all(c in PLAIN for c in shown):
        return [*before, *((c, number, i) for i, c in enumerate(shown, first)), *after]
    opening = "'" if all(glyph(c) == c for c in shown) else "$'"
    cells: list[Cell] = [(opening, None, -1), *before]
    for i, c in enumerate(shown, first):
        quoted = ("'\\''" if c == "'" else c) if opening == "'" else "\\" + c if c in "'\\" else glyph(c)
        cells.append((quoted, number, i))
    return [*cells, *after, ("'", None, -1)]


def _lines(call: Call, span: Span, reach: int, cut: str) -> list[list[Cell]]:
    """Return the call's lines as cells, at most `reach` characters from the start of the span."""
    first, last = span.start - reach, span.start + reach
    if call.shell or isinstance(call.argv, str):
        text = call.argv if isinstance(call.argv, str) else " ".join(str(a) for a in call.argv)
        lines: list[list[Cell]] = [[(cut, None, -1)] if first > 0 else []]
        for i, c in enumerate(text[max(first, 0) : last], max(first, 0)):
            if c == "\n":
                lines.append([])
            else:
                lines[-1].append((TAB if c == "\t" else glyph(c), None, i))
        if last < len(text):
            lines[-1].append((cut, None, -1))
        return lines
    middle = span.argument or 0
    cells: list[Cell] = [(f"{cut} ", None, -1)] if middle > reach else []
    for number, argument in enumerate(call.argv[max(middle - reach, 0) : middle + reach], max(middle - reach, 0)):
        if number:
            cells.append((" ", None, -1))
        if not isinstance(argument, str):
            cells += [(glyph(c), number, 0) for c in repr(argument)[:reach]]
        elif number == span.argument:
            cells += _argument(argument, number, first, last, cut)
        else:
            cells += _argument(argument, number, 0, reach, cut)
    return [cells]


def one_line(call: Call, width: int, cut: str) -> str:
    """Return the call on one line of at most `width` columns."""
    lines = _lines(call, Span(), width, cut)
    return clip("\\n".join("".join(shown for shown, _, _ in line) for line in lines), width, cut)


def quoted_lines(call: Call, width: int) -> list[str]:
    """Return a whole call in lines of at most `width` columns; longer lines are wrapped."""
    reach = 1 << 62
    found: list[str] = []
    for line in _lines(call, Span(), reach, ""):
        row, used = "", 0
        for shown, _, _ in line:
            wide = columns(shown)
            if used + wide > width and row:
                found.append(row)
                row, used = "", 0
            row += shown
            used += wide
        found.append(row)
    return found


def _window(line: list[Cell], first: int, width: int, cut: str) -> list[Cell]:
    """Return the cells around number `first` that fit in `width`, a third of them before it."""
    if sum(columns(shown) for shown, _, _ in line) <= width:
        return line
    room = width - 2 * columns(cut)
    left = right = first
    used = columns(line[first][0])
    while left > 0 and used + columns(line[left - 1][0]) <= room // 3:
        left -= 1
        used += columns(line[left][0])
    while right + 1 < len(line) and used + columns(line[right + 1][0]) <= room:
        right += 1
        used += columns(line[right][0])
    while left > 0 and used + columns(line[left - 1][0]) <= room:
        left -= 1
        used += columns(line[left][0])
    mark: Cell = (cut, None, -1)
    return [*([mark] if left else []), *line[left : right + 1], *([mark] if right + 1 < len(line) else [])]


def underlined(call: Call, span: Span, width: int, cut: str) -> list[tuple[str, str]]:
    """Return the lines of a call that contain a span, each with its carets; nothing where the span is not in the call."""
    rows: list[tuple[str, str]] = []
    for line in _lines(call, span, max(width, 1), cut):
        marked = next((i for i, (_, argument, at) in enumerate(line) if span.contains(argument, at)), None)
        if marked is None:
            continue
        cells = _window(line, marked, width, cut)
        text = "".join(shown for shown, _, _ in cells)
        carets = "".join(("^" if span.contains(of, at) else " ") * columns(shown) for shown, of, at in cells)
        rows.append((text, carets.rstrip()))
    if len(rows) > MAX_LINES:
        return [*rows[:MAX_LINES], (f"{cut} and {len(rows) - MAX_LINES} more lines", "")]
    return rows

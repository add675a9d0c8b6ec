"""Formats text for a terminal: colours and signs that it supports, and untrusted text that cannot control it."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Stream(Protocol):
        """The parts of a text stream that `terminal_of` uses."""

        @property
        def encoding(self) -> str: ...
        def isatty(self) -> bool: ...
        def fileno(self) -> int: ...


PIPE_COLUMNS = 100  # for output that goes to no terminal
MIN_COLUMNS = 24  # narrower terminals get lines that are too long
CODES = {"deny": "1;31", "ask": "1;33", "allow": "1;32", "head": "1", "mark": "1;36", "dim": "2"}
SIGNS = {
    "deny": ("✗", "x"),
    "ask": ("?", "?"),
    "allow": ("✓", "+"),
    "warn": ("⚠", "!"),
    "stop": ("!", "!"),
    "cut": ("…", "..."),
    "dot": ("·", "-"),
}
BRANCHES = {"tee": ("├─ ", "|- "), "end": ("└─ ", "`- "), "bar": ("│  ", "|  ")}
# Not control characters, but they reorder or hide other text on the line, or cannot be seen. U+FE0F follows many emoji, and is not one of them.
DECEIVING = frozenset(
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2028\u2029\u2800\u3164\ufeff\uffa0"
    "\ufe00\ufe01\ufe02\ufe03\ufe04\ufe05\ufe06\ufe07\ufe08\ufe09\ufe0a\ufe0b\ufe0c\ufe0d\ufe0e"
)
_LATE_SELECTORS = range(0xE0100, 0xE01F0)  # invisible, and can carry any data

# Cancels an unfinished sequence, then restores the main screen, its scroll region, the character set, the cursor and the colours.
_RESET = (
    *("\x18", "\x1b\\", "\x1b[?2026l", "\x1b[?1047l", "\x1b7\x1b[r\x1b8", "\x1b[!p"),
    *("\x1b[0m", "\x1b(B\x0f", "\x1b[4l", "\x1b[?7h", "\x1b[?25h"),
)
_RESET_COLORS = "\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\"
_RESET_CONSOLE_COLORS = "\x1b]R"  # the Linux console shows the other sequences as text


@frozen
class Terminal(Record):
    """The width of a terminal, and whether it shows colours and more than ASCII."""

    columns: int = PIPE_COLUMNS
    color: bool = False
    unicode: bool = True

    def paint(self, style: str, text: str) -> str:
        """Return text in a style, if the terminal shows colours."""
        return f"\x1b[{CODES[style]}m{text}\x1b[0m" if self.color and text else text

    def sign(self, name: str) -> str:
        """Return a sign, in Unicode or ASCII."""
        return (SIGNS.get(name) or BRANCHES[name])[0 if self.unicode else 1]


def terminal_of(stream: Stream, environ: Mapping[str, str]) -> Terminal:
    """Return the terminal of a stream. NO_COLOR, TERM=dumb and pipes mean no colour; COLUMNS overrides the width."""
    tty = stream.isatty()
    columns = int(environ["COLUMNS"]) if environ.get("COLUMNS", "").isdecimal() else 0
    if not columns and tty:
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except OSError:
            columns = 80
    color = tty and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
    try:
        "✗⚠…└".encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        unicode = False
    else:
        unicode = True
    return Terminal(max(columns or PIPE_COLUMNS, MIN_COLUMNS), color, unicode)


def terminal_reset(environ: Mapping[str, str]) -> str:
    """Return the sequences that reset a terminal after a command's output, so that later text is visible."""
    kind = environ.get("TERM", "dumb")
    if kind == "dumb":
        return ""
    return "".join((*_RESET, _RESET_CONSOLE_COLORS if kind.startswith("linux") else _RESET_COLORS))


def glyph(char: str) -> str:
    """Return a printable form of one character: itself, or an escape if it would move, hide or reorder text."""
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    if char == "\n":
        return "\\n"
    if char == "\t":
        return "\\t"
    if char == "\r":
        return "\\r"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, decoded with surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable() and char not in DECEIVING and code not in _LATE_SELECTORS:
        return char
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text: str) -> str:
    """Return untrusted text as one line that cannot control a terminal."""
    return text if text.isascii() and text.isprintable() else "".join(glyph(c) for c in text)


def columns(text: str) -> int:
    """Return the number of columns that a printable text takes."""
    if text.isascii():
        return len(text)
    import unicodedata  # noqa: PLC0415  ASCII does not need its megabyte of tables

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def clip(text: str, width: int, cut: str) -> str:
    """Return a printable text, cut at the end if it is wider than `width`."""
    if columns(text) <= width:
        return text
    kept = text[: max(width - len(cut), 0)]
    while kept and columns(kept) > width - len(cut):
        kept = kept[:-1]
    return kept + cut


def pad(text: str, width: int) -> str:
    """Return a printable text filled with spaces to `width` columns."""
    return text + " " * (width - columns(text))


def _pieces(word: str, width: int) -> list[str]:
    pieces = [word]
    while columns(pieces[-1]) > width:
        last = pieces.pop()
        first = clip(last, width, "") or last[0]
        pieces += [first, last[len(first) :]]
    return pieces


def message(text: str, stream: Stream, environ: Mapping[str, str]) -> str:
    """Return untrusted text for a stream: wrapped lines for a terminal, one line for a file."""
    shown = printable(text)
    return "\n".join(wrap(shown, terminal_of(stream, environ).columns, "")) if stream.isatty() else shown


def wrap(text: str, width: int, indent: str) -> list[str]:
    """Return indented lines of at most `width` columns, broken between words; longer words are split."""
    line = indent
    lines, empty = [], True
    for word in (piece for whole in text.split(" ") for piece in _pieces(whole, max(width - len(indent), 1))):
        if not empty and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line, empty = indent, True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line]

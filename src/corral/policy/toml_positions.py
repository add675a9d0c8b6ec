"""Finds line and column of every key of a TOML text. tomllib must have accepted the text: nothing is checked here."""

from __future__ import annotations

import re
from bisect import bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = tuple[str | int, ...]

_STRING = r'"""(?s:\\.|(?!""").)*""""{0,2}' + r"|'''(?s:(?!''').)*''''{0,2}" + r'|"(?:\\.|[^"\\\n])*"' + r"|'[^'\n]*'"
_SKIPPED = re.compile(r"(?:[ \t\r\n,]|#[^\n]*)*")
_KEY_PART = re.compile(rf"[ \t]*({_STRING}|[A-Za-z0-9_-]+)[ \t]*")
_SCALAR = re.compile(rf"{_STRING}|[^,\]}}#\r\n]*")


def key_positions(text: str) -> dict[Path, tuple[int, int]]:
    """Return line and column of every table, key and list element, by its path from the top."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Path, tuple[int, int]] = {}
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.last_index: dict[Path, int] = {}  # of each array of tables

    def note(self, path: Path, at: int) -> None:
        line = bisect_right(self.line_starts, at)
        self.found.setdefault(path, (line, at - self.line_starts[line - 1] + 1))

    def skip(self) -> str:
        """Go past blanks, commas and comments, and return the next character; empty at the end."""
        self.at = _SKIPPED.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches everywhere
        return self.text[self.at : self.at + 1]

    def document(self) -> None:
        table: Path = ()
        while char := self.skip():
            if char == "[":
                table = self.header()
            else:
                self.pair(table)

    def header(self) -> Path:
        start = self.at
        brackets = 2 if self.text.startswith("[[", start) else 1
        self.at += brackets
        path: Path = ()
        for part in self.key():
            # A path through an array of tables means the last of them.
            path = (*path, self.last_index[path], part) if path in self.last_index else (*path, part)
        self.at += brackets
        if brackets == 2:
            self.last_index[path] = self.last_index.get(path, -1) + 1
            self.note(path, start)
            path = (*path, self.last_index[path])
        self.note(path, start)
        return path

    def key(self) -> list[str]:
        parts = []
        while True:
            match = _KEY_PART.match(self.text, self.at)
            parts.append(_unquoted(match.group(1)))  # type: ignore[union-attr]  # tomllib has accepted the text
            self.at = match.end()  # type: ignore[union-attr]
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def pair(self, table: Path) -> None:
        start = self.at
        path = (*table, *self.key())
        for size in range(len(table) + 1, len(path) + 1):
            self.note(path[:size], start)
        self.at += 1  # the equals sign
        self.value(path)

    def value(self, path: Path) -> None:
        char = self.skip()
        if char not in ("[", "{"):
            self.at = _SCALAR.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches everywhere
            return
        self.at += 1
        number = 0
        while self.skip() not in ("]", "}"):
            if char == "{":
                self.pair(path)
            else:
                self.note((*path, number), self.at)
                self.value((*path, number))
                number += 1
        self.at += 1


def _unquoted(key: str) -> str:
    if key[0] not in "'\"":
        return key
    if key[0] == "'" or "\\" not in key:
        return key[1:-1]
    import tomllib  # noqa: PLC0415  for escapes, which few keys have

    return str(next(iter(tomllib.loads(f"{key} = 0"))))

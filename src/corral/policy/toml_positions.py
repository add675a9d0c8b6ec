"""Where the keys of a TOML text stand, by line and column. The text is one that tomllib has accepted; nothing is checked here."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = tuple[str | int, ...]

_BLANK = " \t"
_QUOTES = ("'", '"')
_KEY_END = " \t.=]"


def key_positions(text: str) -> dict[Path, tuple[int, int]]:
    """Return line and column of every table, key, and element of a list, by its path from the top."""
    reader = _Reader(text)
    reader.document()
    return reader.found


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Path, tuple[int, int]] = {}
        self.lines = [0]
        self.counts: dict[Path, int] = {}
        end = text.find("\n")
        while end >= 0:
            self.lines.append(end + 1)
            end = text.find("\n", end + 1)

    def note(self, path: Path, at: int) -> None:
        from bisect import bisect_right  # noqa: PLC0415  only what is wrong or new is read here

        line = bisect_right(self.lines, at)
        self.found.setdefault(path, (line, at - self.lines[line - 1] + 1))

    def document(self) -> None:
        table: Path = ()
        while True:
            self.skip(" \t\r\n")
            if self.at >= len(self.text):
                return
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)

    def header(self) -> Path:
        start = self.at
        is_list = self.text.startswith("[[", start)
        self.at += 2 if is_list else 1
        path = self.current(self.key())
        self.at += 2 if is_list else 1
        if is_list:
            self.counts[path] = self.counts.get(path, -1) + 1
            self.note(path, start)
            path = (*path, self.counts[path])
        self.note(path, start)
        return path

    def current(self, key: list[str]) -> Path:
        """Return the path of a header, in which a list of tables means its last one."""
        path: Path = ()
        for index, part in enumerate(key):
            path = (*path, part)
            if index < len(key) - 1 and path in self.counts:
                path = (*path, self.counts[path])
        return path

    def pair(self, table: Path) -> None:
        start = self.at
        path = (*table, *self.key())
        for size in range(len(table) + 1, len(path) + 1):
            self.note(path[:size], start)
        self.at = self.text.index("=", self.at) + 1
        self.value(path)

    def key(self) -> list[str]:
        parts = []
        while True:
            self.skip(_BLANK)
            if self.text[self.at] in _QUOTES:
                start = self.at
                self.string()
                parts.append(_unquoted(self.text[start : self.at]))
            else:
                start = self.at
                while self.text[self.at] not in _KEY_END:
                    self.at += 1
                parts.append(self.text[start : self.at])
            self.skip(_BLANK)
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def value(self, path: Path) -> None:
        self.skip(_BLANK)
        char = self.text[self.at]
        if char in _QUOTES:
            self.string()
        elif char == "[":
            self.elements(path)
        elif char == "{":
            self.inline(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\r\n":
                self.at += 1

    def elements(self, path: Path) -> None:
        self.at += 1
        number = 0
        while True:
            self.skip(" \t\r\n,")
            if self.text[self.at] == "]":
                break
            self.note((*path, number), self.at)
            self.value((*path, number))
            number += 1
        self.at += 1

    def inline(self, path: Path) -> None:
        self.at += 1
        while True:
            self.skip(" \t\r\n,")
            if self.text[self.at] == "}":
                break
            self.pair(path)
        self.at += 1

    def string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            mark = quote * 3
            self.at += 3
        else:
            mark = quote
            self.at += 1
        while not self.text.startswith(mark, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(mark)
        if len(mark) == 3:
            # Up to two quotes may stand before the three that close it.
            while self.text.startswith(quote, self.at):
                self.at += 1

    def skip(self, blanks: str) -> None:
        """Go past blanks, and comments where lines may end."""
        while self.at < len(self.text):
            if self.text[self.at] in blanks:
                self.at += 1
            elif self.text[self.at] == "#" and "\n" in blanks:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return


def _unquoted(key: str) -> str:
    if key[0] == "'" or "\\" not in key:
        return key[1:-1]
    import tomllib  # noqa: PLC0415  for escapes, which a key hardly ever has

    return str(next(iter(tomllib.loads(f"{key} = 0"))))

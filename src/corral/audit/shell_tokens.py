"""Splits shell text roughly into words and quoted parts, to remove secrets. Never used to judge a call."""

from __future__ import annotations

_BREAKS = frozenset(" \t\r\n;|&<>()`")
_QUOTES = frozenset("'\"")


class Words:
    """Words of a text. With `is_word` the text is one word of a call, and quotes are ordinary characters."""

    __slots__ = ("_quoted", "_spans", "is_word", "text")

    def __init__(self, text: str, *, is_word: bool = False) -> None:
        self.text = text
        self.is_word = is_word
        self._quoted: list[tuple[int, int]] = []
        self._spans: list[tuple[int, int]] | None = None

    def spans(self) -> list[tuple[int, int]]:
        """Return start and end of each word, including its quotes."""
        if self._spans is None:
            self._spans = [(0, len(self.text))] if self.is_word else self._scan()
        return self._spans

    def quoted(self) -> list[tuple[int, int]]:
        """Return start and end of each quoted part, without its quotes."""
        self.spans()
        return self._quoted

    def _scan(self) -> list[tuple[int, int]]:
        text, spans, start, at = self.text, [], -1, 0
        while at < len(text):
            char = text[at]
            if char in _BREAKS:
                if start >= 0:
                    spans.append((start, at))
                    start = -1
            elif start < 0 and text.startswith("\\\n", at):
                at += 1  # between words a line continuation is a blank
            else:
                start = at if start < 0 else start
                if char == "\\":
                    at += 1
                elif char in _QUOTES:
                    close = _closing(text, at)
                    if close >= 0:
                        self._quoted.append((at + 1, close))
                        at = close
            at += 1
        return [*spans, (start, len(text))] if start >= 0 else spans

    def unquoted(self) -> list[tuple[str, list[int]]]:
        """Return each word with quoted parts as the shell passes it on, and the place of each of its characters in the text."""
        quotes = {at for start, close in self.quoted() for at in (start - 1, close)}
        found = []
        part = iter(self._quoted)
        start, _ = next(part, (len(self.text), 0))
        for first, last in self.spans():
            if start > last:
                continue
            places = [at for at in range(first, last) if at not in quotes]
            found.append(("".join(self.text[at] for at in places), places))
            while start <= last:
                start, _ = next(part, (len(self.text) + 1, 0))
        return found

    def run_end(self, at: int, stops: str = "") -> int:
        """Return the end of the run of plain characters from `at`."""
        text = self.text
        while at < len(text) and text[at] not in _BREAKS and text[at] not in _QUOTES and text[at] not in stops:
            at += 1
        return at

    def line_end(self, at: int) -> int:
        """Return the end of the line or quoted part around `at`."""
        text = self.text
        while at < len(text) and text[at] not in "\r\n'\"":
            at += 1
        return at - 1 if at < len(text) and text[at - 1] == "\\" else at

    def value_end(self, at: int) -> int:
        """Return the end of the value that begins at `at`: a shell word, or quoted text."""
        text = self.text
        if not self.is_word and not _holding(self.quoted(), at):
            word = _holding(self.spans(), at)
            return word[1] if word else at
        for quote in ('\\"', "'", '"'):
            if text.startswith(quote, at):
                close = text.find(quote, at + len(quote))
                return len(text) if close < 0 else close + len(quote)
        return self.run_end(at, "\\")


def _closing(text: str, at: int) -> int:
    quote = text[at]
    close = text.find(quote, at + 1)
    if quote == "'" and text[at - 1 : at] != "$":
        return close
    while close >= 0 and _is_escaped(text, close, at):
        close = text.find(quote, close + 1)
    return close


def _is_escaped(text: str, at: int, first: int) -> bool:
    strokes = 0
    while at - 1 - strokes > first and text[at - 1 - strokes] == "\\":
        strokes += 1
    return strokes % 2 == 1


def _holding(spans: list[tuple[int, int]], at: int) -> tuple[int, int] | None:
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        start, end = spans[middle]
        if at < start:
            high = middle
        elif at >= end:
            low = middle + 1
        else:
            return start, end
    return None

"""Regular expressions that are compiled on first use: importing `re` takes longer than the hook may take in total.

Write flags into the pattern, as `(?s)`. Where a plain string test can rule out a match, use that first.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Pattern
    from typing import Any, AnyStr

_METHODS = ("finditer", "fullmatch", "match", "search", "split", "sub")


class _Pattern:
    __slots__ = ("_text", *_METHODS)

    def __init__(self, text: Any) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        # Python calls this only while the slots are empty.
        if name not in _METHODS:
            raise AttributeError(name)
        import re  # noqa: PLC0415  on first use

        compiled = re.compile(self._text)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(self, name)


def pattern(text: AnyStr) -> Pattern[AnyStr]:
    """Return a regular expression."""
    made: Any = _Pattern(text)
    return made  # type: ignore[no-any-return]  # it has the methods of a pattern that corral uses


class Following:
    """Finds a pattern with another one behind it in the same part of a text, in time that grows with the text only.

    One regular expression for both would search the rest of the part behind every match of the first: for seconds in `a[a[a[…`.
    """

    __slots__ = ("_boundary", "_first", "_second")

    def __init__(self, first: str, second: str, boundary: str) -> None:
        self._first = pattern(first)
        self._second = pattern(second)
        self._boundary = boundary  # the text between two parts

    def search(self, text: str) -> bool:
        """Say whether a part of the text contains both."""
        if self._second.search(text) is None:
            return False
        for part in text.split(self._boundary):
            found = self._first.search(part)
            if found is not None and self._second.search(part, found.end()) is not None:
                return True
        return False

"""Regular expressions that are compiled when a text first needs them: importing `re` costs more than a plain hook call may.

Flags stand in the pattern itself, as `(?s)`. Who can say by a plain look that nothing matches should, and never ask.
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
        # Only what is not there yet comes here: from now on the methods are those of the compiled one.
        if name not in _METHODS:
            raise AttributeError(name)
        import re  # noqa: PLC0415  this is what the module is for

        compiled = re.compile(self._text)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(self, name)


def pattern(text: AnyStr) -> Pattern[AnyStr]:
    """Return a regular expression."""
    made: Any = _Pattern(text)
    return made  # type: ignore[no-any-return]  # it has the methods that are used

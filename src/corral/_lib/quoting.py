"""Words as shell text that bash, zsh and sh read back as exactly these words."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%")


def shell_quote(word: str) -> str:
    """Return one word, in quotes where it needs any."""
    if word and _BARE.issuperset(word):
        return word
    # Not for every word: one that begins with a name would be an assignment, one that begins with the sign a path to zsh.
    if word.startswith("-") and _BARE.issuperset(word.replace("=", "")):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def shell_join(words: Iterable[str]) -> str:
    """Return a command of these words."""
    return " ".join([shell_quote(word) for word in words])

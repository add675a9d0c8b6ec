"""Quotes words for bash, zsh and sh."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%")


def shell_quote(word: str) -> str:
    """Return a word, quoted if needed."""
    if word and _BARE.issuperset(word):
        return word
    # `=` is only safe in an option: `name=value` would be an assignment, and zsh expands `=name` to a path.
    if word.startswith("-") and _BARE.issuperset(word.replace("=", "")):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def shell_join(words: Iterable[str]) -> str:
    """Return the words as one shell command."""
    return " ".join([shell_quote(word) for word in words])

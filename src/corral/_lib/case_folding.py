"""Folds names as file systems that ignore case compare them."""

from __future__ import annotations


def folded(name: str) -> str:
    """Return a name, or a path, in the form that is the same for all its spellings."""
    if name.isascii():
        return name.lower()
    import unicodedata  # noqa: PLC0415  a megabyte of tables that ASCII names do not need

    plain = unicodedata.normalize("NFD", name.casefold())
    # Such file systems ignore invisible characters.
    return "".join(char for char in plain if unicodedata.category(char) != "Cf")

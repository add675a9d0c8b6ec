"""Matches names against globs as `fnmatch` does, but in bounded time for a glob of any length."""

from __future__ import annotations

from fnmatch import fnmatchcase

MAX_PLAIN = 256  # characters of a glob that `fnmatch` takes a moment for; it takes half a minute for 40,000 of `[`


def glob_matches(name: str, glob: str) -> bool:
    """Say whether a name matches a glob."""
    return (len(glob) <= MAX_PLAIN or _may_match_length(glob, len(name))) and fnmatchcase(name, glob)


def _may_match_length(glob: str, length: int) -> bool:
    """Say whether a glob can match a name of this length. All of its parts but a star match one character each."""
    at = parts = 0
    while at < len(glob) and parts <= length:
        if glob[at] == "*":
            at += 1
            continue
        end = glob.find("]", at + (3 if glob.startswith("[!", at) else 2)) if glob[at] == "[" else -1
        at = max(at, end) + 1
        parts += 1
    return parts <= length

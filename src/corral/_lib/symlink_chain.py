"""Resolves a path and lists every symbolic link in it, and finds the paths that a pattern names."""

from __future__ import annotations

import os

MAX_LINKS = 40  # the limit of the kernel, against a loop of links


def resolve_links(path: str) -> tuple[list[str], str]:
    """Return the symbolic links in a path, in the order of resolution, and the real path."""
    links: list[str] = []
    pending = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    at = ""
    while pending:
        part = pending.pop()
        if part == "..":
            at = os.path.dirname(at).rstrip("/")
            continue
        inner = f"{at}/{part}"
        if not os.path.islink(inner) or len(links) >= MAX_LINKS:
            at = inner
            continue
        links.append(inner)
        text = os.readlink(inner)
        at = "" if text.startswith("/") else at
        pending += [part for part in reversed(text.split("/")) if part not in ("", ".")]
    return links, at or "/"


def matching_paths(pattern: str) -> list[str]:
    """Return the existing paths that a pattern names. A pattern is a path, or the start of one followed by `*`."""
    if not pattern.endswith("*"):
        return [pattern] if os.path.lexists(pattern) else []
    above, _, head = pattern[:-1].rpartition("/")
    try:
        return [f"{above}/{name}" for name in os.listdir(above) if name.startswith(head)]
    except OSError:
        return []

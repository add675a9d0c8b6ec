"""Resolves a path and lists every symbolic link in it."""

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

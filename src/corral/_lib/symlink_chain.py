"""Resolves a path one symbolic link at a time, so that each link on the way is known."""

from __future__ import annotations

import os

MAX_LINKS = 40  # as the kernel: a loop of links has no end


def resolve_links(path: str) -> tuple[list[str], str]:
    """Return the symbolic links that resolving a path passes, and the path it resolves to."""
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

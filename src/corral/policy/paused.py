"""Remembers the projects that the user has paused: hooks let their calls pass until `corral resume`."""

from __future__ import annotations

import os
from time import time

from corral._lib.sha256 import sha256_hex
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "paused"
MAX_FILE_BYTES = 64 * 1024


def pause(root: str, environ: Mapping[str, str]) -> None:
    """Pause a project."""
    store = Store("state", FOLDER, environ, root)
    store.create()
    store.write(_name(root), f"{time():.0f}\n{root}".encode("utf-8", "surrogateescape"))


def resume(root: str, environ: Mapping[str, str]) -> bool:
    """End the pause of a project. Returns false if it was not paused."""
    store = Store("state", FOLDER, environ, root)
    if not paused_since(root, environ):
        return False
    store.remove(_name(root))
    return True


def paused_since(root: str, environ: Mapping[str, str]) -> float:
    """Return when a project was paused, or 0."""
    store = Store("state", FOLDER, environ, root)
    data = store.read(_name(root), MAX_FILE_BYTES, allows_hard_links=False) if store.exists() else None
    if data is None:
        return 0.0
    at, _, written = data.partition(b"\n")
    # Another content was not written for this project.
    return float(at) if at.isdigit() and written == os.fsencode(root) else 0.0


def _name(root: str) -> str:
    return sha256_hex(os.fsencode(root))[:32]

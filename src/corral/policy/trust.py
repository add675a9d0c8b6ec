"""Records which project policy files the user trusts, by the hash of their bytes. Only a person at a terminal adds one.

The file has one line for each trusted file: hash, blank, path.
"""

from __future__ import annotations

import os

from corral.model.errors import PolicyError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FILE_BYTES = 1024 * 1024
_FILE = "trust"
_HASH_DIGITS = 64


def is_trusted(path: str, digest: str, environ: Mapping[str, str], root: str) -> bool:
    """Return whether the user trusts exactly these bytes at this path."""
    return (digest, path) in trusted_files(environ, root)


def trusted_files(environ: Mapping[str, str], root: str = "") -> list[tuple[str, str]]:
    """Return hash and path of every trusted file."""
    store = Store("state", "", environ, root)
    data = store.read(_FILE, MAX_FILE_BYTES) if store.exists() else None
    lines = os.fsdecode(data or b"").split("\n")
    # The last line of a truncated file has no line break, and is ignored.
    return [
        (line[:_HASH_DIGITS], line[_HASH_DIGITS + 1 :])
        for line in lines[:-1]
        if line[_HASH_DIGITS : _HASH_DIGITS + 1] == " "
    ]


def trust(path: str, digest: str, environ: Mapping[str, str], root: str) -> None:
    """Trust exactly these bytes at this path, and no longer any others there."""
    _change(path, digest, environ, root)


def distrust(path: str, environ: Mapping[str, str], root: str) -> bool:
    """Trust no bytes at this path any longer. Return whether any were trusted."""
    return _change(path, "", environ, root)


def _change(path: str, digest: str, environ: Mapping[str, str], root: str) -> bool:
    if "\n" in path:
        raise PolicyError("a path with a line break cannot be trusted; rename the directory")
    store = Store("state", "", environ, root)
    store.create()
    with store.lock():
        before = trusted_files(environ, root)
        entries = [entry for entry in before if entry[1] != path]
        is_changed = len(entries) != len(before)
        if digest:
            entries.append((digest, path))
        if is_changed or digest:
            data = os.fsencode("".join(f"{each} {file}\n" for each, file in entries))
            if len(data) > MAX_FILE_BYTES:
                raise PolicyError("too many files are trusted; see: corral trust --list, and: corral distrust")
            store.write(_FILE, data, sync=True)
    return is_changed

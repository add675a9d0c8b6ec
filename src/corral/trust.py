"""Which project files the owner trusts, by the hash of their bytes. Written by a person at a terminal alone."""

from __future__ import annotations

import os

from corral import owned
from corral.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_sha256: Any = None
_FILE = "trust"  # one line for each file: hash, blank, path


def digest_of(data: bytes) -> str:
    """Return the hash that stands for a file's exact bytes."""
    global _sha256  # noqa: PLW0603  found once
    if _sha256 is None:
        _sha256 = _find_sha256()
    digest: str = _sha256(data).hexdigest()
    return digest


def _find_sha256() -> Any:
    # Until 3.11 and from 3.12 on; hashlib takes a millisecond.
    for name in ("_sha256", "_sha2", "hashlib"):
        try:
            return __import__(name).sha256
        except (ImportError, AttributeError):
            continue
    raise PolicyError("this Python has no SHA-256")


def is_trusted(path: str, digest: str, environ: Mapping[str, str], root: str) -> bool:
    """Say whether the owner trusts exactly these bytes at this path."""
    return (digest, path) in trusted(environ, root)


def trusted(environ: Mapping[str, str], root: str) -> list[tuple[str, str]]:
    """Return hash and path of every file that is trusted; PolicyError where someone else could have said so."""
    file = f"{owned.directory('state', environ)}/{_FILE}"
    owned.refuse_inside(file, root)
    try:
        owned.refuse_foreign(os.path.dirname(file))
        owned.refuse_foreign(file)
        with open(file, encoding="utf-8", errors="surrogateescape") as lines:
            return [(line[:64], line[65:].rstrip("\n")) for line in lines]
    except FileNotFoundError:
        return []


def trust(path: str, digest: str, environ: Mapping[str, str], root: str) -> None:
    """Trust exactly these bytes at this path, and no longer any others there."""
    _write([*_others(path, environ, root), (digest, path)], environ, root)


def distrust(path: str, environ: Mapping[str, str], root: str) -> None:
    """Trust no bytes at this path any longer."""
    _write(_others(path, environ, root), environ, root)


def _others(path: str, environ: Mapping[str, str], root: str) -> list[tuple[str, str]]:
    return [entry for entry in trusted(environ, root) if entry[1] != path]


def _write(entries: list[tuple[str, str]], environ: Mapping[str, str], root: str) -> None:
    place = owned.private_directory("state", environ, root)
    partial = f"{place}/{_FILE}.{os.getpid()}"
    if any("\n" in path for _, path in entries):
        raise PolicyError("a path with a line break cannot be trusted; rename the directory")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{digest} {path}\n" for digest, path in entries)
    os.replace(partial, f"{place}/{_FILE}")

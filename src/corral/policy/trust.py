"""Which project files the owner trusts, by the hash of their bytes. Written by a person at a terminal alone."""

from __future__ import annotations

import os

from corral.model.errors import PolicyError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_sha256: Any = None
MAX_FILE_BYTES = 1024 * 1024
_FILE = "trust"  # one line for each file: hash, blank, path
_DIGITS = 64  # of a hash


def sha256_hex(data: bytes) -> str:
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
    return (digest, path) in trusted_files(environ, root)


def trusted_files(environ: Mapping[str, str], root: str = "") -> list[tuple[str, str]]:
    """Return hash and path of every file that is trusted; PolicyError where someone else could have said so."""
    place = user_dirs.user_directory("state", environ)
    file = f"{place}/{_FILE}"
    if root:
        user_dirs.refuse_inside_project(place, root)
    try:
        user_dirs.refuse_writable_by_others(place)
        data, found = user_dirs.read_regular_file(file, MAX_FILE_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PolicyError(f"{file} cannot be read: {error.strerror}") from None
    user_dirs.refuse_status_writable_by_others(file, found)
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError(f"{file} is longer than {MAX_FILE_BYTES} bytes; remove it, and trust again what you trust")
    lines = os.fsdecode(data).split("\n")
    # The last line of a file that was cut short has no end, and counts for nothing.
    return [(line[:_DIGITS], line[_DIGITS + 1 :]) for line in lines[:-1] if line[_DIGITS : _DIGITS + 1] == " "]


def trust(path: str, digest: str, environ: Mapping[str, str], root: str) -> None:
    """Trust exactly these bytes at this path, and no longer any others there."""
    _change(path, digest, environ, root)


def distrust(path: str, environ: Mapping[str, str], root: str) -> bool:
    """Trust no bytes at this path any longer; say whether any were."""
    return _change(path, "", environ, root)


def _change(path: str, digest: str, environ: Mapping[str, str], root: str) -> bool:
    from fcntl import LOCK_EX, flock  # noqa: PLC0415  a hook only reads

    if "\n" in path:
        raise PolicyError("a path with a line break cannot be trusted; rename the directory")
    place = user_dirs.private_directory("state", environ, root)
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Of two who trust at once, the second must not forget what the first has written.
        flock(lock, LOCK_EX)
        before = trusted_files(environ, root)
        entries = [entry for entry in before if entry[1] != path]
        changed = len(entries) != len(before)
        if digest:
            entries.append((digest, path))
        if changed or digest:
            _write(f"{place}/{_FILE}", entries)
    finally:
        os.close(lock)
    return changed


def _write(file: str, entries: list[tuple[str, str]]) -> None:
    partial = f"{file}.{os.getpid()}-{os.urandom(4).hex()}"
    data = os.fsencode("".join(f"{digest} {path}\n" for digest, path in entries))
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError("too many files are trusted; see: corral trust --list, and: corral distrust")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        os.replace(partial, file)
    except BaseException:
        os.unlink(partial)
        raise

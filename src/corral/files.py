"""Files as a command sees them: every path is held inside the given roots, whatever links do meanwhile."""

from __future__ import annotations

import os
import stat
from errno import EACCES, EISDIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def read_bytes(path: str, roots: Sequence[str]) -> bytes:
    """Return what a regular file inside one of the roots holds."""
    descriptor = _open(path, roots, os.O_RDONLY)
    with open(descriptor, "rb") as file:
        return file.read()


def write_bytes(path: str, data: bytes, roots: Sequence[str]) -> None:
    """Replace what a regular file inside one of the roots holds; its directory must exist."""
    descriptor = _open(path, roots, os.O_WRONLY | os.O_CREAT)
    with open(descriptor, "wb") as file:
        file.truncate(0)
        file.write(data)


def _open(path: str, roots: Sequence[str], flags: int) -> int:
    # Links are followed here, by name; the walk below refuses any, so one that is swapped in meanwhile leads nowhere.
    resolved = os.path.realpath(os.path.join(roots[0], path))
    for root in roots:
        if resolved.startswith(root.rstrip("/") + "/"):
            *directories, name = resolved[len(root.rstrip("/")) + 1 :].split("/")
            break
    else:
        raise PermissionError(EACCES, "the path leads outside project root", path)
    walk = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open(root, walk)
    try:
        for directory in directories:
            below = os.open(directory, walk, dir_fd=at)
            os.close(at)
            at = below
        # O_NONBLOCK: a named pipe would wait for its other end.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666, dir_fd=at)
    finally:
        os.close(at)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
        raise PermissionError(EACCES, "the path is not a regular file", path)
    return descriptor

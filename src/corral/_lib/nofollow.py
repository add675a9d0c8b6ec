"""Opens, changes and identifies paths without following symbolic links, which a command may swap in at any time."""

from __future__ import annotations

import os

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | _DIRECTORY
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def file_identity(path: str) -> tuple[int, int]:
    """Return device and inode of the path itself. A link in the place of a file has another identity than the file."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def open_directory(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a directory by an absolute path in which no component is a link."""
    at = os.open("/", DIRECTORY)
    *above, last = path.strip("/").split("/")
    for part, access in (*((part, os.O_PATH) for part in above), (last, flags)):
        try:
            inner = os.open(part, access | _DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def make_directory(name: str, above: int | None = None) -> None:
    """Make a directory of this user's alone, unless the name exists."""
    try:
        os.mkdir(name, 0o700, dir_fd=above)
    except FileExistsError:
        return


def chmod_directory(name: str, above: int | None, mode: int) -> int:
    """Set the mode of a directory and return an O_PATH descriptor of it, which the caller closes."""
    # By descriptor: a process that is still dying may replace the name by a link.
    descriptor = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

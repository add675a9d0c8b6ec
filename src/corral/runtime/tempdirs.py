"""Directories that go with the process that made them. Those of a process that was killed go when the next one is made."""

from __future__ import annotations

import fcntl
import os
import stat

from corral.containment.filesystem.scratch import remove
from corral.containment.filesystem.temp_dirs import process_temp_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_LOCK = ".corral-alive"


class ProcessTempDir:
    """A directory of this process alone, for as long as it is open."""

    def __init__(self, prefix: str) -> None:
        above = process_temp_dir()
        _sweep(prefix, above)
        self.path = f"{above}/{prefix}{os.urandom(8).hex()}"
        os.mkdir(self.path, 0o700)
        self._descriptor = os.open(f"{self.path}/{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        # Only now: a lock that is there and not held means that nobody is left.
        os.rename(f"{self.path}/{_LOCK}.new", f"{self.path}/{_LOCK}")

    def close(self) -> None:
        """Remove it with all that lies in it."""
        if self._descriptor >= 0:
            remove(self.path)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sweep(prefix: str, above: str) -> None:
    for name in os.listdir(above):
        path = f"{above}/{name}"
        if name.startswith(prefix) and _is_own_directory(path) and _is_abandoned(path):
            remove(path)


def _is_own_directory(path: str) -> bool:
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _is_abandoned(path: str) -> bool:
    try:
        descriptor = os.open(f"{path}/{_LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)

"""Temporary directories that end with their process. Creating one removes those of killed processes."""

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
    """A temporary directory, removed by `close`. A locked file in it shows other processes that it is in use."""

    def __init__(self, prefix: str) -> None:
        above = process_temp_dir()
        _sweep(prefix, above)
        self.path = f"{above}/{prefix}{os.urandom(8).hex()}"
        os.mkdir(self.path, 0o700)
        self._descriptor = os.open(f"{self.path}/{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        # Renamed after locking: an existing lock file that is not locked means that the process is dead.
        os.rename(f"{self.path}/{_LOCK}.new", f"{self.path}/{_LOCK}")

    def close(self) -> None:
        """Remove the directory and its content."""
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
        if name.startswith(prefix) and _is_abandoned(path):
            remove(path)


def _is_abandoned(path: str) -> bool:
    """Return whether a path is a directory of this user whose lock file is not locked."""
    try:
        about = os.lstat(path)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return False
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

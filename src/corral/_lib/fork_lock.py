"""A lock that is one process's: in a fork of it, who held it is not there."""

from __future__ import annotations

import os
from _thread import allocate_lock


class ForkSafeLock:
    """Held by one thread of this process at a time."""

    __slots__ = ("_lock", "_made_in")

    def __init__(self) -> None:
        self._made_in, self._lock = os.getpid(), allocate_lock()

    def __enter__(self) -> None:
        if self._made_in != os.getpid():
            self._made_in, self._lock = os.getpid(), allocate_lock()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

"""Tells whether an object belongs to this process or was copied by fork(), and a lock that survives fork()."""

from __future__ import annotations

import os
from _thread import RLock, allocate_lock

# No other thread forks while this is held. A child that is forked while a thread imports a module waits for ever when it imports
# the same one: the thread that holds the module's lock does not exist in the child.
no_fork = RLock()
os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)


class ProcessOwner:
    """Records the process that an object belongs to. In a child made by fork() the copy does not belong to the child."""

    __slots__ = ("_pid",)

    def __init__(self, *, is_claimed: bool = True) -> None:
        self._pid = os.getpid() if is_claimed else 0

    @property
    def is_current(self) -> bool:
        """True if the object belongs to this process."""
        return self._pid == os.getpid()

    def claim(self) -> bool:
        """Let the object belong to this process. Return whether it did not before."""
        before, self._pid = self._pid, os.getpid()
        return before != self._pid

    def release(self) -> None:
        """Let the object belong to no process."""
        self._pid = 0


class ForkSafeLock:
    """A lock for the threads of one process. After fork() the child has a fresh, unlocked one."""

    __slots__ = ("_lock", "_owner")

    def __init__(self) -> None:
        self._owner, self._lock = ProcessOwner(), allocate_lock()

    def __enter__(self) -> None:
        if not self._owner.is_current:
            # The thread that held the lock does not exist in this process.
            self._lock = allocate_lock()
            self._owner.claim()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

"""Tells the process that created an object apart from its forks."""

from __future__ import annotations

import os


class ProcessIdentity:
    """The process that created it. `is_current` is false in a fork of that process."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_current(self) -> bool:
        """Return whether the calling process created this object."""
        return self._pid == os.getpid()

"""Keeps the latest output of a process that stays: bounded, with a count of what was dropped."""

from __future__ import annotations

from threading import Condition
from time import monotonic

MAX_BYTES = 1024 * 1024  # of one process; older output is dropped
MAX_READ_BYTES = 48 * 1024  # in one answer, which must fit in a packet


class OutputLog:
    """Output with a position for every byte that was ever printed. Any thread may use it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._begin = 0  # the position of the first byte that is kept
        self._is_closed = False
        self._changed = Condition()

    @property
    def has_any(self) -> bool:
        """True if something was printed."""
        return bool(self._data)

    def append(self, data: bytes) -> None:
        """Add output."""
        with self._changed:
            self._data += data
            surplus = len(self._data) - MAX_BYTES
            if surplus > 0:
                del self._data[:surplus]
                self._begin += surplus
            self._changed.notify_all()

    def close(self) -> None:
        """Note that nothing more will come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def read(self, position: int, wait_seconds: float = 0.0) -> tuple[bytes, int, int]:
        """Return output from a position, the position behind it, and how many bytes before it were dropped.

        If there is nothing yet, wait.
        """
        ends_at = monotonic() + wait_seconds
        with self._changed:
            while not self._is_closed and self._begin + len(self._data) <= position:
                left = ends_at - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            start = max(position, self._begin)
            data = bytes(self._data[start - self._begin : start - self._begin + MAX_READ_BYTES])
            return data, start + len(data), start - position

"""What the proxy was asked for and what it answered, from its process to the host: lines in a file that both hold.

An answer is written before the client gets it, so whoever looks after a command finds all of it. What cannot be written is refused.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from fcntl import LOCK_EX, LOCK_UN, lockf
from time import time

from corral.frozen import Record, frozen

MAX_BYTES = 16 * 1024 * 1024  # between two looks of the host; it is memory
MAX_WORD = 200  # characters of what a client asked for
ALLOWED, REFUSED, FAILED = "allowed", "refused", "failed"
_FIELDS = 6


@frozen
class Entry(Record):
    """One connection: to where, what was said to it and why, and the grant by which it was, or would be, allowed."""

    at: float
    outcome: str  # allowed, refused, or failed: granted, but not to be reached
    target: str
    address: str = ""
    detail: str = ""
    grant: str = ""


class FullError(OSError):
    """Nothing more can be written down."""


def new() -> int:
    """Return a new file, without a name, which both sides append to."""
    descriptor = os.memfd_create("corral-connections", os.MFD_CLOEXEC)
    return _appending(descriptor)


def _appending(descriptor: int) -> int:
    from fcntl import F_GETFL, F_SETFL, fcntl  # noqa: PLC0415  once for each sandbox

    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | os.O_APPEND)
    return descriptor


class Journal:
    """The file, from either side. The lock is the process's, so that threads need one of their own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = allocate_lock()

    def write(self, outcome: str, target: str, *, address: str = "", detail: str = "", grant: str = "") -> None:
        """Write a line, or raise FullError."""
        words = [_plain(word) for word in (outcome, target, address, detail, grant)]
        line = "\t".join([f"{time():.6f}", *words]).encode("ascii") + b"\n"
        with self._lock:
            lockf(self._descriptor, LOCK_EX)
            try:
                if os.fstat(self._descriptor).st_size + len(line) > MAX_BYTES:
                    raise FullError("more connections than can be written down")
                os.write(self._descriptor, line)
            finally:
                lockf(self._descriptor, LOCK_UN)

    def take(self) -> list[Entry]:
        """Return what was written since the last time, and forget it."""
        with self._lock:
            lockf(self._descriptor, LOCK_EX)
            try:
                size = os.fstat(self._descriptor).st_size
                if not size:
                    return []
                data = os.pread(self._descriptor, size, 0)
                os.ftruncate(self._descriptor, 0)
            finally:
                lockf(self._descriptor, LOCK_UN)
        return [entry for line in data.decode("ascii", "replace").splitlines() if (entry := _entry(line)) is not None]


def _entry(line: str) -> Entry | None:
    words = line.split("\t")
    if len(words) != _FIELDS:
        return None
    try:
        return Entry(float(words[0]), *words[1:])
    except ValueError:
        return None


def _plain(word: str) -> str:
    """Return a word in which a client cannot forge a line."""
    cut = word if len(word) <= MAX_WORD else f"{word[:MAX_WORD]}..."
    return cut if cut.isascii() and cut.isprintable() else ascii(cut)[1:-1]

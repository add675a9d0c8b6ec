"""What the proxy was asked for and what it answered, from its process to the host: lines in a file that both hold.

An answer is written before the client gets it, so whoever looks after a command finds all of it. What cannot be written is refused.
Where the host does not look for long, lines that say the same become one.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from fcntl import LOCK_EX, LOCK_UN, lockf
from time import time

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 16 * 1024 * 1024  # between two looks of the host; it is memory
RESERVED_BYTES = 64 * 1024  # of them, for refusals: that nothing more can be written down is written down
MAX_KINDS = 20_000  # kept apart in a file that is full; a command can invent names without end
MAX_WORD = 200  # characters of what a client asked for
ALLOWED, REFUSED, FAILED = "allowed", "refused", "failed"
# Where data went comes first: whoever asks for a thousand names must not hide by that the one that answered.
_RANKS = {ALLOWED: 0, FAILED: 1, REFUSED: 2}
OMITTED = "others, of which there were too many to tell"
_FIELDS = 7


@frozen
class LogEntry(Record):
    """One connection: to where, what was said to it and why, and the grant by which it was, or would be, allowed."""

    at: float
    outcome: str  # allowed, refused, or failed: granted, but not to be reached
    target: str
    address: str = ""
    detail: str = ""
    grant: str = ""
    count: int = 1


class FullError(OSError):
    """Nothing more can be written down."""


def create_log_file() -> int:
    """Return a new file, without a name, which both sides append to."""
    descriptor = os.memfd_create("corral-connections", os.MFD_CLOEXEC)
    return _appending(descriptor)


def _appending(descriptor: int) -> int:
    from fcntl import F_GETFL, F_SETFL, fcntl  # noqa: PLC0415  once for each sandbox

    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | os.O_APPEND)
    return descriptor


class ConnectionLog:
    """The file, from either side. The lock is the process's, so that threads need one of their own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = allocate_lock()
        self._folded = 0  # bytes that were left when it was last made shorter

    def write(self, outcome: str, target: str, *, address: str = "", detail: str = "", grant: str = "") -> None:
        """Write a line, or raise FullError."""
        line = _line(LogEntry(time(), outcome, target, address, detail, grant))
        with self._lock:
            lockf(self._descriptor, LOCK_EX)
            try:
                most = MAX_BYTES - (0 if outcome == REFUSED else RESERVED_BYTES)
                if self._size() + len(line) > most:
                    self._fold()
                    if self._size() + len(line) > most:
                        raise FullError("more connections than can be written down")
                os.write(self._descriptor, line)
            finally:
                lockf(self._descriptor, LOCK_UN)

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _fold(self) -> None:
        """Make the file shorter, unless that has been tried on most of it already."""
        size = self._size()
        if self._folded <= size < 2 * self._folded:
            return
        made = b"".join(map(_line, merge_entries(_entries(os.pread(self._descriptor, size, 0)), MAX_KINDS)))
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, made)
        self._folded = len(made)

    def take(self) -> list[LogEntry]:
        """Return what was written since the last time, and forget it."""
        with self._lock:
            lockf(self._descriptor, LOCK_EX)
            try:
                size = self._size()
                if not size:
                    return []
                data = os.pread(self._descriptor, size, 0)
                os.ftruncate(self._descriptor, 0)
            finally:
                lockf(self._descriptor, LOCK_UN)
        return _entries(data)


def merge_entries(entries: Iterable[LogEntry], most: int) -> list[LogEntry]:
    """Return entries that say the same as one, and those beyond so many kinds as one for each outcome."""
    kinds: dict[tuple[str, ...], LogEntry] = {}
    for entry in entries:
        _add(kinds, (entry.outcome, entry.target, entry.address, entry.detail, entry.grant), entry)
    listed = sorted(kinds.values(), key=lambda entry: _RANKS.get(entry.outcome, 0))
    others: dict[tuple[str, ...], LogEntry] = {}
    for entry in listed[most:]:
        _add(others, (entry.outcome,), LogEntry(entry.at, entry.outcome, "", detail=OMITTED, count=entry.count))
    return [*listed[:most], *others.values()]


def _add(kinds: dict[tuple[str, ...], LogEntry], key: tuple[str, ...], entry: LogEntry) -> None:
    known = kinds.get(key)
    if known is None:
        kinds[key] = entry
    else:
        kinds[key] = known.replace(at=max(known.at, entry.at), count=known.count + entry.count)


def _entries(data: bytes) -> list[LogEntry]:
    return [entry for line in data.decode("ascii", "replace").splitlines() if (entry := _entry(line)) is not None]


def _entry(line: str) -> LogEntry | None:
    words = line.split("\t")
    if len(words) != _FIELDS:
        return None
    try:
        outcome, target, address, detail, grant = words[2:]
        return LogEntry(float(words[0]), outcome, target, address, detail, grant, int(words[1]))
    except ValueError:
        return None


def _line(entry: LogEntry) -> bytes:
    words = [_plain(word) for word in (entry.outcome, entry.target, entry.address, entry.detail, entry.grant)]
    return "\t".join([f"{entry.at:.6f}", str(entry.count), *words]).encode("ascii") + b"\n"


def _plain(word: str) -> str:
    """Return a word in which a client cannot forge a line."""
    cut = word if len(word) <= MAX_WORD else f"{word[: MAX_WORD - 3]}..."
    return cut if cut.isascii() and cut.isprintable() else ascii(cut)[1:-1]

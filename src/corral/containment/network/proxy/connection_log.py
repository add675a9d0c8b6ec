"""The log of connections that the proxy process shares with the host: lines in a memory file that both hold.

The proxy logs an answer before the client gets it, so the log is complete when a command has ended. A connection that cannot be
logged is refused. When the file is full, equal lines are merged into one with a count.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from fcntl import F_GETFL, F_SETFL, LOCK_EX, LOCK_UN, fcntl, lockf
from time import time

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 16 * 1024 * 1024  # between two reads by the host; the file is in memory
RESERVED_BYTES = 64 * 1024  # of them, for refusals: that the log is full is logged too
MAX_KINDS = 20_000  # kept apart in a full file, against a command that invents names without end
MAX_WORD = 200  # characters of a client's text
ALLOWED, REFUSED, FAILED = "allowed", "refused", "failed"
# Allowed connections first: a command must not hide where it sent data behind a thousand other names.
_RANKS = {ALLOWED: 0, FAILED: 1, REFUSED: 2}
NAME_REFUSED = "it is not granted, and the program asked for its address instead of using the proxy"
OMITTED = "others, too many to list"
_FIELDS = 7


@frozen
class LogEntry(Record):
    """A connection: its target and outcome, and the grant that allowed it, or would have."""

    at: float
    outcome: str  # allowed, refused, or failed: granted but not reachable
    target: str
    address: str = ""
    detail: str = ""
    grant: str = ""
    count: int = 1


class FullError(OSError):
    """The log is full."""


def create_log_file() -> int:
    """Return the descriptor of a new memory file, which both sides append to."""
    descriptor = os.memfd_create("corral-connections", os.MFD_CLOEXEC)
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | os.O_APPEND)
    return descriptor


class ConnectionLog:
    """Reads and writes the file, on either side. File locks belong to a process, so threads have a lock of their own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = allocate_lock()
        self._merged_size = 0  # of the file after the last merge

    def write(self, outcome: str, target: str, *, address: str = "", detail: str = "", grant: str = "") -> None:
        """Append an entry, or raise FullError."""
        line = _line(LogEntry(time(), outcome, target, address, detail, grant))
        with self._lock:
            lockf(self._descriptor, LOCK_EX)
            try:
                most = MAX_BYTES - (0 if outcome == REFUSED else RESERVED_BYTES)
                if self._size() + len(line) > most:
                    self._merge()
                    if self._size() + len(line) > most:
                        raise FullError("the connection log is full until the command has ended")
                os.write(self._descriptor, line)
            finally:
                lockf(self._descriptor, LOCK_UN)

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def has_entries(self) -> bool:
        """Return whether the file has entries, without waiting for a process that writes one."""
        return self._size() > 0

    def _merge(self) -> None:
        """Merge equal lines, unless most of the file was merged already."""
        size = self._size()
        if self._merged_size <= size < 2 * self._merged_size:
            return
        merged = b"".join(map(_line, merge_entries(_entries(os.pread(self._descriptor, size, 0)), MAX_KINDS)))
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, merged)
        self._merged_size = len(merged)

    def take(self) -> list[LogEntry]:
        """Return all entries, and empty the file."""
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
    """Merge equal entries, and those beyond the first `most` kinds into one for each outcome."""
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
    words = [_escaped(word) for word in (entry.outcome, entry.target, entry.address, entry.detail, entry.grant)]
    return "\t".join([f"{entry.at:.6f}", str(entry.count), *words]).encode("ascii") + b"\n"


def _escaped(word: str) -> str:
    """Return a word in which a client cannot forge a line."""
    cut = word if len(word) <= MAX_WORD else f"{word[: MAX_WORD - 3]}..."
    return cut if cut.isascii() and cut.isprintable() else ascii(cut)[1:-1]

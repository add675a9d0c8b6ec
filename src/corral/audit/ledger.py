"""An append-only file of JSON lines, each with the hash of the previous line. Many processes append at once; a kill loses no line.

`log.jsonl` has the newest lines and `log-*.jsonl` older ones. `head` records the last line, and is the lock. A line is one write. A process
that is killed during the write leaves a torn end, which the next writer removes.
"""

from __future__ import annotations

import os
import stat
from _thread import allocate_lock
from errno import ENOSPC
from time import monotonic, sleep, time

from corral._lib.sha256 import sha256_hex
from corral._lib.timestamps import format_utc
from corral.model.errors import AuditError

SCHEMA = "corral.audit/1"
LOG, HEAD = "log.jsonl", "head"
FILE_BYTES = 16 * 1024 * 1024
FILES = 8  # kept files; older ones are removed, and `head` records the last removed line
MAX_LINE_BYTES = 256 * 1024  # a longer line is not read; the limits of audit_log.py are well below
NOTHING = "0" * 64  # `prev` of the first line
LOCK_SECONDS = 5.0  # an append takes 0.1 ms, so a longer holder is stopped or is not corral
LOCK_TRIES = 100
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# lockf() locks belong to the process, and closing any descriptor of the file releases them. So only one thread at a time opens `head`.
# flock() would not need this, but its module takes 0.2 ms to load.
_turn = allocate_lock()


def _forget_turn() -> None:
    global _turn  # noqa: PLW0603  after fork() the thread that held it does not exist
    _turn = allocate_lock()


os.register_at_fork(after_in_child=_forget_turn)


class Link:
    """Position of a line in the chain: its number, its hash and the hash of the previous line."""

    __slots__ = ("hash", "prev", "seq")

    # No `frozen` record: that compiles a constructor at the first use, and a hook uses this class once.
    def __init__(self, seq: int, prev: str, hash_: str) -> None:
        self.seq = seq
        self.prev = prev
        self.hash = hash_


class Head:
    """Number and hash of the last line, the size of `log.jsonl` after it, and the last removed line."""

    __slots__ = ("dropped", "dropped_hash", "hash", "seq", "size")

    def __init__(
        self, seq: int = 0, hash_: str = NOTHING, size: int = 0, dropped: int = 0, dropped_hash: str = NOTHING
    ) -> None:
        self.seq = seq
        self.hash = hash_
        self.size = size
        self.dropped = dropped
        self.dropped_hash = dropped_hash

    def to_bytes(self) -> bytes:
        """Return the head as text of constant length, so that it overwrites the old one completely."""
        return f"{self.seq:020d} {self.hash} {self.size:020d} {self.dropped:020d} {self.dropped_hash}\n".encode()

    def at(self, seq: int, hash_: str, size: int) -> Head:
        """Return a copy for another last line."""
        return Head(seq, hash_, size, self.dropped, self.dropped_hash)


def head_of(data: bytes) -> Head | None:
    """Parse the content of `head`. Return None if it is damaged."""
    words = data.decode("ascii", "replace").split()
    if len(words) != 5 or not all(words[i].isdecimal() for i in (0, 2, 3)) or len(data) != len(Head().to_bytes()):
        return None
    return Head(int(words[0]), words[1], int(words[2]), int(words[3]), words[4])


def link_of(line: bytes) -> Link | None:
    """Parse the position of a line in the chain. Return None if the line is incomplete."""
    rest, _, ending = line.rpartition(b', "hash": "')
    above, _, prev = rest.rpartition(b', "prev": "')
    seq = above.rpartition(b', "seq": ')[2]
    if len(ending) != 67 or ending[64:] != b'"}\n' or len(prev) != 65 or not seq.isdigit() or not line.startswith(b"{"):
        return None
    return Link(int(seq), prev[:64].decode("ascii", "replace"), ending[:64].decode("ascii", "replace"))


def is_genuine(line: bytes, link: Link) -> bool:
    """Return whether the hash of a line matches its text."""
    return sha256_hex(line.rpartition(b', "hash": "')[0]) == link.hash


def older_files(place: str) -> list[str]:
    """Return the names of the rotated files, oldest first."""
    return sorted(name for name in os.listdir(place) if name.startswith("log-") and name.endswith(".jsonl"))


def read_head(place: str) -> Head | None:
    """Return the current head, or None if it is missing or damaged."""
    try:
        with _turn, open(f"{place}/{HEAD}", "rb") as file:
            return head_of(file.read(4096))
    except FileNotFoundError:
        return None


class Ledger:
    """The log files in one directory, which must exist and be private to the user."""

    __slots__ = ("_file_bytes", "_files", "_place")

    def __init__(self, place: str, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self._place = place
        self._file_bytes = file_bytes
        self._files = files

    def append(self, body: str) -> Link:
        """Append a JSON object, given as text without its braces. After the return, a kill cannot lose the line."""
        try:
            with _turn:
                held = self._open(HEAD)
                try:
                    _lock(held, self._place)
                    return self._append(held, body)
                finally:
                    os.close(held)
        except OSError as error:
            raise AuditError(f"the audit log in {self._place} cannot be written: {error.strerror}") from None

    def check(self) -> None:
        """Raise AuditError if nothing can be appended now."""
        try:
            with _turn:
                for name in (HEAD, LOG):
                    os.close(self._open(name))
            state = os.statvfs(self._place)
        except OSError as error:
            raise AuditError(f"the audit log in {self._place} cannot be written: {error.strerror}") from None
        if state.f_blocks and not state.f_bavail:
            raise AuditError(f"the audit log in {self._place} cannot be written: no space is left; free some")

    def _open(self, name: str) -> int:
        path = f"{self._place}/{name}"
        descriptor = os.open(path, _OPEN | (os.O_APPEND if name == LOG else 0), 0o600)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
            os.close(descriptor)
            raise AuditError(
                f"{path} belongs to another user, can be written by others, or is not a regular file; remove it"
            )
        return descriptor

    def _append(self, held: int, body: str) -> Link:
        head = self._head(held)
        log = self._open(LOG)
        try:
            size, glue = os.fstat(log).st_size, b""
            if size != head.size:
                head, glue = _repaired(log, size, head)
                size = head.size
                # Write the head before the next line, so that a kill in between leaves a consistent pair.
                os.pwrite(held, head.to_bytes(), 0)
            line, link = _line(body, head)
            if size and size + len(line) > self._file_bytes:
                head = self._rotated(held, head)
                os.close(log)
                log, size, glue = self._open(LOG), 0, b""
            _write(log, glue + line, size)
            new = head.at(link.seq, link.hash, size + len(glue) + len(line))
            try:
                os.pwrite(held, new.to_bytes(), 0)
            except OSError:
                os.ftruncate(log, size)
                raise
            return link
        finally:
            os.close(log)

    def _head(self, held: int) -> Head:
        data = os.pread(held, 4096, 0)
        head = head_of(data)
        if head is None:
            # A kill cannot cause this, because `head` is one write before the first line. Start a new chain, so that `verify` reports the damage.
            head = Head(self._last_seq())
            os.ftruncate(held, 0)
            os.pwrite(held, head.to_bytes(), 0)
        return head

    def _last_seq(self) -> int:
        for name in (LOG, *reversed(older_files(self._place))):
            try:
                with open(f"{self._place}/{name}", "rb") as file:
                    file.seek(max(os.fstat(file.fileno()).st_size - MAX_LINE_BYTES, 0))
                    lines = file.read().splitlines(keepends=True)
            except FileNotFoundError:
                continue
            for line in reversed(lines):
                link = link_of(line)
                if link is not None:
                    return link.seq
        return 0

    def _rotated(self, held: int, head: Head) -> Head:
        """Rename `log.jsonl` to an older file, and remove the oldest ones."""
        place = self._place
        os.rename(f"{place}/{LOG}", f"{place}/log-{head.seq:012d}-{head.hash[:8]}.jsonl")
        older = older_files(place)
        surplus = older[: max(len(older) - self._files + 1, 0)]
        head = head.at(head.seq, head.hash, 0)
        if surplus and len(surplus) < len(older):
            with open(f"{place}/{older[len(surplus)]}", "rb") as file:
                first = link_of(file.readline(MAX_LINE_BYTES))
            if first is not None:
                head = Head(head.seq, head.hash, 0, first.seq - 1, first.prev)
        # Update `head` before removing files: one file too many is no gap, one too few is.
        os.pwrite(held, head.to_bytes(), 0)
        for name in surplus:
            os.unlink(f"{place}/{name}")
        return head


def _lock(held: int, place: str) -> None:
    ends_at, tries = 0.0, 0
    while True:
        try:
            os.lockf(held, os.F_TLOCK, 0)
        except (BlockingIOError, PermissionError):
            now = monotonic()
            ends_at, tries = ends_at or now + LOCK_SECONDS, tries + 1
            # Check both, because a suspended machine lets time pass without a try.
            if now > ends_at and tries > LOCK_TRIES:
                message = (
                    f"the audit log in {place} is locked by another process, which may be stopped; end or continue it"
                )
                raise AuditError(message) from None
            sleep(0.0005)
        else:
            return


def _repaired(log: int, size: int, head: Head) -> tuple[Head, bytes]:
    """Repair a log whose size differs from `head`. Return the new head and the bytes to write before the next line."""
    if size > head.size:
        # A writer was killed during or after its write. Keep complete lines; a torn end was never acknowledged.
        start = max(head.size, size - 2 * MAX_LINE_BYTES)
        tail = os.pread(log, size - start, start)
        whole = tail.rfind(b"\n") + 1
        if whole or start == head.size:
            os.ftruncate(log, start + whole)
            size = start + whole
        last = link_of(tail[:whole].rpartition(b"\n")[0].rpartition(b"\n")[2] + b"\n")
        if last is not None and last.seq > head.seq:
            head = head.at(last.seq, last.hash, size)
    # If the file became shorter, continue the chain from `head`, so that `verify` reports the gap.
    ends_well = not size or os.pread(log, 1, size - 1) == b"\n"
    return head.at(head.seq, head.hash, size), b"" if ends_well else b"\n"


def _line(body: str, head: Head) -> tuple[bytes, Link]:
    rest = f'{{"schema": "{SCHEMA}", "at": "{format_utc(time())}", {body}, "seq": {head.seq + 1}, "prev": "{head.hash}"'.encode()
    link = Link(head.seq + 1, head.hash, sha256_hex(rest))
    return rest + f', "hash": "{link.hash}"}}\n'.encode(), link


def _write(log: int, data: bytes, size: int) -> None:
    """Write all bytes with one system call, or none."""
    try:
        written = os.write(log, data)
        if written != len(data):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
    except OSError:
        os.ftruncate(log, size)
        raise

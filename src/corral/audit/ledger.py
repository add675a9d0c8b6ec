"""Lines in one directory, each with the hash of the one before: appended by many at once, whole after any kill, rotated by size.

`log.jsonl` holds the newest lines and `log-*.jsonl` older ones. `head` says what the last line is, and is the lock. A line is
one write; who is killed before that leaves nothing, who is killed in it a torn end, which the next one drops.
"""

from __future__ import annotations

import os
import stat
from _thread import allocate_lock
from errno import ENOSPC
from time import monotonic, sleep, time

from corral._lib.timestamps import format_utc
from corral.model.errors import AuditError
from corral.policy.trust import sha256_hex

SCHEMA = "corral.audit/1"
LOG, HEAD = "log.jsonl", "head"
FILE_BYTES = 16 * 1024 * 1024
FILES = 8  # the newest of them; older lines are dropped, and `head` says up to which
MAX_LINE_BYTES = 256 * 1024  # what a reader takes for a line; audit's own bounds are well below
NOTHING = "0" * 64  # what comes before the first line
LOCK_SECONDS = 5.0  # an append takes a tenth of a millisecond, so whoever holds it longer is stopped or not one of us
LOCK_TRIES = 100
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# A lock on a file is a process's, not a thread's, and any close of the file gives it back: one thread at a time has `head`
# open. Not flock, whose module takes a fifth of a millisecond to load.
_turn = allocate_lock()


def _forget_turn() -> None:
    global _turn  # noqa: PLW0603  in a fork, who held it is not there
    _turn = allocate_lock()


os.register_at_fork(after_in_child=_forget_turn)


class Link:
    """The place of a line in the chain."""

    __slots__ = ("hash", "prev", "seq")

    # Written out, as for the head: what `frozen` makes is compiled when the first is made, and a hook makes but one.
    def __init__(self, seq: int, prev: str, hash_: str) -> None:
        self.seq = seq
        self.prev = prev
        self.hash = hash_


class Head:
    """What was written last: its number and hash, the size of `log.jsonl` then, and the last line that was dropped."""

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
        """Return it as a line of always the same length, so that no part of an older one is left behind it."""
        return f"{self.seq:020d} {self.hash} {self.size:020d} {self.dropped:020d} {self.dropped_hash}\n".encode()

    def at(self, seq: int, hash_: str, size: int) -> Head:
        """Return it for another last line."""
        return Head(seq, hash_, size, self.dropped, self.dropped_hash)


def head_of(data: bytes) -> Head | None:
    """Read what `head` holds; None where it is damaged."""
    words = data.decode("ascii", "replace").split()
    if len(words) != 5 or not all(words[i].isdecimal() for i in (0, 2, 3)) or len(data) != len(Head().to_bytes()):
        return None
    return Head(int(words[0]), words[1], int(words[2]), int(words[3]), words[4])


def link_of(line: bytes) -> Link | None:
    """Read the place of a line in the chain; None where it is no whole line."""
    rest, _, ending = line.rpartition(b', "hash": "')
    above, _, prev = rest.rpartition(b', "prev": "')
    seq = above.rpartition(b', "seq": ')[2]
    if len(ending) != 67 or ending[64:] != b'"}\n' or len(prev) != 65 or not seq.isdigit() or not line.startswith(b"{"):
        return None
    return Link(int(seq), prev[:64].decode("ascii", "replace"), ending[:64].decode("ascii", "replace"))


def is_genuine(line: bytes, link: Link) -> bool:
    """Say whether a line is as it was written: its hash is that of everything before it."""
    return sha256_hex(line.rpartition(b', "hash": "')[0]) == link.hash


def older_files(place: str) -> list[str]:
    """Return the names of the files that were rotated, the oldest first."""
    return sorted(name for name in os.listdir(place) if name.startswith("log-") and name.endswith(".jsonl"))


def read_head(place: str) -> Head | None:
    """Return what `head` says now; None where it is missing or damaged."""
    try:
        with _turn, open(f"{place}/{HEAD}", "rb") as file:
            return head_of(file.read(4096))
    except FileNotFoundError:
        return None


class Ledger:
    """The lines in one directory, which exists and is the owner's alone."""

    __slots__ = ("_file_bytes", "_files", "_place")

    def __init__(self, place: str, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self._place = place
        self._file_bytes = file_bytes
        self._files = files

    def append(self, body: str) -> Link:
        """Append an object, given as the inside of its JSON text. Once this returns, no kill takes the line away."""
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
        """Raise where nothing could be appended now."""
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
            raise AuditError(f"{path} belongs to another user, can be written by others, or is no file; remove it")
        return descriptor

    def _append(self, held: int, body: str) -> Link:
        head = self._head(held)
        log = self._open(LOG)
        try:
            size, glue = os.fstat(log).st_size, b""
            if size != head.size:
                head, glue = _mended(log, size, head)
                size = head.size
                # Before the next line: a kill after it must not meet a head of another file again.
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
            # No kill does this: it is written before the first line, and in one piece. The next line names none before it,
            # so that it shows for ever.
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
        """Put the newest lines among the older files, and drop the oldest of these."""
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
        # Before anything is removed, since a file too many is no gap; and before the new file has a line.
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
            # By both: on a machine that stood still for a while nobody has tried yet.
            if now > ends_at and tries > LOCK_TRIES:
                message = (
                    f"the audit log in {place} is held by another process, which may be stopped; end or continue it"
                )
                raise AuditError(message) from None
            sleep(0.0005)
        else:
            return


def _mended(log: int, size: int, head: Head) -> tuple[Head, bytes]:
    """Return where to go on in a file that is not as `head` says, and what must stand before the next line."""
    if size > head.size:
        # Somebody was killed after a write, or in it: whole lines count, a torn end was never acknowledged.
        start = max(head.size, size - 2 * MAX_LINE_BYTES)
        tail = os.pread(log, size - start, start)
        whole = tail.rfind(b"\n") + 1
        if whole or start == head.size:
            os.ftruncate(log, start + whole)
            size = start + whole
        last = link_of(tail[:whole].rpartition(b"\n")[0].rpartition(b"\n")[2] + b"\n")
        if last is not None and last.seq > head.seq:
            head = head.at(last.seq, last.hash, size)
    # In a file that became shorter, or holds no line, the chain goes on from what was there, and the gap shows.
    ends_well = not size or os.pread(log, 1, size - 1) == b"\n"
    return head.at(head.seq, head.hash, size), b"" if ends_well else b"\n"


def _line(body: str, head: Head) -> tuple[bytes, Link]:
    rest = f'{{"schema": "{SCHEMA}", "at": "{format_utc(time())}", {body}, "seq": {head.seq + 1}, "prev": "{head.hash}"'.encode()
    link = Link(head.seq + 1, head.hash, sha256_hex(rest))
    return rest + f', "hash": "{link.hash}"}}\n'.encode(), link


def _write(log: int, data: bytes, size: int) -> None:
    """Write all of it with one call, or nothing."""
    try:
        written = os.write(log, data)
        if written != len(data):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
    except OSError:
        os.ftruncate(log, size)
        raise

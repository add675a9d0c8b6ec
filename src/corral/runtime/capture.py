"""Keeps the head and the tail of a command's output in bounded memory, and counts every byte. Does no I/O."""

from __future__ import annotations

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STDOUT, STDERR = 0, 1
STREAM_NAMES = ("stdout", "stderr")
MARKER = "\n[corral: truncated, %d bytes omitted]\n"
_LONGEST_UTF8 = 4


@frozen
class Captured(Record):
    """The kept bytes of both streams and their full sizes."""

    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    path: str | None = None  # of the file with the full output


class Stream:
    """The head and the tail of one stream. It never holds more than `head_size` plus `tail_size` bytes."""

    __slots__ = ("_head", "_head_size", "_next", "_tail", "_tail_size", "total")

    def __init__(self, head_size: int, tail_size: int) -> None:
        self.total = 0
        self._head_size = head_size
        self._tail_size = tail_size
        self._head = bytearray()
        self._tail = bytearray()
        self._next = 0  # index of the oldest byte in the full ring buffer

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Copy the next bytes of the stream."""
        size = len(data)
        self.total += size
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            if size <= room:
                return
            data = data[room:]
            size -= room
        if size >= self._tail_size:
            if self._tail_size:
                self._tail[:] = data[size - self._tail_size :]
                self._next = 0
            return
        room = self._tail_size - len(self._tail)
        if room > 0:
            self._tail += data[:room]
            if size <= room:
                return
            data = data[room:]
            size -= room
        straight = min(size, self._tail_size - self._next)
        self._tail[self._next : self._next + straight] = data[:straight]
        self._tail[: size - straight] = data[straight:]
        self._next = (self._next + size) % self._tail_size

    def tail(self) -> bytes:
        """Return the kept bytes after the head."""
        return bytes(self._tail[self._next :]) + bytes(self._tail[: self._next])

    def finish(self) -> tuple[bytes, bool]:
        """Return the kept bytes, with a marker in place of dropped ones, and whether any were dropped."""
        if not self.total:
            return b"", False
        head, tail = bytes(self._head), self.tail()
        if len(head) + len(tail) == self.total:
            return head + tail, False
        head = head[: len(head) - split_at_end(head)]
        tail = tail[_split_at_start(tail) :]
        omitted = self.total - len(head) - len(tail)
        return head + (MARKER % omitted).encode() + tail, True


def split_at_end(data: bytes) -> int:
    """Return how many bytes at the end begin an incomplete UTF-8 character."""
    # With half a character, the whole stream would be base64 in JSON.
    for back in range(1, min(_LONGEST_UTF8, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
        if byte < 0x80:
            return 0
    return 0


def _split_at_start(data: bytes) -> int:
    start = data[:_LONGEST_UTF8]
    for forward, byte in enumerate(start):
        if not 0x80 <= byte < 0xC0:
            return forward
    return len(start) if len(start) < _LONGEST_UTF8 else 0


class Capture:
    """Both streams of one command. `keep` selects the part that is kept: head, tail or both."""

    __slots__ = ("streams",)

    def __init__(self, max_bytes: int, keep: str = "both") -> None:
        head = {"head": max_bytes, "tail": 0, "both": max_bytes // 2}[keep]
        self.streams: Sequence[Stream] = (Stream(head, max_bytes - head), Stream(head, max_bytes - head))

    def feed(self, stream: int, data: bytes | bytearray | memoryview) -> None:
        """Copy the next bytes of STDOUT or STDERR."""
        self.streams[stream].feed(data)

    def finish(self) -> Captured:
        """Return the kept output."""
        out, err = self.streams
        stdout, stdout_cut = out.finish()
        stderr, stderr_cut = err.finish()
        return Captured(stdout, stderr, stdout_cut or stderr_cut, out.total, err.total)

"""The host's ends of a command's three streams: output is read into a bounded capture, input never blocks the host.

Only pipes and sealed memory go to a command: any other file it could reopen, and reach what lies behind it.
"""

from __future__ import annotations

import fcntl
import os

from corral.capture import STDERR, STDOUT, STREAM_NAMES
from corral.containment import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.capture import Capture

    Chunk = tuple[str, bytes]

READ_BYTES = 1 << 16  # a pipe's default size
FLOOD_BYTES = 1 << 20  # pipe and reads of a stream that fills its pipe; the most an ordinary user may have


def _copy_of(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except OSError:
        # Closed here: empty there.
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


class Streams:
    """The streams of one command, from before it starts until it is over."""

    __slots__ = ("_input", "_input_ends", "_wide_buffer", "lent", "reading", "stdin")

    def __init__(self) -> None:
        self._wide_buffer: memoryview | None = None
        self._input: bytearray | None = None
        self._input_ends = False
        self.reading: dict[int, int] = {}  # descriptor to stream
        self.lent: list[int] = []  # the command's ends: stdout, stderr, perhaps stdin
        self.stdin = -1  # our end of an input that stays open

    def open_output(self) -> None:
        """Make the pipes that the command prints to."""
        for stream in (STDOUT, STDERR):
            ours, theirs = os.pipe()
            self.reading[ours] = stream
            self.lent.append(theirs)

    def lend_own(self) -> None:
        """Let the command have this process's own streams."""
        self.lent.append(_copy_of(1))
        self.lent.append(_copy_of(2))
        self.lend_input()

    def lend_input(self) -> None:
        """Let the command read this process's own input."""
        self.lent.append(_copy_of(0))

    def give_input(self, data: bytes) -> None:
        """Let the command read `data`, then the end."""
        self.lent.append(wire.sealed("stdin", data))

    def open_input(self) -> None:
        """Let the command read what will be written."""
        theirs, self.stdin = os.pipe()
        self.lent.append(theirs)
        self._input = bytearray()
        os.set_blocking(self.stdin, False)

    def close_lent(self) -> None:
        """Close the command's ends, which it has by now."""
        while self.lent:
            os.close(self.lent.pop())

    def read(self, descriptor: int, buffer: memoryview, capture: Capture, chunks: list[Chunk] | None) -> bool:
        """Read once from a stream that is ready, into `capture` and `chunks`; false at its end."""
        if self._wide_buffer is not None:
            buffer = self._wide_buffer
        size = os.readv(descriptor, (buffer,))
        if not size:
            return False
        stream = self.reading[descriptor]
        data = buffer[:size]
        capture.feed(stream, data)
        if chunks is not None:
            chunks.append((STREAM_NAMES[stream], bytes(data)))
        if size == READ_BYTES:
            self._widen(descriptor)
        return True

    def shut(self, descriptor: int) -> None:
        """Close a stream that has ended."""
        del self.reading[descriptor]
        os.close(descriptor)

    def _widen(self, descriptor: int) -> None:
        # Only for a stream that has filled its pipe: a new size costs more than all that /bin/true prints.
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, FLOOD_BYTES)
        except OSError:
            # The user's share of pipe memory is used up; it works without.
            return
        if self._wide_buffer is None:
            self._wide_buffer = memoryview(bytearray(FLOOD_BYTES))

    def write(self, data: bytes) -> bool:
        """Take input for the command; false when it no longer reads any."""
        if self._input is None or self._input_ends:
            return False
        self._input += data
        return self.flush()

    def end_input(self) -> None:
        """Close the input after what was written."""
        self._input_ends = True
        self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes; false when the command no longer reads."""
        if self._input is None:
            return False
        try:
            while self._input:
                del self._input[: os.write(self.stdin, self._input[:READ_BYTES])]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            self._close_input()
            return False
        if self._input_ends:
            self._close_input()
        return True

    @property
    def wants_to_write(self) -> bool:
        """Whether there is something to write as soon as the pipe takes it."""
        return bool(self._input)

    def _close_input(self) -> None:
        self._input = None
        os.close(self.stdin)
        self.stdin = -1

    def close(self) -> None:
        """Close everything."""
        self.close_lent()
        if self._input is not None:
            self._close_input()
        while self.reading:
            os.close(self.reading.popitem()[0])

"""The host's ends of a command's three streams: output is read into a bounded capture, input never blocks the host.

Only pipes, sealed memory and a terminal of its own go to a command: any other file it could reopen, and reach what lies
behind it. The exception is what the caller lends of its own.
"""

from __future__ import annotations

import fcntl
import os
from _struct import pack
from errno import EIO, EPIPE
from stat import S_ISCHR, S_ISFIFO

from corral.containment import protocol
from corral.runtime.capture import STDERR, STDOUT, STREAM_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

    from corral.runtime.capture import Capture

    Chunk = tuple[str, bytes]

READ_BYTES = 1 << 16  # a pipe's default size
MAX_TERMINAL_SIZE = 65535  # of rows and columns: the kernel has sixteen bits for each
_TIOCSWINSZ = 0x5414
_OUTER_END = os.makedev(5, 2)  # of any terminal, however many there are
_END_OF_INPUT = b"\x04"  # what a terminal takes for it, unless the command has set another key
_CLOSED_BY_EXEC = (os.O_CLOEXEC, os.O_CLOEXEC)
FLOOD_BYTES = 1 << 20  # pipe and reads of a stream that fills its pipe; the most an ordinary user may have


def _copy_of(descriptor: int) -> int:
    try:
        # A host that has closed its own 0, 1 or 2 has something else there by now, perhaps a control socket. What is lent
        # is what a program started by exec would have.
        if os.get_inheritable(descriptor):
            return os.dup(descriptor)
    except OSError:
        # Closed here: empty there.
        pass
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def checked_size(rows: int, columns: int) -> tuple[int, int]:
    """Return the size of a terminal, or raise ValueError where there is none such."""
    for name, number in (("rows", rows), ("columns", columns)):
        if type(number) is not int or not 1 <= number <= MAX_TERMINAL_SIZE:
            raise ValueError(f"{name} must be a whole number from 1 to {MAX_TERMINAL_SIZE}, not {number!r}")
    return rows, columns


def is_outer_end(descriptor: int) -> bool:
    """Say whether a descriptor is the outer end of a terminal: a warden is not believed."""
    kind = os.fstat(descriptor)
    return S_ISCHR(kind.st_mode) and kind.st_rdev == _OUTER_END


class Streams:
    """The streams of one command, from before it starts until it is over."""

    __slots__ = (
        "_input",
        "_input_ends",
        "_line_begins",
        "_made",
        "_wide_buffer",
        "arrived",
        "lent",
        "reading",
        "stdin",
        "terminal",
    )

    def __init__(self) -> None:
        self._wide_buffer: memoryview | None = None
        self._input: bytearray | None = None
        self._input_ends = False
        self._line_begins = True
        self._made: list[tuple[int, int]] = []  # pipes that are not among the others yet
        self.arrived: list[Any] = []  # a message that was received, with ends that are not among the others yet
        self.reading: dict[int, int] = {}  # descriptor to stream
        self.lent: list[int] = []  # the command's ends: stdout, stderr, perhaps stdin
        self.stdin = -1  # our end of an input that stays open
        self.terminal = -1  # the outer end of the command's terminal, until all is over

    def open_output(self) -> None:
        """Make the pipes that the command prints to."""
        # Made and noted in one step: an interrupt between two steps of Python would lose them.
        self._made.extend(map(os.pipe2, _CLOSED_BY_EXEC))
        (stdout, their_stdout), (stderr, their_stderr) = self._made
        self.reading = {stdout: STDOUT, stderr: STDERR}
        self.lent = [their_stdout, their_stderr]
        self._made.clear()

    def receive_ends(self, sock: socket) -> tuple[bytes, tuple[int, ...]]:
        """Receive a message that is there, with two pipes to read or none; of anything else, nothing."""
        try:
            if not self.arrived:
                # Received and noted in one step, as above.
                self.arrived.extend(map(sock.recvmsg, *zip(protocol.RECEIVED)))
            message, ends = protocol.parse_received(self.arrived[0])
        except (OSError, protocol.ProtocolError):
            self.arrived.clear()
            return b"", ()
        is_right = len(ends) == len(STREAM_NAMES) and all(S_ISFIFO(os.fstat(end).st_mode) for end in ends)
        if ends and (not is_right or (self.reading and tuple(self.reading) != ends)):
            self.drop_ends()
            return b"", ()
        return message, ends

    def read_from(self, ends: tuple[int, ...]) -> None:
        """Read what comes out of these, stdout and stderr."""
        self.reading = dict(zip(ends, (STDOUT, STDERR), strict=True))
        self.arrived.clear()

    def drop_ends(self) -> None:
        """Close what was received and is not read."""
        if self.arrived:
            try:
                _, ends = protocol.parse_received(self.arrived.pop())
                protocol.close_all([end for end in ends if end not in self.reading])
            except protocol.ProtocolError:
                # Closed already.
                return

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
        self.lent.append(protocol.sealed("stdin", data))

    def open_input(self) -> None:
        """Let the command read what will be written."""
        theirs, self.stdin = os.pipe()
        self.lent.append(theirs)
        self._input = bytearray()
        os.set_blocking(self.stdin, False)

    def open_terminal(self, outer: int) -> None:
        """Read and write the outer end of a terminal, on which the command is."""
        self.reading[outer] = STDOUT
        # One to read, one to write: a poll object knows a descriptor once.
        self.stdin = self.terminal = os.dup(outer)
        self._input = bytearray()
        os.set_blocking(outer, False)

    def resize(self, rows: int, columns: int) -> None:
        """Change the terminal's size, which the kernel tells the command by SIGWINCH."""
        if self.terminal >= 0:
            fcntl.ioctl(self.terminal, _TIOCSWINSZ, pack("HHHH", *checked_size(rows, columns), 0, 0))

    def close_lent(self) -> None:
        """Close the command's ends, which it has by now."""
        while self.lent:
            os.close(self.lent.pop())

    def read(self, descriptor: int, buffer: memoryview, capture: Capture, chunks: list[Chunk] | None) -> bool:
        """Read once from a stream that is ready, into `capture` and `chunks`; false at its end."""
        if self._wide_buffer is not None:
            buffer = self._wide_buffer
        try:
            size = os.readv(descriptor, (buffer,))
        except BlockingIOError:
            return True
        except OSError as error:
            # A terminal that nobody holds any more is an error, not an end.
            if error.errno != EIO:
                raise
            return False
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

    def close_reading(self, descriptor: int) -> None:
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
        if data:
            self._line_begins = data[-1:] in (b"\n", b"\r")
        return self.flush()

    def end_input(self) -> None:
        """Close the input after what was written; a terminal gets the key that means it."""
        if self.terminal >= 0 and self._input is not None and not self._input_ends:
            # In the middle of a line the first only hands the line over.
            self._input += _END_OF_INPUT if self._line_begins else 2 * _END_OF_INPUT
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
        except OSError as error:
            if error.errno not in (EPIPE, EIO):
                raise
            self._close_input()
            return False
        if self._input_ends:
            self._close_input()
        return True

    @property
    def wants_to_write(self) -> bool:
        """Whether there is something to write as soon as the pipe takes it."""
        return bool(self._input)

    @property
    def takes_input(self) -> bool:
        """Whether there is an open input, and nothing waits to be written to it."""
        return self._input is not None and not self._input and not self._input_ends

    def _close_input(self) -> None:
        self._input = None
        if self.stdin != self.terminal:
            os.close(self.stdin)
        self.stdin = -1

    def close(self) -> None:
        """Close everything."""
        if self._made:
            # An interrupt came while they were told apart.
            known = {*self.lent, *self.reading}
            self.lent += [end for pipe in self._made for end in pipe if end not in known]
            self._made.clear()
        self.drop_ends()
        self.close_lent()
        if self._input is not None:
            self._close_input()
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1
        while self.reading:
            os.close(self.reading.popitem()[0])

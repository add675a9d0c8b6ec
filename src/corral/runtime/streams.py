"""The host's ends of a command's three streams: output is read into a bounded capture, input never blocks the host.

A command only gets pipes, sealed memory files and its own terminal. Any other file it could reopen through /proc and use with
other rights. The exception are the caller's own streams, when the caller lends them.
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
MAX_TERMINAL_SIZE = 65535  # rows or columns: the kernel has 16 bits for each
_TIOCSWINSZ = 0x5414
_PTY_MASTER = os.makedev(5, 2)  # the device number of every pty master
_END_OF_INPUT = b"\x04"  # Ctrl-D, the default end-of-file key of a terminal
_CLOSED_BY_EXEC = (os.O_CLOEXEC, os.O_CLOEXEC)
FLOOD_BYTES = 1 << 20  # size of pipe and reads for a stream that fills its pipe; the limit for unprivileged users


def _copy_of(descriptor: int) -> int:
    try:
        # If the host has closed its 0, 1 or 2, that number may now be something else, such as a control socket. Python opens
        # those non-inheritable, so only a descriptor that exec() would pass on is lent.
        if os.get_inheritable(descriptor):
            return os.dup(descriptor)
    except OSError:
        # The host has closed it: the command gets /dev/null.
        pass
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def checked_size(rows: int, columns: int) -> tuple[int, int]:
    """Return the size of a terminal; ValueError if no terminal can have it."""
    for name, number in (("rows", rows), ("columns", columns)):
        if type(number) is not int or not 1 <= number <= MAX_TERMINAL_SIZE:
            raise ValueError(f"{name} must be a whole number from 1 to {MAX_TERMINAL_SIZE}, not {number!r}")
    return rows, columns


def is_pty_master(descriptor: int) -> bool:
    """Return whether a descriptor is the master of a pty. A warden may be compromised, so its descriptors are checked."""
    kind = os.fstat(descriptor)
    return S_ISCHR(kind.st_mode) and kind.st_rdev == _PTY_MASTER


class Streams:
    """The streams of one command, from before it starts until its end."""

    def __init__(self) -> None:
        self._wide_buffer: memoryview | None = None
        self._input: bytearray | None = None
        self._input_ends = False
        self._line_begins = True
        self._made: list[tuple[int, int]] = []  # pipes that were made and are not yet in `reading` and `lent`
        self.arrived: list[Any] = []  # a received message whose descriptors are not yet in `reading`
        self.reading: dict[int, int] = {}  # descriptor to stream number
        self.lent: list[int] = []  # the command's ends: stdout, stderr and, if any, stdin
        self.stdin = -1  # the host's end of an open stdin pipe
        self.terminal = -1  # the master of the command's terminal

    def open_output(self) -> None:
        """Create the pipes for stdout and stderr."""
        # One call into C: a KeyboardInterrupt between creating and storing a pipe would leak it.
        self._made.extend(map(os.pipe2, _CLOSED_BY_EXEC))
        (stdout, their_stdout), (stderr, their_stderr) = self._made
        self.reading = {stdout: STDOUT, stderr: STDERR}
        self.lent = [their_stdout, their_stderr]
        self._made.clear()

    def receive_ends(self, sock: socket) -> tuple[bytes, tuple[int, ...]]:
        """Receive a message with two pipes to read, or without any. Returns an empty message for anything else."""
        try:
            if not self.arrived:
                # One call into C, as above.
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
        """Use these descriptors as stdout and stderr."""
        self.reading = dict(zip(ends, (STDOUT, STDERR), strict=True))
        self.arrived.clear()

    def drop_ends(self) -> None:
        """Close received descriptors that are not used."""
        if self.arrived:
            try:
                _, ends = protocol.parse_received(self.arrived.pop())
                protocol.close_all([end for end in ends if end not in self.reading])
            except protocol.ProtocolError:
                # The protocol has closed them.
                return

    def lend(self, stdin: int, stdout: int, stderr: int) -> None:
        """Give the command copies of three descriptors."""
        for descriptor in (stdout, stderr, stdin):
            self.lent.append(os.dup(descriptor))

    def lend_own(self) -> None:
        """Give the command this process's three streams."""
        self.lent.append(_copy_of(1))
        self.lent.append(_copy_of(2))
        self.lend_input()

    def lend_input(self) -> None:
        """Give the command this process's stdin."""
        self.lent.append(_copy_of(0))

    def give_input(self, data: bytes) -> None:
        """Let the command read `data`, then EOF."""
        self.lent.append(protocol.sealed("stdin", data))

    def open_input(self) -> None:
        """Open a pipe for input that `write` provides."""
        theirs, self.stdin = os.pipe()
        self.lent.append(theirs)
        self._input = bytearray()
        os.set_blocking(self.stdin, False)

    def open_terminal(self, master: int) -> None:
        """Read and write the master of the command's terminal."""
        self.reading[master] = STDOUT
        # One to read, one to write: a poll object holds each descriptor once.
        self.stdin = self.terminal = os.dup(master)
        self._input = bytearray()
        os.set_blocking(master, False)

    def resize(self, rows: int, columns: int) -> None:
        """Change the terminal's size. The kernel then sends SIGWINCH to the command."""
        if self.terminal >= 0:
            fcntl.ioctl(self.terminal, _TIOCSWINSZ, pack("HHHH", *checked_size(rows, columns), 0, 0))

    def close_lent(self) -> None:
        """Close the host's copies of the command's ends."""
        while self.lent:
            os.close(self.lent.pop())

    def read(self, descriptor: int, buffer: memoryview, capture: Capture, chunks: list[Chunk] | None) -> bool:
        """Read once from a ready stream, into `capture` and `chunks`. Returns false at EOF."""
        if self._wide_buffer is not None:
            buffer = self._wide_buffer
        try:
            size = os.readv(descriptor, (buffer,))
        except BlockingIOError:
            return True
        except OSError as error:
            # A terminal reports EIO instead of EOF when the command has closed it.
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
        """Close a stream at EOF."""
        del self.reading[descriptor]
        os.close(descriptor)

    def _widen(self, descriptor: int) -> None:
        # Only for a stream that has filled its pipe: resizing costs more than reading a short output.
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, FLOOD_BYTES)
        except OSError:
            # The user's limit for pipe memory is used up; the small pipe works too.
            return
        if self._wide_buffer is None:
            self._wide_buffer = memoryview(bytearray(FLOOD_BYTES))

    def write(self, data: bytes) -> bool:
        """Queue input for the command. Returns false when the command reads no more."""
        if self._input is None or self._input_ends:
            return False
        self._input += data
        if data:
            self._line_begins = data[-1:] in (b"\n", b"\r")
        return self.flush()

    def end_input(self) -> None:
        """Close the input after the queued data. On a terminal, send its end-of-file key."""
        if self.terminal >= 0 and self._input is not None and not self._input_ends:
            # In the middle of a line the first Ctrl-D only submits the line.
            self._input += _END_OF_INPUT if self._line_begins else 2 * _END_OF_INPUT
        self._input_ends = True
        self.flush()

    def flush(self) -> bool:
        """Write as much as the pipe takes. Returns false when the command reads no more."""
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
        """True if queued input waits for the pipe."""
        return bool(self._input)

    @property
    def takes_input(self) -> bool:
        """True if the input is open and nothing is queued."""
        return self._input is not None and not self._input and not self._input_ends

    def _close_input(self) -> None:
        self._input = None
        if self.stdin != self.terminal:
            os.close(self.stdin)
        self.stdin = -1

    def close(self) -> None:
        """Close everything."""
        if self._made:
            # A KeyboardInterrupt came before they were assigned.
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

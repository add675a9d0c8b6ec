"""Copies bytes between the descriptors that a stub sent and the pipes of a program outside. No call here waits.

The descriptors are the agent's: any kind of file, shared with other processes of the sandbox, and perhaps never read. So their flags are
not changed, and a pipe is opened once more, to have flags of its own.
"""

from __future__ import annotations

import os
import stat
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL, socket
from errno import EBADF, EINVAL, EIO
from select import POLLERR, POLLIN, POLLNVAL, POLLOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Filter(Protocol):
        """Sees the bytes of one stream before they are passed on. It may hold them back, or raise RefusedError."""

        def feed(self, data: bytes) -> bytes: ...
        def end(self) -> bytes: ...


CHUNK_BYTES = 256 * 1024
_TERMINAL_BYTES = 256  # that a terminal takes without waiting, once poll() reports it writable
_PRINTED = bytes(byte if (byte >= 32 and byte != 127) or byte in b"\t\n" else ord("?") for byte in range(256))


class RefusedError(Exception):
    """The broker does not do what was asked. The text says why."""


class InsideEnd:
    """A stream of the stub's: stdin to read from, or stdout and stderr to write to."""

    def __init__(self, descriptor: int, *, writes: bool) -> None:
        self.descriptor = descriptor
        self._socket: socket | None = None
        mode = os.fstat(descriptor).st_mode
        self.is_terminal = stat.S_ISCHR(mode) and os.isatty(descriptor)
        self._most = _TERMINAL_BYTES if self.is_terminal else CHUNK_BYTES
        if stat.S_ISFIFO(mode):
            self._reopen(os.O_WRONLY if writes else os.O_RDONLY)
        elif stat.S_ISSOCK(mode):
            self._socket = socket(fileno=descriptor)
        elif not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise RefusedError("a stream of the command is neither a file, a pipe, a socket nor a terminal")

    def _reopen(self, access: int) -> None:
        try:
            own = os.open(f"/proc/self/fd/{self.descriptor}", access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # Nothing reads it any more. The first write to the old descriptor says so.
            return
        os.close(self.descriptor)
        self.descriptor = own

    def read(self) -> bytes | None:
        """Return the next bytes, nothing at the end, or None if there are none now."""
        try:
            if self._socket is not None:
                return self._socket.recv(CHUNK_BYTES, MSG_DONTWAIT)
            return os.read(self.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            # Opened for writing only, a directory, or a terminal whose other end is closed.
            return b""

    def write(self, data: memoryview) -> int:
        """Write bytes, and return how many were taken. Raise BrokenPipeError if nobody will read them."""
        part = data[: self._most]
        try:
            if self._socket is not None:
                return self._socket.send(part, MSG_DONTWAIT | MSG_NOSIGNAL)
            return os.write(self.descriptor, part)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in (EBADF, EINVAL, EIO):
                raise BrokenPipeError from None
            raise

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            if self._socket is not None:
                self._socket.close()
            else:
                os.close(self.descriptor)
            self.descriptor = -1


class PipeEnd:
    """The broker's end of a pipe to a program."""

    is_terminal = False

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)

    def read(self) -> bytes | None:
        """Return the next bytes, nothing at the end, or None if there are none now."""
        try:
            return os.read(self.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None

    def write(self, data: memoryview) -> int:
        """Write bytes, and return how many were taken."""
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Copy:
    """One direction: from a source to a sink, through a filter. It holds one chunk at a time."""

    def __init__(self, source: InsideEnd | PipeEnd, sink: InsideEnd | PipeEnd, check: Filter | None = None) -> None:
        self.source = source
        self.sink = sink
        self.is_done = False
        self.moved = 0
        self._check = check
        self._pending = memoryview(b"")
        self._ended = False

    @property
    def is_waiting(self) -> bool:
        """Return whether bytes wait for the reader of the sink."""
        return bool(self._pending)

    def wanted(self) -> dict[int, int]:
        """Return the events to wait for. A sink is always watched, to notice when its reader goes away."""
        if self.is_done:
            return {}
        if self._pending:
            return {self.sink.descriptor: POLLOUT}
        return {self.sink.descriptor: 0, self.source.descriptor: POLLIN}

    def step(self, events: dict[int, int]) -> None:
        """Move one chunk. Ends the copy where the source has ended or the sink's reader is gone."""
        if self.is_done:
            return
        try:
            if self._pending:
                if events.get(self.sink.descriptor):
                    self._write()
            elif events.get(self.source.descriptor):
                self._read()
            elif events.get(self.sink.descriptor, 0) & (POLLERR | POLLNVAL):
                raise BrokenPipeError
        except (BrokenPipeError, ConnectionResetError):
            self.close()

    def _read(self) -> None:
        data = self.source.read()
        if data is None:
            return
        self.moved += len(data)
        self._ended = not data
        if self._check is not None:
            data = self._check.feed(data) if data else self._check.end()
        if self.sink.is_terminal:
            # An escape sequence could change what the user's terminal shows, or what it sends as input.
            data = data.translate(_PRINTED)
        self._pending = memoryview(data)
        self._write()

    def _write(self) -> None:
        if self._pending:
            self._pending = self._pending[self.sink.write(self._pending) :]
        if self._ended and not self._pending:
            self.close()

    def close(self) -> None:
        """Close both ends: the program, or the command inside, notices it as the end of a pipe."""
        self.is_done = True
        self.source.close()
        self.sink.close()

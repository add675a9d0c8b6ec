"""Moves bytes between two sockets until both have ended, nothing moves for too long, or the byte budget is used up.

Small transfers are copied through this process. Large ones stay in the kernel: splice() moves them through a pipe.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from fcntl import fcntl
from select import POLLIN, POLLOUT, poll
from socket import SHUT_WR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from socket import socket

IDLE_SECONDS = 900.0  # a language model or a build may send nothing for minutes
HALF_OPEN_SECONDS = 60.0  # after one side has ended
CHUNK_BYTES = 64 * 1024
BULK_BYTES = 512 * 1024  # from here on a pipe is worth its two descriptors
PIPE_BYTES = 1024 * 1024
_TURNS = 16  # steps of one direction before the other one is served
_F_SETPIPE_SZ = 1031
_SPLICE_MOVE_NONBLOCK = 1 | 2


class ByteBudgetError(Exception):
    """The sandbox has moved all the bytes of its limit, or sent all that it may send."""

    @property
    def is_about_sending(self) -> bool:
        """True if only sent bytes count."""
        return bool(self.args and self.args[0])


class ByteBudget:
    """The bytes that all connections together may still move. They count for a second budget too, if there is one."""

    def __init__(self, count: int | None, whole: ByteBudget | None = None) -> None:
        self._left = count
        self._whole = whole
        self._lock = allocate_lock()

    def take(self, count: int) -> None:
        """Count moved bytes. Raise ByteBudgetError if they are more than were left."""
        if self._whole is not None:
            self._whole.take(count)
        if self._left is None:
            return
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise ByteBudgetError(self._whole is not None)


class Flow:
    """A direction of a connection. A TLS source is always read through this process, never spliced, and so is one with a `check`."""

    is_needed = True  # the relay continues until it has ended

    def __init__(
        self,
        source: socket,
        sink: socket,
        budget: ByteBudget,
        *,
        is_tls: bool = False,
        check: Callable[[bytes], None] | None = None,  # reads all bytes before they are written, and may raise
    ) -> None:
        self.source = source
        self.sink = sink
        self.is_done = False
        self._budget = budget
        self._pending = memoryview(b"")
        self._pipe: tuple[int, ...] = ()
        self._in_pipe = 0
        self._moved = 0
        self._ended = False
        self._check = check
        self._may_splice = not is_tls and check is None
        self._would_block: tuple[type[OSError], ...] = (BlockingIOError,)
        if is_tls:
            from ssl import SSLWantReadError  # noqa: PLC0415  loaded already if the source speaks TLS

            self._would_block = (BlockingIOError, SSLWantReadError)

    @property
    def holds(self) -> bool:
        """True if bytes were read that are not written yet."""
        return bool(self._in_pipe or self._pending)

    def step(self) -> bool:
        """Read unless bytes wait to be written, then write. Return False if nothing more can be done now."""
        if not self.holds and (self._ended or not self._read()):
            return False
        if self._ended and not self.holds:
            self.is_done = True
            try:
                self.sink.shutdown(SHUT_WR)
            except OSError:
                # The other side has closed already.
                return False
            return False
        return self._write()

    def _read(self) -> bool:
        try:
            if self._moved < BULK_BYTES or not self._may_splice or not self._has_pipe():
                data = self.source.recv(CHUNK_BYTES)
                if self._check is not None:
                    self._check(data)
                self._pending = memoryview(data)
                count = len(data)
            else:
                count = os.splice(self.source.fileno(), self._pipe[1], PIPE_BYTES, flags=_SPLICE_MOVE_NONBLOCK)
                self._in_pipe = count
        except self._would_block:
            return False
        self._budget.take(count)
        self._moved += count
        self._ended = count == 0
        return True

    def _write(self) -> bool:
        try:
            if self._in_pipe:
                sink = self.sink.fileno()
                self._in_pipe -= os.splice(self._pipe[0], sink, self._in_pipe, flags=_SPLICE_MOVE_NONBLOCK)
            else:
                self._pending = self._pending[self.sink.send(self._pending) :]
        except BlockingIOError:
            return False
        return not self.holds

    def _has_pipe(self) -> bool:
        if not self._pipe:
            try:
                self._pipe = os.pipe()
            except OSError:
                # No descriptors are left. Copying is slower.
                self._may_splice = False
                return False
            try:
                fcntl(self._pipe[1], _F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                # The user's limit for the size of pipes is reached. A small pipe is slower.
                return True
        return True

    def close(self) -> None:
        """Close the pipe."""
        for descriptor in self._pipe:
            os.close(descriptor)
        self._pipe = ()


class DiscardedInput:
    """Reads and drops bytes that a client sends after its one request, in order to notice when the client hangs up."""

    is_needed = is_done = holds = False

    def __init__(self, client: socket) -> None:
        self.source = self.sink = client

    def step(self) -> bool:
        """Read and drop. Return False if there is nothing to read, and raise EOFError if the client has closed."""
        try:
            if not self.source.recv(CHUNK_BYTES):
                raise EOFError
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Do nothing: this holds no descriptor."""


def relay(flows: Sequence[Flow | DiscardedInput]) -> None:
    """Move bytes until every needed direction has ended. Raise TimeoutError if nothing moves any more."""
    for sock in (sock for flow in flows for sock in (flow.source, flow.sink)):
        sock.setblocking(False)
    is_more = False  # a flow used all its turns; poll() does not see bytes that the TLS layer has buffered
    try:
        while any(flow.is_needed and not flow.is_done for flow in flows):
            # A new poll object each time: poll() reports the hang-up of a registered socket for ever, even without events.
            poller = poll()
            for number, events in _wanted(flows).items():
                poller.register(number, events)
            seconds = HALF_OPEN_SECONDS if any(flow.is_done for flow in flows) else IDLE_SECONDS
            if not poller.poll(0 if is_more else seconds * 1000) and not is_more:
                raise TimeoutError("no data was transferred for too long")
            is_more = False
            for flow in flows:
                turns = _TURNS
                while turns and not flow.is_done and flow.step():
                    turns -= 1
                is_more = is_more or not turns
    finally:
        for flow in flows:
            flow.close()


def _wanted(flows: Sequence[Flow | DiscardedInput]) -> dict[int, int]:
    events: dict[int, int] = {}
    for flow in flows:
        if not flow.is_done:
            number, event = (flow.sink.fileno(), POLLOUT) if flow.holds else (flow.source.fileno(), POLLIN)
            events[number] = events.get(number, 0) | event
    return events

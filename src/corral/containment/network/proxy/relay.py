"""Moves bytes between two sockets until both have ended, none moves for too long, or the sandbox's share is used up.

What is little goes through this process; what is much stays in the kernel, by way of a pipe.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from fcntl import fcntl
from select import POLLIN, POLLOUT, poll
from socket import SHUT_WR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket

IDLE_SECONDS = 900.0  # a model that thinks, or a build that compiles, says nothing for minutes
HALF_OPEN_SECONDS = 60.0  # after one side has ended
CHUNK_BYTES = 64 * 1024
BULK_BYTES = 512 * 1024  # after which a pipe is worth its two descriptors
PIPE_BYTES = 1024 * 1024
_TURNS = 16  # of one direction before the other has its turn
_F_SETPIPE_SZ = 1031
_SPLICE_MOVE_NONBLOCK = 1 | 2


class ByteBudgetError(Exception):
    """The sandbox has moved as many bytes as it may."""


class ByteBudget:
    """The bytes that all connections together may still move."""

    def __init__(self, count: int | None) -> None:
        self._left = count
        self._lock = allocate_lock()

    def take(self, count: int) -> None:
        """Count bytes that were moved; SpentError when they are more than were left."""
        if self._left is None:
            return
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise ByteBudgetError


class Flow:
    """One direction. A source that speaks TLS is read through this process, however much it is."""

    is_needed = True  # the relay goes on until it has ended

    def __init__(self, source: socket, sink: socket, budget: ByteBudget, *, is_tls: bool = False) -> None:
        self.source = source
        self.sink = sink
        self.is_done = False
        self._budget = budget
        self._pending = memoryview(b"")
        self._pipe: tuple[int, ...] = ()
        self._in_pipe = 0
        self._moved = 0
        self._ended = False
        self._may_splice = not is_tls
        self._not_yet: tuple[type[OSError], ...] = (BlockingIOError,)
        if is_tls:
            from ssl import SSLWantReadError  # noqa: PLC0415  loaded already where TLS is spoken

            self._not_yet = (BlockingIOError, SSLWantReadError)

    @property
    def holds(self) -> bool:
        """Whether something was read that is not yet written."""
        return bool(self._in_pipe or self._pending)

    def step(self) -> bool:
        """Read if nothing waits to be written, then write; false when neither is possible now."""
        if not self.holds and (self._ended or not self._read()):
            return False
        if self._ended and not self.holds:
            self.is_done = True
            try:
                self.sink.shutdown(SHUT_WR)
            except OSError:
                # Gone already.
                return False
            return False
        return self._write()

    def _read(self) -> bool:
        try:
            if self._moved < BULK_BYTES or not self._may_splice or not self._has_pipe():
                data = self.source.recv(CHUNK_BYTES)
                self._pending = memoryview(data)
                count = len(data)
            else:
                count = os.splice(self.source.fileno(), self._pipe[1], PIPE_BYTES, flags=_SPLICE_MOVE_NONBLOCK)
                self._in_pipe = count
        except self._not_yet:
            return False
        self._budget.take(count)
        self._moved += count
        self._ended = count == 0
        return True

    def _write(self) -> bool:
        try:
            if self._in_pipe:
                self._in_pipe -= os.splice(
                    self._pipe[0], self.sink.fileno(), self._in_pipe, flags=_SPLICE_MOVE_NONBLOCK
                )
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
                # No descriptor is left for it; then it is slower.
                self._may_splice = False
                return False
            _widen(self._pipe[1])
        return True

    def close(self) -> None:
        """Give back the pipe."""
        for descriptor in self._pipe:
            os.close(descriptor)
        self._pipe = ()


class DiscardedInput:
    """What a client says behind its one request. It is for nobody, and read all the same: so its hanging up is noticed."""

    is_needed = is_done = holds = False

    def __init__(self, client: socket) -> None:
        self.source = self.sink = client

    def step(self) -> bool:
        """Read and forget; false when there is nothing, EOFError when the client has gone."""
        try:
            if not self.source.recv(CHUNK_BYTES):
                raise EOFError
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Nothing is held."""


def _widen(pipe: int) -> None:
    try:
        fcntl(pipe, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        # A user's pipes may be no larger than so much together; then it is slower.
        return


def relay(flows: Sequence[Flow | DiscardedInput]) -> None:
    """Move until every direction that is needed has ended; TimeoutError when nothing moves any more."""
    sockets = {sock.fileno(): sock for flow in flows for sock in (flow.source, flow.sink)}
    for sock in sockets.values():
        sock.setblocking(False)
    poller = poll()
    is_more = False  # something was left only because others had their turn; TLS may hold it where poll does not see
    try:
        while any(flow.is_needed and not flow.is_done for flow in flows):
            for number, events in _wanted(flows, sockets).items():
                if events:
                    poller.register(number, events)
                else:
                    # Or the hang-up of one who has nothing more to say would wake us for ever.
                    _unregister(poller, number)
            seconds = HALF_OPEN_SECONDS if any(flow.is_done for flow in flows) else IDLE_SECONDS
            if not poller.poll(0 if is_more else seconds * 1000) and not is_more:
                raise TimeoutError("nothing moved for too long")
            is_more = False
            for flow in flows:
                turns = _TURNS
                while turns and not flow.is_done and flow.step():
                    turns -= 1
                is_more = is_more or not turns
    finally:
        for flow in flows:
            flow.close()


def _wanted(flows: Sequence[Flow | DiscardedInput], sockets: dict[int, socket]) -> dict[int, int]:
    events = dict.fromkeys(sockets, 0)
    for flow in flows:
        if flow.is_done:
            continue
        if flow.holds:
            events[flow.sink.fileno()] |= POLLOUT
        else:
            events[flow.source.fileno()] |= POLLIN
    return events


def _unregister(poller: object, number: int) -> None:
    try:
        poller.unregister(number)  # type: ignore[attr-defined]  # poll objects have no public type
    except KeyError:
        return

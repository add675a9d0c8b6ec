"""The service of one session: accepts clients, and has `Calls` judge and run what they ask for. The client decides nothing.

The main thread watches the clients, so that a client that is killed ends its command at once. Each call has a thread of its own.
"""

from __future__ import annotations

import os
import select
from _socket import SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, socket
from _struct import pack
from _thread import allocate_lock, start_new_thread
from collections import deque
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, signal, valid_signals
from time import monotonic

from corral.sessions import protocol
from corral.sessions.peers import peer_process
from corral.sessions.socket_paths import LOCK_SUFFIX, SUFFIX, build_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Running(Protocol):
        """A command that a client waits for."""

        def signal(self, number: int) -> None: ...
        def kill(self) -> None: ...
        def wait(self) -> tuple[int, bytes, bytes]: ...

    class Calls(Protocol):
        """Judges and runs the calls of a session."""

        def start(self, message: tuple[Any, ...], client: int, streams: list[int]) -> Running | None: ...
        def answer(self, message: tuple[Any, ...], client: int) -> tuple[Any, ...]: ...
        def keeps_running(self) -> bool: ...
        def look(self) -> None: ...
        def owner(self) -> tuple[int, int] | None: ...
        def close(self) -> None: ...


IDLE_SECONDS = 900.0  # without a client and without a process that stays
LOOK_SECONDS = 5.0  # between two looks whether the service is still of use
LOOK_SECONDS_BUSY = 1.0  # the same while something runs, for which replaced protected files are mounted again
MESSAGE_SECONDS = 10  # for a client to send its request, or to take its answer
END_SECONDS = 2.0  # for the commands that are killed at the end
POLL_SECONDS = 0.05
MAX_CLIENTS = 256


class _Client:
    """One connection. `running` is its command, once that was started."""

    def __init__(self, sock: socket, pid: int) -> None:
        self.sock, self.pid = sock, pid
        self.running: Running | None = None
        self.is_gone = self.is_watched = False
        self._lock = allocate_lock()

    def begin(self, running: Running) -> None:
        """Note the command that was started. A client that is gone by now has it killed."""
        with self._lock:
            self.running = running
            if self.is_gone:
                running.kill()

    def hang_up(self) -> None:
        """End the command of a client that is gone."""
        with self._lock:
            self.is_gone = True
            if self.running is not None:
                self.running.kill()

    def signal(self, number: int) -> None:
        """Pass a signal on to the command."""
        with self._lock:
            if self.running is None:
                return
            if number == SIGKILL:
                self.running.kill()
            elif number in valid_signals():
                self.running.signal(number)


class Service:
    """Serves the clients of one socket until the session ends."""

    def __init__(self, path: str, calls: Calls, listener: socket) -> None:
        self._path, self._calls, self._listener = path, calls, listener
        self._file = os.stat(path)
        self._build = build_id()
        self._clients: dict[int, _Client] = {}
        self._done: deque[tuple[int, bool]] = deque()
        self._wake_read, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(listener.fileno(), select.POLLIN)
        self._poller.register(self._wake_read, select.POLLIN)
        self._owner = -1
        self._used_at = self._look_at = monotonic()
        self._ends = False

    def serve(self) -> None:
        """Serve until `corral stop`, the end of the host, or until nothing has used the session for a while."""
        for number in (SIGTERM, SIGHUP, SIGINT):
            signal(number, self._end_by_signal)
        try:
            while not self._ends:
                is_busy = self._clients or self._calls.keeps_running()
                seconds = LOOK_SECONDS_BUSY if is_busy else LOOK_SECONDS
                for descriptor, _ in self._poller.poll(seconds * 1000):
                    self._handle(descriptor)
                self._look()
        finally:
            self._close()

    def _end_by_signal(self, *_: object) -> None:
        self._ends = True
        self._wake_up()

    def _wake_up(self) -> None:
        try:
            os.write(self._wake, b"\0")
        except BlockingIOError:
            return  # the pipe is full, so the main thread wakes up

    def _handle(self, descriptor: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor == self._wake_read:
            os.read(descriptor, 4096)
            self._forget_done()
        elif descriptor == self._owner:
            self._ends = True
        elif descriptor in self._clients:
            self._hear(descriptor, self._clients[descriptor])

    def _look(self) -> None:
        """End if nobody needs the service any more."""
        if self._owner < 0 and (owner := self._calls.owner()) is not None:
            self._watch_owner(*owner)
        if monotonic() >= self._look_at:
            self._look_at = monotonic() + LOOK_SECONDS_BUSY
            self._calls.look()
        if self._clients:
            return
        is_unused = monotonic() - self._used_at > IDLE_SECONDS and not self._calls.keeps_running()
        if is_unused or (self._is_stale() and not self._calls.keeps_running()):
            self._ends = True

    def _is_stale(self) -> bool:
        """Return whether corral was upgraded, or another process removed the socket: no client can come any more."""
        try:
            return build_id() != self._build or not os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            return True

    def _watch_owner(self, pid: int, started: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
            with open(f"/proc/{pid}/stat", "rb") as file:
                is_same = int(file.read().rpartition(b")")[2].split()[19]) == started
        except OSError:
            # It has ended already.
            self._ends = True
            return
        if not is_same:
            os.close(descriptor)
            self._ends = True
            return
        self._owner = descriptor
        self._poller.register(descriptor, select.POLLIN)

    def _accept(self) -> None:
        try:
            descriptor, _ = self._listener._accept()  # type: ignore[attr-defined]  # of the C class
        except OSError:
            return
        sock = socket(fileno=descriptor)
        os.set_inheritable(descriptor, False)
        limit = pack("@ll", MESSAGE_SECONDS, 0)
        sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, limit)
        sock.setsockopt(SOL_SOCKET, SO_SNDTIMEO, limit)
        pid = peer_process(sock)
        if not pid or len(self._clients) >= MAX_CLIENTS:
            # The client runs the call without a session.
            sock.close()
            return
        client = _Client(sock, pid)
        self._clients[descriptor] = client
        try:
            start_new_thread(self._serve_client, (client,))
        except RuntimeError:
            del self._clients[descriptor]
            sock.close()

    def _hear(self, descriptor: int, client: _Client) -> None:
        """Handle a later message of a client: a signal, or its end."""
        try:
            message, descriptors = protocol.receive(client.sock)
            protocol.close_all(descriptors)
        except (OSError, protocol.ProtocolError):
            message = ()
        if message[:1] == (protocol.SIGNAL,) and len(message) == 2 and isinstance(message[1], int):
            client.signal(message[1])
            return
        self._poller.unregister(descriptor)
        client.is_watched = False
        client.hang_up()

    def _serve_client(self, client: _Client) -> None:
        descriptor = client.sock.fileno()
        descriptors: list[int] = []
        answer: tuple[Any, ...] = ()
        try:
            message, descriptors = protocol.receive(client.sock)
            if message:
                answer = self._answer(client, message, descriptors)
        except (OSError, protocol.ProtocolError, ValueError, TypeError):
            answer = (protocol.NOT_HERE,)
        finally:
            protocol.close_all(descriptors)
            if answer:
                _send(client.sock, answer)
            self._done.append((descriptor, True))
            self._wake_up()

    def _answer(self, client: _Client, message: tuple[Any, ...], descriptors: list[int]) -> tuple[Any, ...]:
        if message == (protocol.STOP,):
            self._end_by_signal()
            return (protocol.FACTS, {})
        is_start = message[0] in (protocol.RUN_PENDING, protocol.RUN, protocol.START, protocol.HOOK)
        if is_start and (self._ends or self._is_stale()):
            return (protocol.NOT_HERE,)
        if message[0] not in (protocol.RUN_PENDING, protocol.RUN):
            return self._calls.answer(message, client.pid)
        if len(descriptors) != 3:
            return (protocol.NOT_HERE,)
        running = self._calls.start(message, client.pid, descriptors)
        if running is None:
            return (protocol.NOT_HERE,)
        client.begin(running)
        self._done.append((client.sock.fileno(), False))
        self._wake_up()
        return (protocol.ENDED, *running.wait())

    def _forget_done(self) -> None:
        """Watch clients whose command was started, and close the connections that are done."""
        while self._done:
            descriptor, is_done = self._done.popleft()
            client = self._clients.get(descriptor)
            if client is None:
                continue
            if not is_done:
                self._poller.register(descriptor, select.POLLIN)
                client.is_watched = True
                continue
            del self._clients[descriptor]
            if client.is_watched:
                self._poller.unregister(descriptor)
            client.sock.close()
            self._used_at = monotonic()

    def _close(self) -> None:
        """End everything. New clients find no socket, and those that wait are told to run without a session."""
        try:
            if os.path.samestat(os.stat(self._path), self._file):
                os.unlink(self._path)
                os.unlink(self._path.removesuffix(SUFFIX) + LOCK_SUFFIX)
        except OSError:
            pass  # another service has taken its place
        self._listener.close()
        for client in list(self._clients.values()):
            client.hang_up()
        ends_at = monotonic() + END_SECONDS
        while self._clients and monotonic() < ends_at:
            # Their threads still send the results.
            select.select([self._wake_read], (), (), POLL_SECONDS)
            self._forget_done()
        self._calls.close()


def _send(sock: socket, answer: tuple[Any, ...]) -> None:
    try:
        protocol.send(sock, answer)
    except OSError:
        # The client is gone.
        return

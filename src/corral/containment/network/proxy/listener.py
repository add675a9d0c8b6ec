"""The proxy's process: takes listening sockets of the sandbox's own loopback from the keeper, and serves who comes, each in a thread.

It ends when the keeper does. It gives up all rights but to read files and to connect, since it reads what commands send.
"""

from __future__ import annotations

import os
import resource
import sys
from _thread import allocate_lock, stack_size, start_new_thread
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from select import POLLIN, poll
from socket import socket
from time import sleep

from corral.containment import protocol
from corral.containment.kernel import capabilities, landlock, process_tree
from corral.containment.kernel.limit_monitor import close_all_but
from corral.containment.network.proxy.connection import ClientConnection
from corral.containment.network.proxy.connection_log import ConnectionLog
from corral.containment.network.proxy.context import ProxyContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

STACK_BYTES = 512 * 1024  # of a thread; the resolver's own libraries want some
PAUSE_SECONDS = 0.05
PER_CONNECTION = 6  # descriptors: the client, the server, and a pipe each way for what is much
RESERVED = 64  # descriptors of the proxy's own: libraries, the log, what the resolver opens for a moment
_DESCRIPTORS = 64 * 1024  # where the connections are not bounded
_SHORTAGES = (EMFILE, ENFILE, ENOBUFS, ENOMEM)


def run(way: int, settings: int, book: int) -> NoReturn:
    """Be the proxy until the keeper hangs up."""
    try:
        close_all_but(way, settings, book)
        plan = protocol.unpack(protocol.read_body(settings))
        os.close(settings)
        desk = ProxyContext(plan, ConnectionLog(book))
        descriptors = _raised_limit(desk.connections)
        _give_up_rights()
        stack_size(STACK_BYTES)
        Server(socket(fileno=way), desk, descriptors).serve()
    except BaseException:  # noqa: BLE001  the last frame of this process: told to the keeper's stderr, then the end
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _raised_limit(connections: int | None) -> int:
    """Raise this process's soft limit of descriptors to what so many connections need; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if connections is None else RESERVED + PER_CONNECTION * (connections + 1)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = max(soft, wanted if hard == resource.RLIM_INFINITY else min(hard, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


def _give_up_rights() -> None:
    capabilities.disable_core_dumps()
    capabilities.set_no_new_privs()
    if landlock.version():
        landlock.confine((("/", "read"),), deny_tcp=False)
    capabilities.drop(())
    process_tree.hide()


class Server:
    """Accepts clients, so many at a time."""

    def __init__(self, way: socket, desk: ProxyContext, descriptors: int) -> None:
        self._way = way
        self._descriptors = descriptors
        # Given up for a moment to take in, and turn away, who comes when there is no other; -1 where another thread took it.
        self._spare = -1
        self._take_spare()
        self._desk = desk
        self._lock = allocate_lock()
        self._visits = 0
        self._listeners: dict[int, socket] = {}
        self._poller = poll()
        self._poller.register(way.fileno(), POLLIN)

    def serve(self) -> None:
        """Serve until the way to the keeper ends."""
        while True:
            for number, _ in self._poller.poll():
                if number != self._way.fileno():
                    self._accept(self._listeners[number])
                elif not self._take_listener():
                    return

    def _take_listener(self) -> bool:
        message, descriptors = protocol.receive(self._way)
        for descriptor in descriptors:
            listener = socket(fileno=descriptor)
            listener.setblocking(False)
            self._listeners[descriptor] = listener
            self._poller.register(descriptor, POLLIN)
        return bool(message)

    def _accept(self, listener: socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError as error:
            # It has gone again, or no file descriptor is free; the others must be served on.
            if error.errno in _SHORTAGES:
                self._accept_without_room(listener)
            return
        self._take_spare()
        limit, room = self._desk.connections, self._room()
        with self._lock:
            is_welcome = self._visits < room and (limit is None or self._visits < limit)
            self._visits += is_welcome
        if not is_welcome and limit is not None and limit <= room:
            self._turn_away(client, f"there are {limit} connections already", "limits.connections")
            return
        if not is_welcome:
            self._turn_away(client, self._shortage(f"there are {room} connections already"), "")
            return
        try:
            start_new_thread(self._visit, (client,))
        except RuntimeError:
            self._leave()
            self._turn_away(client, "no more threads are to be had", "")

    def _room(self) -> int:
        """Return how many connections the limit of descriptors has room for."""
        return max(0, self._descriptors - RESERVED - len(self._listeners)) // PER_CONNECTION

    def _shortage(self, detail: str) -> str:
        return (
            f"{detail}, and the proxy can open at most {self._descriptors} files. "
            "Raise the hard limit of the user who runs corral (ulimit -Hn)"
        )

    def _accept_without_room(self, listener: socket) -> None:
        """Turn away a client for whom there is no descriptor. In line it would wait without end."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            client, _ = listener.accept()
            self._turn_away(client, self._shortage("no file descriptor is free"), "")
        except OSError:
            # The whole machine is short of them, and a client in line would wake this loop without end.
            sleep(PAUSE_SECONDS)
        self._take_spare()

    def _take_spare(self) -> None:
        """Hold a descriptor in reserve. Where there is none now, the next client is the occasion to try again."""
        if self._spare < 0:
            try:
                self._spare = os.dup(self._way.fileno())
            except OSError:
                return

    def _turn_away(self, client: socket, detail: str, grant: str) -> None:
        self._desk.refuse("", detail, grant)
        client.close()

    def _visit(self, client: socket) -> None:
        try:
            ClientConnection(client, self._desk).serve()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._visits -= 1

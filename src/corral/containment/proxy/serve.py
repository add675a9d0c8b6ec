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

from corral.containment import landlock, privileges, tree, wire
from corral.containment.bounds import close_all_but
from corral.containment.proxy.desk import Desk
from corral.containment.proxy.journal import Journal
from corral.containment.proxy.visit import Visit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

STACK_BYTES = 512 * 1024  # of a thread; the resolver's own libraries want some
PAUSE_SECONDS = 0.05
_DESCRIPTORS = 64 * 1024  # a connection takes up to six
_SHORTAGES = (EMFILE, ENFILE, ENOBUFS, ENOMEM)


def run(way: int, settings: int, book: int) -> NoReturn:
    """Be the proxy until the keeper hangs up."""
    try:
        close_all_but(way, settings, book)
        plan = wire.unpack_plan(wire.read_body(settings))
        os.close(settings)
        _give_up_rights()
        stack_size(STACK_BYTES)
        Server(socket(fileno=way), Desk(plan, Journal(book))).serve()
    except BaseException:  # noqa: BLE001  the last frame of this process: told to the keeper's stderr, then the end
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _give_up_rights() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    privileges.forbid_core_dumps()
    privileges.gain_nothing()
    if landlock.version():
        landlock.confine((("/", "read"),), deny_tcp=False)
    privileges.drop(())
    tree.hide()


class Server:
    """Accepts clients, so many at a time."""

    def __init__(self, way: socket, desk: Desk) -> None:
        self._way = way
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
        message, descriptors = wire.receive(self._way)
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
            # It has gone again, or there is no descriptor left; the others must be served on.
            if error.errno in _SHORTAGES:
                # It waits in line, and would wake this loop without end.
                sleep(PAUSE_SECONDS)
            return
        limit = self._desk.connections
        with self._lock:
            is_welcome = limit is None or self._visits < limit
            self._visits += is_welcome
        if not is_welcome:
            self._turn_away(client, f"there are {limit} connections already", "limits.connections")
            return
        try:
            start_new_thread(self._visit, (client,))
        except RuntimeError:
            self._leave()
            self._turn_away(client, "no more threads are to be had", "")

    def _turn_away(self, client: socket, detail: str, grant: str) -> None:
        self._desk.refuse("", detail, grant)
        client.close()

    def _visit(self, client: socket) -> None:
        try:
            Visit(client, self._desk).serve()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._visits -= 1

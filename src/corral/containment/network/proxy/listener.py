"""The proxy process: receives listening sockets of the sandbox's loopback from the keeper, and serves each client in a thread.

It ends when the keeper closes its socket. Because it parses what commands send, it drops all rights except to read files and to
connect.
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
from corral.containment.network.proxy.upstream import ProxyContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

STACK_BYTES = 512 * 1024  # of a thread; the resolver's libraries need some
PAUSE_SECONDS = 0.05
PER_CONNECTION = 6  # descriptors: the client, the server, and a pipe in each direction
RESERVED = 64  # descriptors for libraries, the log and the resolver
_DESCRIPTORS = 64 * 1024  # if the number of connections is not limited
_SHORTAGES = (EMFILE, ENFILE, ENOBUFS, ENOMEM)


def run(keeper: int, settings: int, log: int) -> NoReturn:
    """Run the proxy until the keeper closes its end of the socket. The arguments are descriptors."""
    try:
        close_all_but(keeper, settings, log)
        plan = protocol.unpack(protocol.read_body(settings))
        os.close(settings)
        context = ProxyContext(plan, ConnectionLog(log))
        descriptors = _raise_descriptor_limit(context.connections)
        capabilities.disable_core_dumps()
        capabilities.set_no_new_privs()
        if landlock.version():
            landlock.confine((("/", "read"),), deny_tcp=False)
        capabilities.drop(())
        process_tree.hide()
        stack_size(STACK_BYTES)
        Server(socket(fileno=keeper), context, descriptors).serve()
    except BaseException:  # noqa: BLE001  the last frame of this process: it reports to the keeper's stderr
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _raise_descriptor_limit(connections: int | None) -> int:
    """Raise this process's soft limit of descriptors to the need of so many connections, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if connections is None else RESERVED + PER_CONNECTION * (connections + 1)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = max(soft, wanted if hard == resource.RLIM_INFINITY else min(hard, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


class Server:
    """Accepts clients up to the limit of connections, and refuses the others at once."""

    def __init__(self, keeper: socket, context: ProxyContext, descriptors: int) -> None:
        self._keeper = keeper
        self._descriptors = descriptors
        # Closed for a moment to accept, and refuse, a client when no other descriptor is free. -1 if a thread was faster.
        self._spare = -1
        self._reserve_spare()
        self._context = context
        self._lock = allocate_lock()
        self._clients = 0
        self._listeners: dict[int, socket] = {}
        self._poller = poll()
        self._poller.register(keeper.fileno(), POLLIN)

    def serve(self) -> None:
        """Serve until the keeper closes its socket."""
        while True:
            for number, _ in self._poller.poll():
                if number != self._keeper.fileno():
                    self._accept(self._listeners[number])
                elif not self._receive_listener():
                    return

    def _receive_listener(self) -> bool:
        message, descriptors = protocol.receive(self._keeper)
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
            # The client has gone, or no descriptor is free. The proxy must go on serving the others.
            if error.errno in _SHORTAGES:
                self._refuse_without_descriptor(listener)
            return
        self._reserve_spare()
        limit = self._context.connections
        room = max(0, self._descriptors - RESERVED - len(self._listeners)) // PER_CONNECTION
        with self._lock:
            is_welcome = self._clients < room and (limit is None or self._clients < limit)
            self._clients += is_welcome
        if not is_welcome and limit is not None and limit <= room:
            self._refuse(client, f"there are {limit} connections already", "limits.connections")
            return
        if not is_welcome:
            self._refuse(client, self._shortage(f"there are {room} connections already"))
            return
        try:
            start_new_thread(self._serve_client, (client,))
        except RuntimeError:
            self._count_down()
            self._refuse(client, "no more threads can be started")

    def _shortage(self, detail: str) -> str:
        return (
            f"{detail}, and the proxy can open at most {self._descriptors} files. "
            "Raise the user's hard limit of open files (ulimit -Hn)"
        )

    def _refuse_without_descriptor(self, listener: socket) -> None:
        # In the listen queue the client would wait for ever.
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            client, _ = listener.accept()
            self._refuse(client, self._shortage("no file descriptor is free"))
        except OSError:
            # The whole machine is short of descriptors. Without a pause the queued client would keep this loop busy.
            sleep(PAUSE_SECONDS)
        self._reserve_spare()

    def _reserve_spare(self) -> None:
        if self._spare < 0:
            try:
                self._spare = os.dup(self._keeper.fileno())
            except OSError:
                # The next client is the occasion to try again.
                return

    def _refuse(self, client: socket, detail: str, grant: str = "") -> None:
        self._context.refuse("", detail, grant)
        client.close()

    def _serve_client(self, client: socket) -> None:
        try:
            ClientConnection(client, self._context).serve()
        finally:
            self._count_down()

    def _count_down(self) -> None:
        with self._lock:
            self._clients -= 1

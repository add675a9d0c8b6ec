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
from socket import SOCK_DGRAM, socket
from time import sleep

from corral._lib.network.name_addresses import is_name_address
from corral.containment import protocol
from corral.containment.kernel import capabilities, landlock, process_tree
from corral.containment.network.proxy import HOST, OPEN
from corral.containment.network.proxy.connection import ClientConnection
from corral.containment.network.proxy.connection_log import ConnectionLog
from corral.containment.network.proxy.hold import Holds
from corral.containment.network.proxy.responder import Responder
from corral.containment.network.proxy.upstream import ProxyContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

STACK_BYTES = 512 * 1024  # of a thread; the resolver's libraries need some
PAUSE_SECONDS = 0.05
MAX_TAKEN = 16  # addresses that commands have taken, which are tried before a name is refused
PER_CONNECTION = 6  # descriptors: the client, the server, and a pipe in each direction
RESERVED = 64  # descriptors for libraries, the log and the resolver
_DESCRIPTORS = 64 * 1024  # if the number of connections is not limited
_SHORTAGES = (EMFILE, ENFILE, ENOBUFS, ENOMEM)


def run(keeper: int, lent: Sequence[int], listeners: Sequence[int]) -> NoReturn:
    """Run the proxy until the keeper closes its end of the socket. The arguments are descriptors.

    `lent` are those of the settings, of the log, and of the socket to the host where connections are held.
    """
    try:
        settings, log, *host = lent
        plan = protocol.unpack(protocol.read_body(settings))
        os.close(settings)
        holds = Holds(socket(fileno=host[0]), plan["hold_seconds"]) if host else None
        context = ProxyContext(plan, ConnectionLog(log), holds)
        descriptors = _raise_descriptor_limit(context.connections)
        capabilities.disable_core_dumps()
        capabilities.set_no_new_privs()
        if landlock.version():
            landlock.confine((("/", "read"),), deny_tcp=False)
        capabilities.drop(())
        process_tree.hide()
        stack_size(STACK_BYTES)
        if holds is not None:
            start_new_thread(holds.read_answers, ())
        server = Server(socket(fileno=keeper), context, descriptors)
        server.add(listeners)
        server.serve()
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
        self._names = context.names
        self._responders: dict[int, Responder] = {}
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
                if number in self._responders:
                    self._responders[number].serve()
                elif number == self._keeper.fileno():
                    if not self._receive_sockets()[0]:
                        return
                # A query that was answered just now may have closed it.
                elif number in self._listeners:
                    self._accept(self._listeners[number])

    def _receive_sockets(self) -> tuple[bytes, Sequence[int]]:
        """Receive a message of the keeper, and serve the sockets that came with it."""
        message, descriptors = protocol.receive(self._keeper)
        self.add(descriptors)
        return message, descriptors

    def add(self, descriptors: Sequence[int]) -> None:
        """Accept on these listening sockets, or answer DNS queries on them."""
        for descriptor in descriptors:
            sock = socket(fileno=descriptor)
            sock.setblocking(False)
            if sock.type == SOCK_DGRAM:
                own_name = os.uname().nodename
                self._responders[descriptor] = Responder(sock, self._names, self._allot, self._context.refuse, own_name)
            else:
                self._listeners[descriptor] = sock
            self._poller.register(descriptor, POLLIN)

    def _allot(self, name: str) -> str:
        """Have the keeper listen for a name below a wildcard. Return the address of the name, or "" if none is free."""
        ports = self._names.ports(name)
        for _ in range(MAX_TAKEN):
            if len(self._listeners) + len(ports) > self._descriptors // 2 or not self._names.has_room:
                return ""
            number = self._names.next_number()
            opened: list[int] = []
            # A command may listen on one of the ports already. Then the name gets another address.
            for port in ports:
                found = self._open(number, port)
                opened += found
                if not found:
                    self._close(opened)
                    break
            else:
                return self._names.assign(name, number)
        return ""

    def _open(self, number: int, port: int) -> Sequence[int]:
        request = OPEN.pack(number, port)
        self._keeper.send(request)
        while True:
            message, descriptors = self._receive_sockets()
            if not message:
                raise EOFError
            # Sockets that the keeper sent on its own may come first.
            if message == request:
                return descriptors

    def _close(self, descriptors: Sequence[int]) -> None:
        for descriptor in descriptors:
            self._poller.unregister(descriptor)
            self._listeners.pop(descriptor).close()

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
            start_new_thread(self._serve_client, (client, *listener.getsockname()[:2]))
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

    def _serve_client(self, client: socket, address: str, port: int) -> None:
        try:
            if (address, port) in self._names.granted_addresses:
                ClientConnection(client, self._context, (address, port)).serve()
                return
            if not is_name_address(address):
                # Also by its IPv6 address: a local port is one service of the host, which has one name in the log.
                is_local = port in self._context.local
                ClientConnection(client, self._context, (HOST, port) if is_local else None).serve()
                return
            name = self._names.name(address)
            # Without a name, the address was not given to any program.
            if name:
                ClientConnection(client, self._context, (name, port)).serve()
            else:
                client.close()
        finally:
            self._count_down()

    def _count_down(self) -> None:
        with self._lock:
            self._clients -= 1

"""Starts the proxy process for the keeper, and sends it listening sockets.

A socket stays in the namespace that it was made in, whichever process holds it. So a proxy that the keeper starts before it leaves
the host's network accepts on the sandbox's loopback, and connects from the host's network.
"""

from __future__ import annotations

import os
from _socket import (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    IPPROTO_IPV6,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SCM_RIGHTS,
    SO_REUSEADDR,
    SOCK_DGRAM,
    SOCK_SEQPACKET,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
    socketpair,
)
from errno import EACCES, EADDRNOTAVAIL, EAFNOSUPPORT, EINVAL, EPERM
from select import POLLIN, poll
from sys import byteorder

from corral.containment import protocol
from corral.containment.kernel import namespaces, process_tree
from corral.containment.kernel.limit_monitor import close_all_but
from corral.containment.network.proxy import HOST, OPEN, PORT, RESOLVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from corral.containment.plan import Plan

    Place = tuple[str, int]

_IPV6_FREEBIND = 78  # in the kernel's headers, not in Python's
LENT = 2  # descriptors that every proxy gets: its settings and its log
BACKLOG = 1024  # clients that connect at once, or while the proxy starts


class ProxyProcess:
    """The proxy as a child process of the keeper, in the host's network.

    `lent` are the descriptors of its settings, its log, and its way to ask the user. A proxy that waits loads its modules when the
    first client connects.
    """

    def __init__(self, lent: Sequence[int], *, waits: bool = False) -> None:
        self.way, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.pid = _fork_proxy(theirs, lent, (), waits=waits)
        theirs.close()
        # Wardens are forks of this process and must not inherit the settings, which may hold credentials.
        protocol.close_all(lent)
        self._poller: poll | None = None
        self._is_inside = False  # whether this process is in the sandbox's network namespace

    def listen(self, places: Sequence[Place]) -> None:
        """Give the proxy listening sockets of the network namespace that this process is in now."""
        for address in {address for address, _ in places if not _is_loopback(address)}:
            try:
                namespaces.add_loopback_address(address)
            except OSError:
                # No machine can have this address, such as one of multicast. Programs that know the proxy can still ask for it.
                continue
        send_listeners(self.way, places)
        self._is_inside = True

    def watch(self, poller: poll) -> None:
        """Have the keeper's loop call `answer` when the proxy asks for another socket."""
        self._poller = poller
        poller.register(self.way.fileno(), POLLIN)

    def answer(self, descriptor: int) -> None:
        """Open the socket that the proxy asks for, and send it. The proxy reads what commands send, so its request is checked."""
        if descriptor != self.way.fileno():
            return
        try:
            request = self.way.recv(OPEN.size + 1, MSG_DONTWAIT)
            if len(request) == OPEN.size:
                self._send_listener(request)
                return
        except OSError:
            # The proxy has gone, or does not read what it asked for.
            pass
        if self._poller is not None:
            self._poller.unregister(descriptor)

    def _send_listener(self, request: bytes) -> None:
        """Answer with a socket or without one. The proxy serves nobody until it has an answer."""
        listener = self._open(*OPEN.unpack(request))
        if listener is None:
            self.way.send(request, MSG_NOSIGNAL | MSG_DONTWAIT)
            return
        try:
            ancillary = [(SOL_SOCKET, SCM_RIGHTS, listener.fileno().to_bytes(4, byteorder))]
            self.way.sendmsg((request,), ancillary, MSG_NOSIGNAL | MSG_DONTWAIT)
        finally:
            listener.close()

    def _open(self, number: int, port: int) -> socket | None:
        """Listen on the address with a number, or return None if a command listens there already."""
        from corral._lib.network.name_addresses import address_of_number  # noqa: PLC0415  few sandboxes need it

        if not self._is_inside:
            return None
        try:
            listener = socket(AF_INET, SOCK_STREAM)
        except OSError:
            return None
        try:
            listener.bind((address_of_number(number), port))
            listener.listen(BACKLOG)
        except (OSError, ValueError):
            listener.close()
            return None
        return listener


class OnDemandProxy:
    """A proxy that refuses everything, and that the keeper starts for the first client: most commands use no network.

    It runs in the sandbox's network namespace, which has no way out.
    """

    def __init__(self, lent: Sequence[int]) -> None:
        self.pid = 0
        self.way, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self._lent = tuple(lent)
        self._standby = _Standby(theirs)

    def listen(self, places: Sequence[Place]) -> None:
        """Listen in the network namespace that this process is in now."""
        send_listeners(self.way, places)

    def watch(self, poller: poll) -> None:
        """Have the keeper's loop call `answer` for the descriptors of this proxy."""
        self._standby.watch(poller)

    def answer(self, descriptor: int) -> None:
        """Start the proxy if a client waits. It accepts on all listening sockets, and on later ones."""
        if self.pid or not self._standby.has_client(descriptor):
            return
        try:
            self.pid = _fork_proxy(self._standby.source, self._lent, self._standby.listeners)
        except OSError:
            # No process can be started. Without a listening socket, clients are refused.
            self.pid = -1
        self._standby.close()
        protocol.close_all(self._lent)


class _Standby:
    """Listening sockets on which no process accepts yet. Clients wait in their queues."""

    def __init__(self, source: socket) -> None:
        self.source = source
        self.listeners: list[int] = []
        self._poller: poll | None = None

    def watch(self, poller: poll) -> None:
        """Register the descriptors that `has_client` handles, also the later ones."""
        self._poller = poller
        poller.register(self.source.fileno(), POLLIN)

    def has_client(self, descriptor: int) -> bool:
        """Return whether a client waits at a readable descriptor. Raise EOFError if the source of sockets is gone."""
        if descriptor != self.source.fileno():
            return descriptor in self.listeners
        message, received = protocol.receive(self.source)
        if not message:
            raise EOFError
        for listener in received:
            self.listeners.append(listener)
            if self._poller is not None:
                self._poller.register(listener, POLLIN)
        return False

    def close(self) -> None:
        """Leave the sockets to the proxy that has copies of them."""
        for descriptor in (self.source.fileno(), *self.listeners):
            if self._poller is not None:
                self._poller.unregister(descriptor)
        self.source.close()
        protocol.close_all(self.listeners)
        self.listeners = []


def start_proxy(plan: Plan, lent: Sequence[int]) -> ProxyProcess | OnDemandProxy:
    """Make the proxy: a process in the host's network if a destination is granted, or can be while a connection waits."""
    can_ask = len(lent) > LENT
    if plan.grants_nothing and not can_ask:
        return OnDemandProxy(lent)
    return ProxyProcess(lent, waits=plan.grants_nothing)


def send_listeners(way: socket, places: Sequence[Place]) -> None:
    """Listen on this network namespace's loopback, and send the sockets to the proxy at the other end of `way`.

    They are the proxy's own, the responder's for DNS, and those of granted names and local ports.
    """
    for kind, place in ((SOCK_STREAM, (HOST, PORT)), (SOCK_DGRAM, RESOLVER), *((SOCK_STREAM, each) for each in places)):
        try:
            listener = socket(AF_INET6 if ":" in place[0] else AF_INET, kind)
        except OSError as error:
            if error.errno != EAFNOSUPPORT:
                raise
            # This kernel has no IPv6.
            continue
        try:
            if kind == SOCK_STREAM:
                listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            if listener.family == AF_INET6:
                # The kernel takes an address that was just added into use a moment later.
                listener.setsockopt(IPPROTO_IPV6, _IPV6_FREEBIND, 1)
            listener.bind(place)
            if kind == SOCK_STREAM:
                listener.listen(BACKLOG)
            protocol.send(way, b"listen", (listener.fileno(),))
        except OSError as error:
            # In a namespace of bubblewrap's own, an ordinary user may not bind ports below 1024, nobody can add addresses, and a
            # kernel may have no IPv6 there. The kernel refuses clients at such a place.
            if error.errno not in (EACCES, EPERM, EADDRNOTAVAIL, EINVAL):
                raise
        finally:
            listener.close()


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _fork_proxy(way: socket, lent: Sequence[int], listeners: Sequence[int], *, waits: bool = False) -> int:
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_proxy(way, lent, list(listeners), keeper, waits=waits)
    return pid


def _run_proxy(way: socket, lent: Sequence[int], listeners: list[int], keeper: int, *, waits: bool) -> NoReturn:
    try:
        process_tree.set_parent_death_signal(9)
        close_all_but(way.fileno(), *lent, *listeners)
        if os.getppid() == keeper:
            if waits:
                process_tree.hide()
                listeners = _await_client(way)
            from corral.containment.network.proxy.listener import run  # noqa: PLC0415  only this process needs it

            run(way.fileno(), lent, listeners)
    except EOFError:
        # The keeper ended before a client came.
        os._exit(0)
    finally:
        os._exit(1)


def _await_client(way: socket) -> list[int]:
    """Collect listening sockets until a client connects to one of them. Return the sockets."""
    standby, poller = _Standby(way), poll()
    standby.watch(poller)
    while True:
        for descriptor, _ in poller.poll():
            if standby.has_client(descriptor):
                return standby.listeners

"""Publishes ports of the sandbox's loopback on the host's loopback, for a server that the user wants to look at.

This is the reverse of the proxy: the listening sockets are made in the host's network namespace, and a process in the sandbox's
namespace accepts on them.
"""

from __future__ import annotations

import os
import sys
from _thread import stack_size, start_new_thread
from errno import EADDRINUSE
from select import POLLIN, poll
from socket import AF_INET, AF_INET6, SOCK_STREAM, create_server, socket
from time import sleep

from corral._lib.network.listening_sockets import listening_process
from corral.containment.backend import UnusableError
from corral.containment.kernel import capabilities, landlock, process_tree
from corral.containment.kernel.limit_monitor import close_all_but
from corral.containment.network.proxy import HOST, PORT
from corral.containment.network.proxy.relay import ByteBudget, Flow, relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

CONNECT_SECONDS = 10.0
HOST_IPV6 = "::1"
BACKLOG = 256
PAUSE_SECONDS = 0.05
STACK_BYTES = 256 * 1024


class PortPublisher:
    """The process that accepts on the published ports, as a child of the keeper."""

    def __init__(self, listeners: Mapping[int, socket], lives: int = -1) -> None:
        """Take the listening socket of each port. The process ends at the end of file of `lives`."""
        self.pid = 0
        self._listeners, self._lives = listeners, lives

    def start(self) -> None:
        """Start to accept, in the network namespace that this process is in now."""
        keeper = os.getpid()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run(self._listeners, self._lives, keeper)
        finally:
            for listener in self._listeners.values():
                listener.close()
            if self._lives >= 0:
                os.close(self._lives)


def publisher_of(port: int, listener: int, lives: int) -> PortPublisher:
    """Return the publisher of a port that the host listens on already."""
    return PortPublisher({port: socket(fileno=listener)}, lives)


def listen(port: int) -> socket:
    """Return a listening socket of a port of this network namespace's loopback. Raise UnusableError if it is taken."""
    if port == PORT:
        raise UnusableError(f"port {port} is the sandbox's own proxy, which cannot be published")
    try:
        return create_server((HOST, port), backlog=BACKLOG)
    except OSError as error:
        why = f"{taken} uses it" if error.errno == EADDRINUSE and (taken := listening_process(port)) else error.strerror
        raise UnusableError(f"port {port} cannot be published on this machine: {why}") from None


def _run(listeners: Mapping[int, socket], lives: int, keeper: int) -> NoReturn:
    try:
        descriptors = [listener.fileno() for listener in listeners.values()]
        close_all_but(*descriptors, *([] if lives < 0 else [lives]))
        process_tree.set_parent_death_signal(9)
        capabilities.set_no_new_privs()
        capabilities.drop(())
        if landlock.version():
            # No file at all, not even its own in /proc: all modules are loaded by now.
            landlock.confine((), deny_tcp=False)
        process_tree.hide()
        if os.getppid() == keeper:
            _serve(listeners, lives)
    except BaseException:  # noqa: BLE001  the last frame of this process: it reports to the keeper's stderr
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _serve(listeners: Mapping[int, socket], lives: int) -> None:
    stack_size(STACK_BYTES)
    poller = poll()
    known = {listener.fileno(): (port, listener) for port, listener in listeners.items()}
    for number in (*known, *([] if lives < 0 else [lives])):
        poller.register(number, POLLIN)
    while True:
        for number, _ in poller.poll():
            if number == lives:
                return
            try:
                port, listener = known[number]
                client, _ = listener.accept()
                start_new_thread(_forward, (client, port))
            except (OSError, RuntimeError):
                # The client has gone, or no descriptor or thread is free. Then a queued client would keep this loop busy.
                sleep(PAUSE_SECONDS)


def _forward(client: socket, port: int) -> None:
    with client:
        for family, host in ((AF_INET, HOST), (AF_INET6, HOST_IPV6)):
            try:
                # Not create_connection: it resolves even an address, with modules that are not loaded.
                with socket(family, SOCK_STREAM) as server:
                    server.settimeout(CONNECT_SECONDS)
                    server.connect((host, port))
                    relay((Flow(client, server, ByteBudget(None)), Flow(server, client, ByteBudget(None))))
                    return
            except ConnectionRefusedError:
                # No server listens at this address; Node's listen at ::1 where they are told `localhost`.
                continue
            except OSError:
                # One side has hung up.
                return

"""Publishes ports of the sandbox's loopback on the host's loopback, for a server that the user wants to look at.

This is the reverse of the proxy: the listening sockets are made in the host's network namespace, and a process in the sandbox's
namespace accepts on them.
"""

from __future__ import annotations

import os
import sys
from _thread import stack_size, start_new_thread
from select import POLLIN, poll
from socket import AF_INET, SOCK_STREAM, create_server, socket
from time import sleep

from corral.containment.backend import UnusableError
from corral.containment.kernel import capabilities, landlock, process_tree
from corral.containment.kernel.limit_monitor import close_all_but
from corral.containment.network.proxy import HOST, PORT
from corral.containment.network.proxy.relay import ByteBudget, Flow, relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

CONNECT_SECONDS = 10.0
PAUSE_SECONDS = 0.05
STACK_BYTES = 256 * 1024


class PortPublisher:
    """The process that accepts on the published ports, as a child of the keeper."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Listen in the network namespace that this process is in now."""
        self.pid = 0
        self._listeners: list[socket] = []
        for port in ports:
            if port == PORT:
                raise UnusableError(f"port {port} is the sandbox's own proxy, which cannot be published")
            try:
                self._listeners.append(create_server((HOST, port), backlog=256))
            except OSError as error:
                raise UnusableError(f"port {port} cannot be published on this machine: {error.strerror}") from None

    def start(self) -> None:
        """Start to accept, in the network namespace that this process is in now."""
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _run(self._listeners, keeper)
        for listener in self._listeners:
            listener.close()


def _run(listeners: Sequence[socket], keeper: int) -> NoReturn:
    try:
        close_all_but(*(listener.fileno() for listener in listeners))
        process_tree.set_parent_death_signal(9)
        capabilities.set_no_new_privs()
        capabilities.drop(())
        if landlock.version():
            # No file at all, not even its own in /proc: all modules are loaded by now.
            landlock.confine((), deny_tcp=False)
        process_tree.hide()
        if os.getppid() == keeper:
            _serve(listeners)
    except BaseException:  # noqa: BLE001  the last frame of this process: it reports to the keeper's stderr
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _serve(listeners: Sequence[socket]) -> None:
    stack_size(STACK_BYTES)
    poller = poll()
    known = {listener.fileno(): listener for listener in listeners}
    for number in known:
        poller.register(number, POLLIN)
    while True:
        for number, _ in poller.poll():
            try:
                client, _ = known[number].accept()
                start_new_thread(_forward, (client, known[number].getsockname()[1]))
            except (OSError, RuntimeError):
                # The client has gone, or no descriptor or thread is free. Then a queued client would keep this loop busy.
                sleep(PAUSE_SECONDS)


def _forward(client: socket, port: int) -> None:
    try:
        # Not create_connection: it resolves even an address, with modules that are not loaded.
        with client, socket(AF_INET, SOCK_STREAM) as server:
            server.settimeout(CONNECT_SECONDS)
            server.connect((HOST, port))
            relay((Flow(client, server, ByteBudget(None)), Flow(server, client, ByteBudget(None))))
    except OSError:
        # No server listens inside, or one side has hung up.
        return

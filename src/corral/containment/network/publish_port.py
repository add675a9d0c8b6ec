"""Ports of the sandbox's loopback that the machine's own reaches under the same number, for a server that somebody is to look at.

The other way round than the proxy: listening sockets that were made in the host's network, and a process in the sandbox's that accepts.
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
from corral.containment.network.proxy import PORT
from corral.containment.network.proxy.relay import ByteBudget, Flow, relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

HOST = "127.0.0.1"
CONNECT_SECONDS = 10.0
PAUSE_SECONDS = 0.05
STACK_BYTES = 256 * 1024


class PortPublisher:
    """The process that accepts, as its keeper knows it."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Listen in the network that this process is in now."""
        self.pid = 0
        self._listeners: list[socket] = []
        for port in ports:
            if port == PORT:
                raise UnusableError(f"port {port} is the sandbox's way out, which is for nobody else on this machine")
            try:
                self._listeners.append(create_server((HOST, port), backlog=256))
            except OSError as error:
                raise UnusableError(
                    f"port {port} of this machine cannot be given to the sandbox: {error.strerror}"
                ) from None

    def start(self) -> None:
        """Accept, in the network that this process is in by now."""
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
            # No file at all, not even its own in /proc: whatever is left to load has been.
            landlock.confine((), deny_tcp=False)
        process_tree.hide()
        if os.getppid() == keeper:
            _serve(listeners)
    except BaseException:  # noqa: BLE001  the last frame of this process: told to the keeper's stderr, then the end
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
                start_new_thread(_hand_on, (client, known[number].getsockname()[1]))
            except (OSError, RuntimeError):
                # It has gone again, or no descriptor or thread is left; then it waits in line, and would wake this loop without end.
                sleep(PAUSE_SECONDS)


def _hand_on(client: socket, port: int) -> None:
    try:
        # Not by create_connection: it looks even an address up, by way of modules that are not loaded.
        with client, socket(AF_INET, SOCK_STREAM) as server:
            server.settimeout(CONNECT_SECONDS)
            server.connect((HOST, port))
            relay((Flow(client, server, ByteBudget(None)), Flow(server, client, ByteBudget(None))))
    except OSError:
        # Nobody listens inside, or one of the two has hung up.
        return

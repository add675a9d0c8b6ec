"""Starts the proxy process for the keeper, and sends it listening sockets.

The keeper starts it before leaving the host's network namespace. A socket stays in the namespace that it was made in, whichever
process holds it: so the proxy accepts on the sandbox's loopback, and connects from the host's network.
"""

from __future__ import annotations

import os
from _socket import AF_INET, AF_UNIX, SO_REUSEADDR, SOCK_SEQPACKET, SOCK_STREAM, SOL_SOCKET, socket, socketpair

from corral.containment import protocol
from corral.containment.kernel import process_tree
from corral.containment.network.proxy import HOST, PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

BACKLOG = 1024  # clients that connect at once, or while the proxy starts


class ProxyProcess:
    """The proxy as a child process of the keeper."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.way, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        settings, log = descriptors
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.way.close()
            _run_proxy(theirs.fileno(), settings, log, keeper)
        theirs.close()
        # Wardens are forks of this process and must not inherit the settings, which may hold credentials.
        protocol.close_all((settings, log))

    def listen(self) -> None:
        """Give the proxy a listening socket of the network namespace that this process is in now."""
        send_listener(self.way)


def send_listener(way: socket) -> None:
    """Listen on this network namespace's loopback, and send the socket to the proxy at the other end of `way`."""
    listener = socket(AF_INET, SOCK_STREAM)
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind((HOST, PORT))
        listener.listen(BACKLOG)
        protocol.send(way, b"listen", (listener.fileno(),))
    finally:
        listener.close()


def _run_proxy(way: int, settings: int, log: int, keeper: int) -> None:
    try:
        process_tree.set_parent_death_signal(9)
        if os.getppid() == keeper:
            from corral.containment.network.proxy.listener import run  # noqa: PLC0415  only this process needs it

            run(way, settings, log)
    finally:
        os._exit(1)

"""The keeper's side of the network by name: a proxy that it starts before it leaves the host's network, and hands listening sockets.

A socket stays in the network it was made in, whoever holds it: so the proxy accepts on the sandbox's loopback, and connects outside.
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

BACKLOG = 1024  # clients that come while the proxy starts, or all at once


class ProxyProcess:
    """The proxy's process, as its keeper knows it."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.way, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        settings, book = descriptors
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.way.close()
            _become(theirs.fileno(), settings, book, keeper)
        theirs.close()
        # They are the proxy's alone: what is in the settings is not for wardens, which are forks of this process.
        protocol.close_all((settings, book))

    def listen(self) -> None:
        """Give the proxy a listening socket of the network that this process is in."""
        send_listener(self.way)


def send_listener(way: socket) -> None:
    """Listen on this network's loopback, and let the proxy at the other end of the way accept."""
    listener = socket(AF_INET, SOCK_STREAM)
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind((HOST, PORT))
        listener.listen(BACKLOG)
        protocol.send(way, b"listen", (listener.fileno(),))
    finally:
        listener.close()


def _become(way: int, settings: int, book: int, keeper: int) -> None:
    try:
        process_tree.set_parent_death_signal(9)
        if os.getppid() == keeper:
            from corral.containment.network.proxy.listener import run  # noqa: PLC0415  only this process needs it

            run(way, settings, book)
    finally:
        os._exit(1)

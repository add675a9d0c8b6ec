"""Connects to a granted port of this machine's loopback, if the user or the system serves it.

Another user of the machine could listen there in the place of the service, and would get what commands send.
"""

from __future__ import annotations

import os
from _socket import AF_INET, AF_INET6, IPPROTO_TCP, SOCK_STREAM, TCP_NODELAY
from socket import SOCK_CLOEXEC, socket

from corral._lib.network.listening_sockets import serving_users
from corral._lib.network.local_ports import never_granted
from corral.containment.network.proxy.outcome_errors import RefusedError, UnreachableError

CONNECT_SECONDS = 15.0
_SYSTEM_USERS = (
    range(1000),
    range(61184, 65520),
)  # by convention; the second are those of services without a fixed user
_NOBODY = 65534


def connect_local(port: int) -> tuple[socket, str]:
    """Return a connection to a port of this machine's loopback, and the address."""
    reason = never_granted(port)
    if reason:
        raise RefusedError(f"port {port} of this machine is never opened to commands: {reason}")
    last = "no server listens there"
    for address in ("127.0.0.1", "::1"):
        sock = socket(AF_INET6 if ":" in address else AF_INET, SOCK_STREAM | SOCK_CLOEXEC)
        try:
            sock.settimeout(CONNECT_SECONDS)
            sock.connect((address, port))
            sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            last = error.strerror or str(error)
            continue
        # After connecting: a server that takes the place of another one later gets no connection of this one. One that stopped
        # to listen holds the other end.
        users = serving_users(address, port, sock.getsockname()[1])
        foreign = [user for user in users if not _is_trusted(user)]
        if foreign or not users:
            sock.close()
            who = (
                f"another user of this machine (uid {foreign[0]})"
                if foreign
                else "a user whom the kernel does not name"
            )
            raise RefusedError(f"{who} listens there")
        return sock, address
    raise UnreachableError(last)


def _is_trusted(user: int) -> bool:
    if user == os.geteuid() or any(user in users for users in _SYSTEM_USERS):
        return True
    # In a user namespace, every user that it does not know has this number.
    return user == _NOBODY and _knows_all_users()


def _knows_all_users() -> bool:
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() == ["0", "0", "4294967295"]
    except OSError:
        return False

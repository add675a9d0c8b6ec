"""Checks who is at the other end of a session's socket: a process of the same user, in the same namespaces."""

from __future__ import annotations

import os
from _socket import SO_PEERCRED, SOL_SOCKET
from _struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

_CREDENTIALS = Struct("=iII")
# A command of a sandbox is in others, whatever path led it to the socket.
_NAMESPACES = ("user", "mnt", "pid")


def peer_process(sock: socket) -> int:
    """Return the pid of the peer, or 0 if the peer may not use a session of this process."""
    pid, user, _ = _CREDENTIALS.unpack(sock.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid() or pid <= 0:
        return 0
    try:
        same = all(os.path.samestat(os.stat(f"/proc/{pid}/ns/{name}"), _own(name)) for name in _NAMESPACES)
    except OSError:
        # It has ended, or hides itself, as a process of a sandbox does.
        return 0
    return pid if same else 0


def _own(name: str) -> os.stat_result:
    if name not in _seen:
        _seen[name] = os.stat(f"/proc/self/ns/{name}")
    return _seen[name]


_seen: dict[str, os.stat_result] = {}

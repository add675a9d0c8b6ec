"""Finds the users and the processes that listen on a port of this machine's loopback, or hold the other end of a connection."""

from __future__ import annotations

import os

_LISTEN = "0A"
MAX_NAMESPACES = 64  # against a user with very many sandboxes
# As /proc/net shows them: loopback and every address, also in IPv6 form.
ADDRESSES = {
    "127.0.0.1": (
        *("0100007F", "00000000", "0000000000000000FFFF00000100007F", "0000000000000000FFFF000000000000"),
        "00000000000000000000000000000000",
    ),
    "::1": ("00000000000000000000000001000000", "00000000000000000000000000000000"),
}


def listening_users(address: str, port: int) -> list[int]:
    """Return the users whose sockets listen on a loopback address and a port."""
    return [int(row[7]) for row in _rows(address, port)]


def serving_users(address: str, port: int, client_port: int) -> list[int]:
    """Return the same users, and the one who has accepted the connection that a client's port has there.

    That one may listen no more. For a connection that nobody has accepted, the kernel shows root or the listening user.
    """
    return [int(row[7]) for row in _rows(address, port, client_port)]


def listening_process(port: int, address: str = "127.0.0.1") -> str:
    """Return the program and the process that listen on a port, for a message; "" where the kernel does not tell."""
    sockets = {f"socket:[{row[9]}]" for row in _rows(address, port)}
    for process in filter(str.isdigit, os.listdir("/proc") if sockets else ()):
        try:
            if any(os.readlink(f"/proc/{process}/fd/{each}") in sockets for each in os.listdir(f"/proc/{process}/fd")):
                with open(f"/proc/{process}/comm", encoding="utf-8", errors="replace") as file:
                    name = "".join(each if each.isprintable() else "?" for each in file.read().strip())
                    return f"{name} (process {process})"
        except OSError:
            # It belongs to another user, or has ended.
            continue
    return ""


def is_served_in_another_namespace(port: int, but_not: int = 0) -> bool:
    """Return whether a process of this user listens on a port of another loopback than this process's and that of `but_not`."""
    known = {_namespace("self"), _namespace(str(but_not))}
    for process in filter(str.isdigit, os.listdir("/proc")):
        namespace = _namespace(process)
        if not namespace or namespace in known:
            continue
        known.add(namespace)
        if os.geteuid() in [int(row[7]) for row in _rows("127.0.0.1", port, folder=f"/proc/{process}/net")]:
            return True
        if len(known) > MAX_NAMESPACES:
            break
    return False


def _namespace(process: str) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:
        return ""  # another user's, or it has ended


def _rows(address: str, port: int, client_port: int = -1, folder: str = "/proc/net") -> list[list[str]]:
    """Return the fields of the sockets that listen on a port, or are connected to a client's, as /proc/net shows them."""
    places, clients = ({f"{known}:{each:04X}" for known in ADDRESSES[address]} for each in (port, client_port))
    found = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{folder}/{name}", encoding="ascii") as file:
                rows = [line.split() for line in file]
        except OSError:
            # This kernel has no IPv6, or the process has ended.
            continue
        at_port = [row for row in rows if len(row) > 9 and row[1] in places]
        found += [row for row in at_port if row[3] == _LISTEN or row[2] in clients]
    return found

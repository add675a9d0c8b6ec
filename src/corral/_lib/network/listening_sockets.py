"""Finds the users that listen on a port of this machine's loopback."""

from __future__ import annotations

_LISTEN = "0A"
# As /proc/net shows them: loopback and every address, also in IPv6 form.
_ADDRESSES = {
    "127.0.0.1": (
        *("0100007F", "00000000", "0000000000000000FFFF00000100007F", "0000000000000000FFFF000000000000"),
        "00000000000000000000000000000000",
    ),
    "::1": ("00000000000000000000000001000000", "00000000000000000000000000000000"),
}


def listening_users(address: str, port: int) -> list[int]:
    """Return the users whose sockets listen on a loopback address and a port."""
    places = {f"{known}:{port:04X}" for known in _ADDRESSES[address]}
    found = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as file:
                rows = [line.split() for line in file]
        except OSError:
            # This kernel has no IPv6.
            continue
        found += [int(row[7]) for row in rows if len(row) > 7 and row[3] == _LISTEN and row[1] in places]
    return found

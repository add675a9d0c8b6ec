"""Lists the ports on which processes listen in the network namespace of another process."""

from __future__ import annotations

from corral._lib.network.listening_sockets import ADDRESSES

_LISTENS = b"0A"
_PLACES = {address.encode() for shown in ADDRESSES.values() for address in shown}


def listening_ports(process: int) -> list[int]:
    """Return the TCP ports of localhost on which something listens, sorted. Empty where the kernel does not tell.

    Other addresses of the sandbox's loopback are those of granted names, on which the proxy listens.
    """
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{process}/net/{name}", "rb") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, port = fields[1].rpartition(b":")
            if fields[3] == _LISTENS and address in _PLACES:
                found.add(int(port, 16))
    return sorted(found)

"""Lists the ports on which processes listen in the network namespace of another process."""

from __future__ import annotations

_LISTENS = b"0A"


def listening_ports(process: int) -> list[int]:
    """Return the TCP ports on which something listens, sorted. Empty where the kernel does not tell."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{process}/net/{name}", "rb") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENS:
                found.add(int(fields[1].rpartition(b":")[2], 16))
    return sorted(found)

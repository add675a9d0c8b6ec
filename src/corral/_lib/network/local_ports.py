"""Lists the ports of this machine's loopback that no grant opens to commands. Pure."""

from __future__ import annotations

from corral._lib.network.network_grants import is_address, is_loopback_name, parse_authority

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Services that hand out the machine, or the user's sessions, to every program that reaches them.
_NEVER = {
    "SSH takes commands for the machine": (22,),
    "corral itself answers there inside the sandbox": (53, 61080),
    "the API of a container engine is root access to the machine": (2375, 2376, 2377, 4243),
    "the API of a cluster runs programs on its machines": (
        *(2379, 2380, 4646, 4647, 4648, 6443, 6550, 8001, 9345),
        *(10248, 10249, 10250, 10255, 10256, 10257, 10259, 16443, 19443),
    ),
    "the debug port of a browser gives its pages and logins": (2828, 4444, 6000, 9222, 9223, 9515),
    "the debug port of an agent, an editor or another program runs code in it": (
        *(2345, 5005, 5037, 5678, 5858, 6274, 6277, 9229, 9230),
    ),
}
_REASONS = {port: reason for reason, ports in _NEVER.items() for port in ports}
_EVERY = ("0.0.0.0", "::")  # noqa: S104  a client that connects to these reaches loopback
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def never_granted(port: int) -> str:
    """Return why a port of this machine is never opened to commands, or "" if it can be."""
    return _REASONS.get(port, "")


def check_destination(text: str) -> None:
    """Raise ValueError for a port of this machine that is never opened, and for an address that is no server's."""
    host, port = parse_authority(text.removeprefix("*."))
    if is_loopback_name(host) or host in _EVERY or host == "::1" or (host.startswith("127.") and is_address(host)):
        check_port(port)
    if host in _EVERY:
        raise ValueError(f"{host} is not the address of a server; write 127.0.0.1:{port} for a port of this machine")


def check_port(port: int) -> None:
    """Raise ValueError for a port that is never opened."""
    reason = never_granted(port)
    if reason:
        raise ValueError(f"port {port} of this machine is never opened to commands: {reason}")


def is_loopback_host(host: str) -> bool:
    """Return whether a canonical host means this machine's loopback."""
    return host in LOOPBACK


def loopback_ports(destinations: Iterable[str]) -> list[int]:
    """Return the ports of destinations such as `127.0.0.1:5432`, which mean the same as local ports."""
    begins = ("127.0.0.1:", "[::1]:", "localhost:")
    return [parse_authority(text)[1] for text in destinations if text.startswith(begins)]

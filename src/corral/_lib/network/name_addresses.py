"""Gives granted names loopback addresses of the sandbox, so that programs reach them that use no proxy. Pure.

A program asks for a granted name and gets an address of its own on the sandbox's loopback. The proxy accepts there, and the
address says which name the program meant.
"""

from __future__ import annotations

from corral._lib.network import network_grants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_WILDCARD_NAMES = 1024  # in the life of a proxy, against a command that sends data as names below a wildcard
MAX_OTHER_LINES_BYTES = 256 * 1024  # of the machine's /etc/hosts; some block advertisements with megabytes
_NETWORK = "127.64."
_MAX_NUMBER = 0xFFFE
# No search list: a name is the whole name. One attempt, which the responder always answers; the time is for a busy machine.
RESOLV_CONF = "nameserver 127.0.0.1\nsearch .\noptions timeout:5 attempts:1 ndots:1\n"


def address_of_number(number: int) -> str:
    """Return the loopback address with a number from 1."""
    if not 0 < number <= _MAX_NUMBER:
        raise ValueError(f"{number} is not the number of an address")
    return f"{_NETWORK}{number >> 8}.{number & 255}"


def is_name_address(address: str) -> bool:
    """Return whether an address is one that stands for a name."""
    return address.startswith(_NETWORK)


class NameAddresses:
    """The names of one sandbox and their addresses. Names below a wildcard get theirs when a program asks for them."""

    def __init__(self, granted: Collection[str]) -> None:
        self._grants = network_grants.Grants(granted)
        self._ports = sorted({int(text.rpartition(":")[2]) for text in granted})
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._last = 0
        self._allowed: set[tuple[str, int]] = set()
        self.granted_addresses: set[tuple[str, int]] = set()
        for text in granted:
            name, port = network_grants.parse_authority(text.removeprefix("*."))
            if network_grants.is_address(name):
                if name != "::1" and not name.startswith("127."):
                    self.granted_addresses.add((name, port))
            elif (
                not text.startswith("*.") and not network_grants.is_loopback_name(name) and name not in self._addresses
            ):
                self.assign(name, self.next_number())
        self._fixed = len(self._addresses)

    def next_number(self) -> int:
        """Return the number of an address that stands for no name. The same one comes again only after all others."""
        while True:
            self._last = self._last % _MAX_NUMBER + 1
            if address_of_number(self._last) not in self._names:
                return self._last

    def assign(self, name: str, number: int) -> str:
        """Give a name the address with a number, and return the address."""
        address = address_of_number(number)
        self._addresses[name] = address
        self._names[address] = name
        return address

    @property
    def has_room(self) -> bool:
        """True if another name below a wildcard may get an address."""
        return len(self._addresses) - self._fixed < MAX_WILDCARD_NAMES

    def address(self, name: str) -> str:
        """Return the address of a canonical name, or ""."""
        return self._addresses.get(name, "")

    def name(self, address: str) -> str:
        """Return the name that an address stands for, or ""."""
        return self._names.get(address, "")

    def allow(self, destination: str) -> None:
        """Grant one more destination, which the user allowed while a connection was held."""
        self._allowed.add(network_grants.parse_authority(destination))

    def ports(self, name: str) -> list[int]:
        """Return the ports at which a canonical name is granted."""
        granted = {port for port in self._ports if self._grants.covering(name, port)}
        return sorted(granted | {port for allowed, port in tuple(self._allowed) if allowed == name})

    def listeners(self) -> tuple[tuple[str, int], ...]:
        """Return the addresses and ports of the names that are granted as such, and the granted addresses themselves."""
        named = ((address, port) for name, address in self._addresses.items() for port in self.ports(name))
        return (*named, *((address, port) for address, port in sorted(self.granted_addresses)))

    def hosts_file(self, original: str, own_names: Iterable[str]) -> str:
        """Return the text of /etc/hosts inside: the granted names, then this machine's own from the original.

        Other lines are left out, because no command reaches their addresses.
        """
        lines = [f"{address} {name}" for name, address in self._addresses.items()]
        own = set(own_names)
        for line in original[:MAX_OTHER_LINES_BYTES].splitlines():
            address, *names = line.partition("#")[0].split()[:64] or [""]
            kept = [name for name in names if name.lower().rstrip(".") not in self._addresses]
            if kept and (address.startswith(("127.", "::1", "fe00:", "ff0")) or own.intersection(kept)):
                lines.append(" ".join((address, *kept)))
        if not any("localhost" in line.split() for line in lines):
            lines.append("127.0.0.1 localhost")
        return "\n".join([*lines, ""])

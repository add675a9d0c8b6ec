"""Parses the addresses of package registries from the texts of tools and files. Pure: a text gives addresses or nothing."""

from __future__ import annotations

from corral._lib.network.network_grants import format_destination, parse_authority
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ADDRESS = 2048  # characters
_PORTS = {"http": 80, "https": 443}
_PREFIXES = ("sparse+", "registry+")  # cargo's
_SEPARATORS = str.maketrans(dict.fromkeys("\"'<>,;|()[]{}", " "))


@frozen
class Address(Record):
    """The address of a registry, without a password."""

    scheme: str
    host: str
    port: int
    path: str = ""
    has_user: bool = False  # whether the text had a user before the host

    @property
    def destination(self) -> str:
        """Host and port in the form of a grant."""
        return format_destination(self.host, self.port)

    @property
    def text(self) -> str:
        """The address as text; the port stands there if it is not the scheme's."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{name}{'' if self.port == _PORTS[self.scheme] else f':{self.port}'}/{self.path}"

    def is_default_port(self) -> bool:
        """Say whether the port is the scheme's own."""
        return self.port == _PORTS[self.scheme]


def parse_address(text: str) -> Address | None:
    """Return the address that a text is: http or https, a canonical host, a path. None for anything else."""
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    scheme, colon, rest = text.partition("://")
    scheme = scheme.lower()
    if not colon or scheme not in _PORTS or len(text) > MAX_ADDRESS or not text.isascii() or not text.isprintable():
        return None
    # Parsers disagree about a backslash and a space: one program reads another host than the next.
    if "\\" in rest or " " in rest:
        return None
    end = min((rest.index(mark) for mark in "/?#" if mark in rest), default=len(rest))
    authority, path = rest[:end], rest[end:].partition("#")[0].partition("?")[0].removeprefix("/")
    user, at, authority = authority.rpartition("@")
    try:
        host, port = parse_authority(authority, _PORTS[scheme])
    except ValueError:
        return None
    return Address(scheme, host, port, path, bool(user or at))


def addresses_in(text: str) -> list[Address]:
    """Return the addresses among the words of a text, each once."""
    found = (parse_address(word) for word in text.translate(_SEPARATORS).split() if "://" in word)
    return list(dict.fromkeys(address for address in found if address is not None))


def settings_in(text: str, keys: Iterable[str]) -> list[Address]:
    """Return the addresses in the lines `section.name='value'` whose name is one of the keys."""
    from fnmatch import fnmatchcase  # noqa: PLC0415  not for a hook

    found: list[Address] = []
    for line in text.splitlines():
        name, _, value = line.partition("=")
        # bundle prints the mirrored address in the name, as `mirror.https://index.example/`.
        last = name if "://" in name else name.strip().rpartition(".")[2]
        if any(fnmatchcase(last.strip(), key) for key in keys):
            found += addresses_in(value)
    return list(dict.fromkeys(found))


def go_addresses(text: str) -> list[Address]:
    """Return the addresses in the lines GOPROXY and GOSUMDB of `go env`."""
    lines = [*text.splitlines(), "", ""]
    found = addresses_in(lines[0])
    # "NAME", "NAME+KEY" or "NAME ADDRESS": without an address, the name is the host.
    words = lines[1].split()
    if len(words) > 1:
        found += addresses_in(words[1])
    elif words and words[0] != "off":
        address = parse_address(f"https://{words[0].partition('+')[0]}")
        found += [address] if address is not None and "." in address.host else []
    return list(dict.fromkeys(found))

"""Grants of the network by name, and whether a host and port that somebody asks for fall under one.

Pure and strict: a text has one canonical form or is refused, so that no two readers of it can see different hosts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAME = 253  # characters of a host name, by RFC 1035
MAX_LABEL = 63
MAX_SHOWN = 80  # of a refused text; it may be a megabyte
MAX_PORT = 65535
TLS_PORTS = frozenset({443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 6443, 8443})
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_DIGITS = frozenset("0123456789")
_HEADER = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~")
# What says where a request ends or whom it is for: a second word on it would be another request to somebody.
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
)
_HEX_DIGITS = frozenset("0123456789abcdef")
# Below a country, as in co.uk: what everybody there has names under, as below com.
_ANYBODYS = frozenset(["ac", "co", "com", "edu", "gob", "gov", "mil", "ne", "net", "nom", "or", "org"])


def parse_host(text: str) -> str:
    """Return the canonical form of a host as it is asked for: a name in lower case, or an address; else ValueError."""
    if not text.isascii():
        raise ValueError(f"{_shown(text)} is not ASCII; write a name as it stands in the DNS, xn--…")
    if text.startswith("[") or ":" in text:
        return _ipv6(text.removeprefix("[").removesuffix("]") if text.startswith("[") and text.endswith("]") else text)
    name = text.lower()
    # One dot at the end says the same: from the root.
    name = name.removesuffix(".")
    if len(name) > MAX_NAME or not all(_is_label(label) for label in name.split(".")):
        raise ValueError(f"{_shown(text)} is no host name")
    if is_address(name) and text != _ipv4(name):
        raise ValueError(f"{_shown(text)} is no address in the usual form, such as 192.0.2.1")
    return name


def parse_port(text: str) -> int:
    """Return a port as it is written: decimal, from 1 to 65535, without zeros in front; else ValueError."""
    if not 0 < len(text) <= 5 or not _DIGITS.issuperset(text) or text.startswith("0") or int(text) > MAX_PORT:
        raise ValueError(f"{_shown(text)} is no port")
    return int(text)


def parse_authority(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return host and port of `host:port`; where there is no port, the default; else ValueError."""
    if text.startswith("["):
        name, bracket, rest = text.partition("]")
        name += bracket
    else:
        name, colon, after = text.partition(":")
        rest = colon + after
    if not rest and default_port is not None:
        return parse_host(name), default_port
    if not rest.startswith(":"):
        raise ValueError(f"{_shown(text)} has no port; write {_shown(text, quoted=False)}:443")
    return parse_host(name), parse_port(rest[1:])


def format_destination(name: str, number: int) -> str:
    """Return host and port as a grant writes them."""
    return f"[{name}]:{number}" if ":" in name else f"{name}:{number}"


def is_address(name: str) -> bool:
    """Say whether a canonical host is an address and no name."""
    last = name.rpartition(".")[2]
    # As browsers have it: a name whose last label is a number is an address in some notation, such as 127.1 or 0x7f000001.
    return ":" in name or _DIGITS.issuperset(last) or (last.startswith("0x") and _HEX_DIGITS.issuperset(last[2:]))


def parse_grant(text: object) -> str:
    """Return the canonical form of a grant, `name:port`, `*.name:port` or `address:port`; else ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no text such as 'index.example:443'")
    wild = text.startswith("*.")
    name, number = parse_authority(text[2:] if wild else text)
    if text.partition(":")[0].endswith("."):
        raise ValueError(f"{_shown(text)} ends its name with a dot; leave it out")
    if wild and (is_address(name) or "." not in name or _is_anybodys(name)):
        raise ValueError(
            f"{_shown(text)} is too wide; after *. there must be a domain of one owner, as in *.example.org"
        )
    return ("*." if wild else "") + format_destination(name, number)


def host_entry(text: object) -> str:
    """Return the canonical form of `name=address`; else ValueError."""
    if not isinstance(text, str) or text.count("=") != 1:
        raise ValueError(f"{text!r} is not of the form 'name=address'")
    name, _, address = text.partition("=")
    name, address = parse_host(name), parse_host(address)
    if is_address(name) or not is_address(address):
        raise ValueError(f"{_shown(text)} is not of the form 'name=address'")
    return f"{name}={address}"


def injection(text: object) -> str:
    """Return the canonical form of `name:port Header: value`; else ValueError. ${NAME} in the value is the owner's variable."""
    found = text.partition(" ") if isinstance(text, str) else ("", "", "")
    name, _, value = found[2].partition(":")
    if not value.strip() or not _HEADER.issuperset(name) or not name or not value.isprintable() or not value.isascii():
        raise ValueError("not of the form 'name:port Header: value'")
    if name.lower() in _FRAMING:
        raise ValueError(f"{name} is not for anybody to set")
    where = parse_grant(found[0])
    if where.startswith("*."):
        raise ValueError(f"{where} is many hosts; what is added for one would be told to all")
    return f"{where} {name}: {value.strip()}"


def variables(text: str) -> list[str]:
    """Return the owner's variables that a value names as ${NAME}."""
    return [part.partition("}")[0] for part in text.split("${")[1:]]


def mask_injection(text: str) -> str:
    """Return an injection for whoever may know that it is made, and not what: variables stand by name, and the rest is left out."""
    header, _, value = text.partition(": ")
    return f"{header}: {''.join(f'${{{name}}}' for name in variables(value)) or '***'}"


class Grants:
    """The grants of one sandbox, canonical, ready to be asked."""

    __slots__ = ("_exact", "_wild", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(texts)
        self._exact = {text for text in self.texts if not text.startswith("*.")}
        self._wild = [text for text in self.texts if text.startswith("*.")]

    def include(self, text: str) -> bool:
        """Say whether all that a canonical grant allows is allowed by these."""
        if text in self.texts:
            return True
        return not is_address(text.rpartition(":")[0]) and any(text.endswith(wild[1:]) for wild in self._wild)

    def covers(self, name: str, number: int | None) -> bool:
        """Say whether a host is granted at a port, or at any where none is known."""
        if number is not None:
            return bool(self.covering(name, number))
        return any(self.covering(name, int(text.rpartition(":")[2])) for text in self.texts)

    def covering(self, name: str, number: int) -> str:
        """Return the grant that covers a canonical host and a port, or nothing. A wildcard covers what is below, not itself."""
        asked = format_destination(name, number)
        if asked in self._exact:
            return asked
        if is_address(name):
            return ""
        return next((text for text in self._wild if asked.endswith(text[1:])), "")


def _is_anybodys(name: str) -> bool:
    first, _, country = name.partition(".")
    return len(country) == 2 and first in _ANYBODYS


def _is_label(text: str) -> bool:
    return 0 < len(text) <= MAX_LABEL and _LETTERS.issuperset(text) and text[0] != "-" != text[-1]


def _ipv4(text: str) -> str:
    from _socket import AF_INET, inet_ntop, inet_pton  # noqa: PLC0415  most names are none

    try:
        return inet_ntop(AF_INET, inet_pton(AF_INET, text))
    except OSError:
        return ""


def _ipv6(text: str) -> str:
    from _socket import AF_INET6, inet_ntop, inet_pton  # noqa: PLC0415  as above

    try:
        packed = inet_pton(AF_INET6, text)
    except (OSError, ValueError):
        # A zone, %eth0, is none of it: it chooses an interface of the machine outside.
        raise ValueError(f"{_shown(text)} is no address") from None
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        raise ValueError(f"{_shown(text)} is an IPv4 address in IPv6 form; write it as IPv4")
    return inet_ntop(AF_INET6, packed)


def _shown(text: str, *, quoted: bool = True) -> str:
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return repr(cut) if quoted else cut

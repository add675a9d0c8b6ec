"""Parses network grants such as `index.example:443`, and matches hosts and ports against them. Pure.

A text has one canonical form or is refused, so that no two parsers see different hosts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAME = 253  # characters of a host name, by RFC 1035
MAX_LABEL = 63
MAX_SHOWN = 80  # characters of a refused text in a message
MAX_PORT = 65535
TLS_PORTS = frozenset({443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 6443, 8443})
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_DIGITS = frozenset("0123456789")
_HEADER = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~")
# Headers that frame or route a request: a second one would smuggle another request.
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
)
_TARGET = frozenset(map(chr, range(33, 127))) - frozenset('*#\\"')
_HEX_DIGITS = frozenset("0123456789abcdef")
# Second-level domains of countries, as in co.uk: anyone can register a name below them.
_PUBLIC_SUFFIXES = frozenset(["ac", "co", "com", "edu", "gob", "gov", "mil", "ne", "net", "nom", "or", "org"])


def parse_host(text: str) -> str:
    """Return the canonical form of a host: a name in lower case, or an address. Raise ValueError for anything else."""
    if not text.isascii():
        raise ValueError(f"{_shown(text)} is not ASCII; write the name as in the DNS, xn--…")
    if text.startswith("[") or ":" in text:
        return _ipv6(text.removeprefix("[").removesuffix("]") if text.startswith("[") and text.endswith("]") else text)
    name = text.lower()
    # A dot at the end names the same host.
    name = name.removesuffix(".")
    if len(name) > MAX_NAME or not all(_is_label(label) for label in name.split(".")):
        raise ValueError(f"{_shown(text)} is not a host name")
    if is_address(name) and text != _ipv4(name):
        raise ValueError(f"{_shown(text)} is not an address in the usual form, such as 192.0.2.1")
    return name


def parse_port(text: str) -> int:
    """Return a port: decimal, from 1 to 65535, without leading zeros. Raise ValueError for anything else."""
    if not 0 < len(text) <= 5 or not _DIGITS.issuperset(text) or text.startswith("0") or int(text) > MAX_PORT:
        raise ValueError(f"{_shown(text)} is not a port")
    return int(text)


def parse_authority(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return host and port of `host:port`, or the default port. Raise ValueError for anything else."""
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
    """Return host and port in the form of a grant."""
    return f"[{name}]:{number}" if ":" in name else f"{name}:{number}"


def is_address(name: str) -> bool:
    """Return whether a canonical host is an address."""
    last = name.rpartition(".")[2]
    # As in browsers, a name whose last label is a number is an address in some notation, such as 127.1 or 0x7f000001.
    return ":" in name or _DIGITS.issuperset(last) or (last.startswith("0x") and _HEX_DIGITS.issuperset(last[2:]))


def is_loopback_name(name: str) -> bool:
    """Return whether a canonical name always means this machine."""
    return name == "localhost" or name.endswith(".localhost")


def parse_grant(text: object) -> str:
    """Return the canonical form of `name:port`, `*.name:port` or `address:port`. Raise ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a text such as 'index.example:443'")
    wild = text.startswith("*.")
    name, number = parse_authority(text[2:] if wild else text)
    if text.partition(":")[0].endswith("."):
        raise ValueError(f"{_shown(text)} has a dot at the end of its name; remove it")
    if wild and (is_address(name) or "." not in name or _is_public_suffix(name)):
        raise ValueError(
            f"{_shown(text)} is too wide; after *. write the domain of one organization, as in *.example.org"
        )
    return ("*." if wild else "") + format_destination(name, number)


def host_entry(text: object) -> str:
    """Return the canonical form of `name=address`. Raise ValueError for anything else."""
    if not isinstance(text, str) or text.count("=") != 1:
        raise ValueError(f"{text!r} is not of the form 'name=address'")
    name, _, address = text.partition("=")
    name, address = parse_host(name), parse_host(address)
    if is_address(name) or not is_address(address):
        raise ValueError(f"{_shown(text)} is not of the form 'name=address'")
    return f"{name}={address}"


def is_target(text: str) -> bool:
    """Return whether a text is a path with an optional query, or a prefix of paths that ends in `/*`."""
    plain = text.removesuffix("*")
    return plain.startswith("/") and _TARGET.issuperset(plain) and (plain == text or plain.endswith("/"))


def injection(text: object) -> str:
    """Return the canonical form of `name:port[/path] Header: value`. Raise ValueError for anything else.

    With a path, only requests for it get the header. A path that ends in `/*` includes all below it.
    """
    found = text.partition(" ") if isinstance(text, str) else ("", "", "")
    name, _, value = found[2].partition(":")
    if not value.strip() or not _HEADER.issuperset(name) or not name or not value.isprintable() or not value.isascii():
        raise ValueError("not of the form 'name:port Header: value'")
    if name.lower() in _FRAMING:
        raise ValueError(f"the header {name} cannot be set")
    place, slash, path = found[0].partition("/")
    where = parse_grant(place)
    if where.startswith("*."):
        raise ValueError(f"{where} matches many hosts, and all of them would get the header")
    if slash and not is_target(slash + path):
        raise ValueError(f"{_shown(slash + path)} is not the path of a request")
    return f"{where}{slash}{path} {name}: {value.strip()}"


def variables(text: str) -> list[str]:
    """Return the variables of the user's environment that a value names as ${NAME}."""
    return [part.partition("}")[0] for part in text.split("${")[1:]]


def mask_injection(text: str) -> str:
    """Return an injection without its secret: variables by name, and *** for a literal value."""
    header, _, value = text.partition(": ")
    return f"{header}: {''.join(f'${{{name}}}' for name in variables(value)) or '***'}"


class Grants:
    """The grants of one sandbox, in canonical form."""

    __slots__ = ("_exact", "_wild", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(texts)
        self._exact = {text for text in self.texts if not text.startswith("*.")}
        self._wild = [text for text in self.texts if text.startswith("*.")]

    def include(self, text: str) -> bool:
        """Return whether these grants allow everything that another grant allows."""
        if text in self.texts:
            return True
        return not is_address(text.rpartition(":")[0]) and any(text.endswith(wild[1:]) for wild in self._wild)

    def covers(self, name: str, number: int | None) -> bool:
        """Return whether a host is granted at a port, or at any port if the port is None."""
        if number is not None:
            return bool(self.covering(name, number))
        return any(self.covering(name, int(text.rpartition(":")[2])) for text in self.texts)

    def covering(self, name: str, number: int) -> str:
        """Return the grant that covers a canonical host and a port, or nothing. `*.name` does not cover `name`."""
        asked = format_destination(name, number)
        if asked in self._exact:
            return asked
        if is_address(name):
            return ""
        return next((text for text in self._wild if asked.endswith(text[1:])), "")


def _is_public_suffix(name: str) -> bool:
    first, _, country = name.partition(".")
    return len(country) == 2 and first in _PUBLIC_SUFFIXES


def _is_label(text: str) -> bool:
    return 0 < len(text) <= MAX_LABEL and _LETTERS.issuperset(text) and text[0] != "-" != text[-1]


def _ipv4(text: str) -> str:
    from _socket import AF_INET, inet_ntop, inet_pton  # noqa: PLC0415  most hosts are names

    try:
        return inet_ntop(AF_INET, inet_pton(AF_INET, text))
    except OSError:
        return ""


def _ipv6(text: str) -> str:
    from _socket import AF_INET6, inet_ntop, inet_pton  # noqa: PLC0415  as above

    try:
        packed = inet_pton(AF_INET6, text)
    except (OSError, ValueError):
        # A zone such as %eth0 is refused: it selects a network interface of the host.
        raise ValueError(f"{_shown(text)} is not an address") from None
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        raise ValueError(f"{_shown(text)} is an IPv4 address in IPv6 form; write it as IPv4")
    return inet_ntop(AF_INET6, packed)


def _shown(text: str, *, quoted: bool = True) -> str:
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return repr(cut) if quoted else cut

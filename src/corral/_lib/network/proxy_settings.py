"""Reads the user's settings of a parent proxy: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY. Pure."""

from __future__ import annotations

from corral._lib.network import network_grants
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLES = {"tunnel": ("https_proxy", "all_proxy"), "http": ("http_proxy", "all_proxy")}
_HEX = frozenset("0123456789abcdefABCDEF")


@frozen
class ParentProxy(Record):
    """A proxy between corral's and the servers. `problem` says why it cannot be used, if it cannot."""

    host: str = ""
    port: int = 0
    credentials: str = ""  # user:password; they stay outside the sandbox
    problem: str = ""

    @property
    def place(self) -> str:
        """Host and port."""
        return network_grants.format_destination(self.host, self.port)


def parent_settings(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the proxy for tunnels and the one for plain HTTP as plain values, and where none is used."""
    found: dict[str, object] = {}
    for kind, names in _VARIABLES.items():
        for name in names:
            text = environ.get(name) or environ.get(name.upper()) or ""
            if text:
                made = parse_proxy(text, name.upper())
                found[kind] = (made.host, made.port, made.credentials, made.problem)
                break
    return found | {"direct": no_proxy(environ.get("no_proxy") or environ.get("NO_PROXY") or "")}


def parse_proxy(text: str, variable: str) -> ParentProxy:
    """Return the proxy that a variable names. One that cannot be used has a `problem`, which shows no credentials."""
    scheme, found, rest = text.strip().partition("://")
    if not found:
        scheme, rest = "http", text.strip()
    if scheme.lower() != "http" and scheme.isalnum():
        return ParentProxy(
            problem=f"{variable} names a proxy of the kind {scheme[:20]}, and corral uses only http proxies"
        )
    before, _, path = rest.partition("/")
    user, _, place = before.rpartition("@")
    try:
        if "@" in path or scheme.lower() != "http":
            # A slash in a password: what is before it looks like a host, and would be shown.
            raise ValueError
        host, port = network_grants.parse_authority(place, 80)
        credentials = _unquoted(user)
    except ValueError:
        return ParentProxy(problem=f"{variable} does not name a proxy, as http://proxy.example:3128 does")
    return ParentProxy(host, port, credentials)


def _unquoted(text: str) -> str:
    first, *parts = text.split("%")
    made = first.encode("utf-8")
    for part in parts:
        if not _HEX.issuperset(part[:2]) or len(part) < 2:
            raise ValueError(text)
        made += bytes.fromhex(part[:2]) + part[2:].encode("utf-8")
    if any(byte < 32 or byte == 127 for byte in made):
        raise ValueError(text)
    return made.decode("latin-1")


def no_proxy(text: str) -> tuple[str, ...]:
    """Return the entries of NO_PROXY in lower case."""
    return tuple(entry for entry in text.lower().replace(",", " ").split() if entry)


def goes_direct(name: str, port: int, entries: tuple[str, ...]) -> bool:
    """Return whether a canonical host is reached without a parent proxy. Loopback always is."""
    if (
        network_grants.is_loopback_name(name)
        or name in ("::1", "::", "0.0.0.0")  # noqa: S104  the last two lead to loopback
        or (name.startswith("127.") and network_grants.is_address(name))
    ):
        return True
    return any(_matches(name, port, entry) for entry in entries)


def _matches(name: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        return network_grants.is_address(name) and _is_in_block(name, entry)
    plain, colon, number = entry.rpartition(":") if entry.count(":") == 1 or "]:" in entry else (entry, "", "")
    if colon and number != str(port):
        return False
    plain = plain.strip("[]").removeprefix("*").removeprefix(".").removesuffix(".")
    if network_grants.is_address(name):
        return plain == name
    return bool(plain) and (name == plain or name.endswith(f".{plain}"))


def _is_in_block(address: str, block: str) -> bool:
    from ipaddress import ip_address, ip_network  # noqa: PLC0415  few settings have a block

    try:
        return ip_address(address) in ip_network(block, strict=False)
    except ValueError:
        return False

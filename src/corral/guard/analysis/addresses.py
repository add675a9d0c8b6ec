"""Classifies network addresses by their text alone: this machine's loopback, or another machine. In doubt, another machine."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.braces import HOLE

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "ip6-localhost"})  # noqa: S104  compared, not bound
_MAILBOX = pattern(r"^[\w.+-]+@[\w-]+(?:\.[\w-]+)+[.:/]?")
_PATH_BEGINS = pattern(r"[/?#]")
_LOOPBACK = pattern(r"127(\.\d{1,3}){3}")
_HAS_PORT = pattern(r":\d+$")
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ssh": 22, "git": 9418}
_SCP = pattern(r"^(?:[\w.-]+@)?[\w.-]+:(?!//)")


def host_of(text: str) -> str:
    """Return the host of an address, lower case, without user, port and path."""
    rest = text.partition("://")[2] if "://" in text else text
    authority = _PATH_BEGINS.split(rest, maxsplit=1)[0].rpartition("@")[2]
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.partition(":")[0].lower()


def destination(text: str) -> tuple[str, int | None] | None:
    """Return the host of an address and its port if known, or None if the text names no host.

    Raises ValueError if programs may disagree about the host.
    """
    from corral._lib.network import network_grants  # noqa: PLC0415  only for a policy that grants hosts

    scheme, found, rest = text.partition("://")
    authority = _PATH_BEGINS.split(rest if found else text, maxsplit=1)[0]
    if text.startswith("-") or HOLE in authority or not authority:
        return None
    if not all(33 <= ord(letter) < 127 and letter not in "\\%" for letter in authority):
        raise ValueError("an address that programs may read in different ways")
    place = authority.rpartition("@")[2]
    default = _PORTS.get(scheme.lower().rpartition("+")[2]) if found else None
    name, colon, after = place.partition(":")
    if not found and colon and not place.startswith("[") and not after.isdigit():
        return network_grants.parse_host(name), _PORTS["ssh"]  # host:path, as git and scp write it
    if default is None and not _HAS_PORT.search(place):
        return network_grants.parse_host(place), None
    return network_grants.parse_authority(place, default)


def is_address(text: str) -> bool:
    """Return whether a word is an address on another machine: with a scheme, or user@host.domain."""
    scheme, found, rest = text.partition("://")
    if found:
        return scheme.rpartition("=")[2].lower() not in ("file", "") and network_effect(rest) == "network"
    return "@" in text and _MAILBOX.search(text) is not None


def network_effect(text: str) -> str:
    """Return the effect of a connection to an address, or to any of a list of servers."""
    if "," in _PATH_BEGINS.split(text.partition("://")[2] or text, maxsplit=1)[0]:
        effects = [network_effect(part) for part in text.split(",") if part]
        return "network" if "network" in effects else "network-local"
    host = host_of(text)
    local = host in _LOCAL or (_LOOPBACK.fullmatch(host) is not None)
    return "network-local" if local and "\\" not in text else "network"


def remote_kind(text: str) -> str:
    """Return the kind of a git remote: `ext` (runs a command), `path`, `local`, `url`, or `name`."""
    if text.startswith(("ext::", "fd::")):
        return "ext"
    if "://" in text:
        scheme = text.partition("://")[0].lower()
        if scheme == "file":
            return "path"
        return "local" if network_effect(text) == "network-local" else "url"
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return "path"
    if ":" in text and ("::" in text or _SCP.match(text)):
        return "url"
    return "path" if "/" in text else "name"

"""Connects to where a granted name lies: looked up here, outside, once; the address that was looked at is the one that is used."""

from __future__ import annotations

import _socket
from _socket import AF_INET, AF_INET6, IPPROTO_TCP, SOCK_STREAM, TCP_NODELAY
from socket import SOCK_CLOEXEC, socket

from corral._lib import network_grants
from corral.containment.network.proxy import addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Resolve = Callable[[str, int], Sequence[str]]

CONNECT_SECONDS = 15.0  # for each address
MAX_ADDRESSES = 4  # tried; against a name that has hundreds which do not answer


class RefusedError(Exception):
    """What was asked for is not granted; `grant` is what would allow it, where anything would."""

    def __init__(self, detail: str, grant: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.grant = grant


class UnreachableError(Exception):
    """It is granted, and does not answer."""


def system_resolve(name: str, port: int) -> list[str]:
    """Ask the machine's own resolver."""
    found = _socket.getaddrinfo(name, port, 0, SOCK_STREAM, IPPROTO_TCP)
    return [str(place[0]) for family, _, _, _, place in found if family in (AF_INET, AF_INET6)]


class UpstreamConnector:
    """Who is granted, where they lie, and how to get there."""

    def __init__(
        self, granted: Collection[str], hosts: Collection[str] = (), resolve: Resolve = system_resolve
    ) -> None:
        self._grants = network_grants.Grants(granted)
        self._resolve = resolve
        self._known: dict[str, list[str]] = {}
        for entry in hosts:
            name, _, address = entry.partition("=")
            self._known.setdefault(name, []).append(address)

    def authorise(self, text: str, port: int) -> tuple[str, str]:
        """Return the canonical host and the grant that covers it, or raise RefusedError."""
        try:
            name = network_grants.parse_host(text)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        grant = self._grants.covering(name, port)
        if not grant:
            raise RefusedError("it is not granted", network_grants.format_destination(name, port) if port else "")
        return name, grant

    def connect(self, name: str, port: int) -> tuple[socket, str]:
        """Return a connection to an authorised host, and the address it goes to."""
        last: OSError | None = None
        for address, is_named in self._addresses(name, port)[:MAX_ADDRESSES]:
            family = AF_INET6 if ":" in address else AF_INET
            try:
                sock = socket(family, SOCK_STREAM | SOCK_CLOEXEC)
            except OSError as error:
                raise UnreachableError(f"no socket is to be had: {error.strerror}") from None
            try:
                sock.settimeout(CONNECT_SECONDS)
                sock.connect((address, port))
                sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
                self._refuse_own_machine(sock, address, port, is_named=is_named)
            except OSError as error:
                last = error
                sock.close()
            except RefusedError:
                sock.close()
                raise
            else:
                return sock, address
        raise UnreachableError(f"no address answers: {last.strerror or last if last else 'there is none'}")

    def _addresses(self, name: str, port: int) -> list[tuple[str, bool]]:
        """Return where a host lies, and whether the owner has named that very address."""
        if network_grants.is_address(name):
            return [(name, True)]
        if name in self._known:
            return [(address, True) for address in self._known[name]]
        try:
            found = [addresses.canonical(text) for text in self._resolve(name, port)]
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"the name is not known: {getattr(error, 'strerror', '') or error}") from None
        kept = []
        for address in dict.fromkeys(found):
            is_named = bool(self._grants.covering(address, port))
            if is_named or not addresses.special_purpose(address):
                kept.append((address, is_named))
        if not kept and found:
            # Of a name that leads into a private network nobody has said that it may.
            address = found[0]
            what = addresses.special_purpose(address)
            raise RefusedError(
                f"the name leads to {address} ({what})", network_grants.format_destination(address, port)
            )
        return kept

    def _refuse_own_machine(self, sock: socket, address: str, port: int, *, is_named: bool) -> None:
        # A public address may be this machine's own, and what listens here trusts who is here.
        if not is_named and sock.getsockname()[0].partition("%")[0] == sock.getpeername()[0].partition("%")[0]:
            raise RefusedError(
                f"the name leads to {address}, this machine itself", network_grants.format_destination(address, port)
            )

"""Connects to granted servers and logs each connection. A name is resolved once, and the address that was checked is the one used."""

from __future__ import annotations

import _socket
from _socket import AF_INET, AF_INET6, IPPROTO_TCP, SOCK_STREAM, TCP_NODELAY
from socket import SOCK_CLOEXEC, socket

from corral._lib import network_grants
from corral._lib.network_grants import format_destination
from corral.containment.network.proxy import addresses
from corral.containment.network.proxy.connection_log import ALLOWED, FAILED, REFUSED, FullError
from corral.containment.network.proxy.relay import ByteBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from ssl import SSLContext
    from typing import Any

    from corral.containment.network.proxy.connection_log import ConnectionLog

    Resolve = Callable[[str, int], Sequence[str]]

CONNECT_SECONDS = 15.0  # for each address
MAX_ADDRESSES = 4  # tried, against a name with hundreds of addresses that do not answer


class RefusedError(Exception):
    """The destination is not granted. `grant` is the grant that would allow it, or ""."""

    def __init__(self, detail: str, grant: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.grant = grant


class UnreachableError(Exception):
    """The destination is granted, but does not answer."""


def system_resolve(name: str, port: int) -> list[str]:
    """Return the addresses of a name from the machine's resolver."""
    found = _socket.getaddrinfo(name, port, 0, SOCK_STREAM, IPPROTO_TCP)
    return [str(place[0]) for family, _, _, _, place in found if family in (AF_INET, AF_INET6)]


class UpstreamConnector:
    """Checks destinations against the grants, and connects to them. `hosts` are entries `name=address`."""

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
            raise RefusedError("it is not granted", format_destination(name, port) if port else "")
        return name, grant

    def connect(self, name: str, port: int) -> tuple[socket, str]:
        """Return a connection to an authorised host, and its address."""
        last: OSError | None = None
        for address, is_named in self._addresses(name, port)[:MAX_ADDRESSES]:
            family = AF_INET6 if ":" in address else AF_INET
            try:
                sock = socket(family, SOCK_STREAM | SOCK_CLOEXEC)
            except OSError as error:
                raise UnreachableError(f"no socket can be opened: {error.strerror}") from None
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
        raise UnreachableError(f"no address answers: {last.strerror or last if last else 'the name has none'}")

    def _addresses(self, name: str, port: int) -> list[tuple[str, bool]]:
        """Return the addresses of a host, each with whether the user has granted that very address."""
        if network_grants.is_address(name):
            return [(name, True)]
        if name in self._known:
            return [(address, True) for address in self._known[name]]
        try:
            found = [addresses.canonical(text) for text in self._resolve(name, port)]
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"the name cannot be resolved: {getattr(error, 'strerror', '') or error}") from None
        kept = []
        for address in dict.fromkeys(found):
            is_named = bool(self._grants.covering(address, port))
            if is_named or not addresses.special_purpose(address):
                kept.append((address, is_named))
        if not kept and found:
            # A grant of a name does not extend to a private network that the name's owner chooses.
            purpose = addresses.special_purpose(found[0])
            raise RefusedError(f"the name resolves to {found[0]} ({purpose})", format_destination(found[0], port))
        return kept

    def _refuse_own_machine(self, sock: socket, address: str, port: int, *, is_named: bool) -> None:
        # A public address may be this machine's own, and local services may trust local clients.
        if not is_named and sock.getsockname()[0].partition("%")[0] == sock.getpeername()[0].partition("%")[0]:
            raise RefusedError(
                f"the name resolves to {address}, which is this machine", format_destination(address, port)
            )


class ProxyContext:
    """The state that all connections of one proxy share: its settings, the byte budget and the log."""

    def __init__(self, plan: Mapping[str, Any], log: ConnectionLog) -> None:
        self._connector = UpstreamConnector(plan["granted"], plan["hosts"])
        self._log = log
        self.budget = ByteBudget(plan["bytes"])
        self.connections: int | None = plan["connections"]
        self._certificates: str = plan["certificates"]
        self._tls: SSLContext | None = None
        self._added: dict[str, list[tuple[str, str]]] = {}
        for text in plan["inject"]:
            where, _, header = text.partition(" ")
            name, _, value = header.partition(": ")
            self._added.setdefault(where, []).append((name, value))

    def open(self, text: str, port: int) -> tuple[str, socket]:
        """Return the canonical host and a connection to it. The outcome is logged before this returns or raises."""
        self.budget.take(0)
        try:
            name, grant = self._connector.authorise(text, port)
            target = format_destination(name, port)
        except RefusedError as error:
            self.refuse(error.grant or f"{text}:{port}", error.detail, error.grant)
            raise
        try:
            sock, address = self._connector.connect(name, port)
        except RefusedError as error:
            self.refuse(target, error.detail, error.grant)
            raise
        except UnreachableError as error:
            self._log.write(FAILED, target, detail=str(error), grant=grant)
            raise
        try:
            self._log.write(ALLOWED, target, address=address, grant=grant)
        except OSError:
            sock.close()
            raise
        return name, sock

    def refuse(self, target: str, detail: str, grant: str = "") -> None:
        """Log a refusal. A full log does not keep the caller from refusing."""
        try:
            self._log.write(REFUSED, target, detail=detail, grant=grant)
        except FullError:
            return

    def added(self, name: str, port: int) -> list[tuple[str, str]]:
        """Return the headers that the user's policy adds for a host."""
        return self._added.get(format_destination(name, port), [])

    def over_tls(self, sock: socket, name: str, port: int) -> socket:
        """Start TLS with a server in the client's place and verify its certificate, or raise UnreachableError."""
        import ssl  # noqa: PLC0415  only needed where headers are added

        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._certificates or None)
        try:
            return self._tls.wrap_socket(sock, server_hostname=name)
        except OSError as error:
            why = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
            detail = f"TLS with the server failed: {why}"
            self._log.write(FAILED, format_destination(name, port), detail=detail)
            raise UnreachableError(detail) from None

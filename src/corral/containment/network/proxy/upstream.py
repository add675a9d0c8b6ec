"""Connects to granted servers and logs each connection. A name is resolved once, and the address that was checked is the one used."""

from __future__ import annotations

import _socket
from _socket import AF_INET, AF_INET6, IPPROTO_TCP, SOCK_STREAM, TCP_NODELAY
from socket import SOCK_CLOEXEC, socket
from time import monotonic

from corral._lib.network import network_grants
from corral._lib.network.local_ports import LOOPBACK, is_loopback_host, never_granted
from corral._lib.network.name_addresses import MAX_WILDCARD_NAMES, NameAddresses
from corral._lib.network.network_grants import format_destination
from corral._lib.network.request_grants import matches, parse_request_grant
from corral.containment.network.proxy import addresses, parent
from corral.containment.network.proxy.connection_log import ALLOWED, FAILED, REFUSED, FullError
from corral.containment.network.proxy.local_services import connect_local
from corral.containment.network.proxy.outcome_errors import RefusedError, UnreachableError
from corral.containment.network.proxy.parent import ParentProxies
from corral.containment.network.proxy.relay import ByteBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from ssl import SSLContext
    from typing import Any

    from corral._lib.network.proxy_settings import ParentProxy
    from corral._lib.network.request_grants import RequestGrant
    from corral.containment.network.proxy.connection_log import ConnectionLog
    from corral.containment.network.proxy.hold import Holds

    Resolve = Callable[[str, int], Sequence[str]]

CONNECT_SECONDS = 15.0  # for each address
SLOW_SECONDS = 2.0  # after which a resolver that knows no name is not asked again for some time
SKIPPED_SECONDS = 300.0
NO_PARENTS = ParentProxies({})
MAX_ADDRESSES = 4  # tried, against a name with hundreds of addresses that do not answer


def system_resolve(name: str, port: int) -> list[str]:
    """Return the addresses of a name from the machine's resolver."""
    found = _socket.getaddrinfo(name, port, 0, SOCK_STREAM, IPPROTO_TCP)
    return [str(place[0]) for family, _, _, _, place in found if family in (AF_INET, AF_INET6)]


class UpstreamConnector:
    """Checks destinations against the grants, and connects to them. `hosts` are entries `name=address`."""

    def __init__(
        self,
        granted: Collection[str],
        hosts: Collection[str] = (),
        resolve: Resolve = system_resolve,
        parents: ParentProxies = NO_PARENTS,
    ) -> None:
        self._parents = parents
        self._skips_resolver_until = (
            0.0  # of monotonic(): where only the parent proxy resolves names, each attempt takes long
        )
        self._grants = network_grants.Grants(granted)
        self._resolve = resolve
        self._known: dict[str, list[str]] = {}
        for entry in hosts:
            name, _, address = entry.partition("=")
            self._known.setdefault(name, []).append(address)
        self._looked_up: set[str] = set()  # names below wildcards
        self._allowed: set[str] = set()  # destinations that the user allowed while a connection was held

    def allow(self, destination: str) -> None:
        """Grant one more destination for the life of this proxy."""
        self._allowed.add(destination)

    def authorise(self, text: str, port: int) -> tuple[str, str]:
        """Return the canonical host and the grant that covers it, or raise RefusedError."""
        try:
            name = network_grants.parse_host(text)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        grant = self._grants.covering(name, port)
        if grant:
            return name, grant
        destination = format_destination(name, port)
        if destination not in self._allowed:
            raise RefusedError("it is not granted", destination if port else "")
        return name, destination

    def parent(self, name: str, port: int, *, is_http: bool) -> ParentProxy | None:
        """Return the parent proxy for a host. One whose address the user has set is reached directly."""
        return None if name in self._known else self._parents.find(name, port, is_http=is_http)

    def connect(self, name: str, port: int, *, is_http: bool = False) -> tuple[socket, str]:
        """Return a connection to an authorised host, and its address. `is_http`: the client sends one plain HTTP request."""
        proxy = self.parent(name, port, is_http=is_http)
        if proxy is not None:
            self._check_address(name, port)
            sock = parent.connect(proxy) if is_http else parent.open_tunnel(proxy, name, port)
            return sock, f"by the proxy {proxy.place}"
        last: OSError | None = None
        for address, is_named in self._addresses(name, port)[:MAX_ADDRESSES]:
            _refuse_never_granted(address, port)
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

    def _check_address(self, name: str, port: int) -> None:
        """Refuse a name that leads to a private address, as far as this machine's resolver knows: the parent proxy resolves it again."""
        if network_grants.is_address(name):
            _refuse_never_granted(name, port)
            return
        if monotonic() < self._skips_resolver_until:
            self._count_lookup(name, port)
            return
        began_at = monotonic()
        try:
            found = self._addresses(name, port)
        except UnreachableError:
            if monotonic() - began_at > SLOW_SECONDS:
                self._skips_resolver_until = monotonic() + SKIPPED_SECONDS
            return
        for address, _ in found:
            _refuse_never_granted(address, port)

    def _addresses(self, name: str, port: int) -> list[tuple[str, bool]]:
        """Return the addresses of a host, each with whether the user has granted that very address."""
        if network_grants.is_address(name):
            return [(name, True)]
        if name in self._known:
            return [(address, True) for address in self._known[name]]
        self._count_lookup(name, port)
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

    def _count_lookup(self, name: str, port: int) -> None:
        """Refuse names without end below a wildcard: each one reaches a DNS server outside, and can carry data there."""
        if name in self._looked_up or not self._grants.covering(name, port).startswith("*."):
            return
        if len(self._looked_up) >= MAX_WILDCARD_NAMES:
            raise RefusedError(f"{MAX_WILDCARD_NAMES} names below wildcards were looked up already")
        self._looked_up.add(name)

    def _refuse_own_machine(self, sock: socket, address: str, port: int, *, is_named: bool) -> None:
        # A public address may be this machine's own, and local services may trust local clients.
        if not is_named and sock.getsockname()[0].partition("%")[0] == sock.getpeername()[0].partition("%")[0]:
            raise RefusedError(
                f"the name resolves to {address}, which is this machine", format_destination(address, port)
            )


def _refuse_never_granted(address: str, port: int) -> None:
    """Refuse some ports of this machine, whichever of its addresses leads there."""
    reason = never_granted(port)
    if reason and addresses.is_this_machine(address):
        raise RefusedError(f"port {port} of this machine is never opened to commands: {reason}")


class ProxyContext:
    """The state that all connections of one proxy share: its settings, the byte budget and the log."""

    def __init__(self, plan: Mapping[str, Any], log: ConnectionLog, holds: Holds | None = None) -> None:
        self.local = frozenset(plan.get("local", ()))
        local = [format_destination(host, port) for port in self.local for host in LOOPBACK]
        parents = ParentProxies(plan.get("parents", {}))
        self._connector = UpstreamConnector((*plan["granted"], *local), plan["hosts"], parents=parents)
        self.names = NameAddresses(plan["granted"])
        self._log = log
        self._holds = holds
        self.budget = ByteBudget(plan["bytes"])
        self.sent = ByteBudget(plan.get("sent_bytes"), self.budget)
        self.connections: int | None = plan["connections"]
        self._certificates: str = plan["certificates"]
        self._tls: SSLContext | None = None
        self._added: dict[str, list[tuple[str, str, str]]] = {}
        for text in plan["inject"]:
            where, _, header = text.partition(" ")
            name, _, value = header.partition(": ")
            place, slash, path = where.partition("/")
            self._added.setdefault(place, []).append((slash + path, name, value))
        self._requests = [parse_request_grant(text) for text in plan.get("requests", ())]

    def requested(self, name: str, port: int, method: str, target: str) -> RequestGrant | None:
        """Return the grant of this very request, if there is one."""
        place = format_destination(name, port)
        for grant in self._requests:
            if (grant.place, grant.method) == (place, method) and matches(grant.target, target):
                return grant
        return None

    def parent(self, name: str, port: int) -> ParentProxy | None:
        """Return the parent proxy that gets plain HTTP requests for a destination."""
        return self._connector.parent(name, port, is_http=True)

    def open(
        self, text: str, port: int, client: socket, requested: RequestGrant | None = None, *, is_http: bool = False
    ) -> tuple[str, socket]:
        """Return the canonical host and a connection to it. The outcome is logged before this returns or raises.

        `requested` is the grant of the request that the connection is for.
        """
        self.budget.take(0)
        try:
            if requested is None:
                name, grant = self._authorise(text, port, client)
            else:
                name, grant = text, f"{requested.place} {requested.method} {requested.target}"
            target = format_destination(name, port)
        except RefusedError as error:
            self.refuse(error.grant or f"{text}:{port}", error.detail, error.grant)
            raise
        try:
            if port in self.local and is_loopback_host(name):
                sock, address = connect_local(port)
            else:
                sock, address = self._connector.connect(name, port, is_http=is_http)
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

    def _authorise(self, text: str, port: int, client: socket) -> tuple[str, str]:
        """Return the canonical host and its grant. Where connections are held, ask the user about another host first."""
        try:
            return self._connector.authorise(text, port)
        except RefusedError as error:
            if self._holds is None or not error.grant or _is_special(error.grant):
                raise
            destination = error.grant
        why_not = self._holds.wait(destination, client)
        if why_not:
            raise RefusedError(why_not, destination)
        self._connector.allow(destination)
        self.names.allow(destination)
        return self._connector.authorise(text, port)

    def refuse(self, target: str, detail: str, grant: str = "") -> None:
        """Log a refusal. A full log does not keep the caller from refusing."""
        try:
            self._log.write(REFUSED, target, detail=detail, grant=grant)
        except FullError:
            return

    def adds_to(self, name: str, port: int) -> bool:
        """Return whether the user's policy adds headers to requests for a destination."""
        return format_destination(name, port) in self._added

    def added(self, name: str, port: int, target: str) -> list[tuple[str, str]]:
        """Return the headers that the user's policy adds to a request."""
        known = self._added.get(format_destination(name, port), [])
        return [(header, value) for pattern, header, value in known if not pattern or matches(pattern, target)]

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


def _is_special(destination: str) -> bool:
    """Return whether a destination is this machine, or an address of a private network: nobody is asked about these."""
    name, _ = network_grants.parse_authority(destination)
    if network_grants.is_loopback_name(name):
        return True
    return network_grants.is_address(name) and bool(addresses.special_purpose(name))

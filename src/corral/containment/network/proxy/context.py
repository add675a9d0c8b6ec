"""What all connections of one sandbox share: who may go where, what is added on the way, what is left to use, what is written down."""

from __future__ import annotations

from corral._lib import network_grants
from corral.containment.network.proxy import connection_log
from corral.containment.network.proxy.relay import ByteBudget
from corral.containment.network.proxy.upstream import RefusedError, UnreachableError, UpstreamConnector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from socket import socket
    from ssl import SSLContext
    from typing import Any

    from corral.containment.network.proxy.connection_log import ConnectionLog
    from corral.containment.network.proxy.upstream import Resolve


class ProxyContext:
    """The settings of one proxy, and its journal."""

    def __init__(self, plan: Mapping[str, Any], book: ConnectionLog, resolve: Resolve | None = None) -> None:
        given = () if resolve is None else (resolve,)
        self._dial = UpstreamConnector(plan["granted"], plan["hosts"], *given)
        self._book = book
        self.budget = ByteBudget(plan["bytes"])
        self.connections: int | None = plan["connections"]
        self._certificates: str = plan["certificates"]
        self._context: SSLContext | None = None
        self._added: dict[str, list[tuple[str, str]]] = {}
        for text in plan["inject"]:
            where, _, header = text.partition(" ")
            name, _, value = header.partition(": ")
            self._added.setdefault(where, []).append((name, value))

    def open(self, text: str, port: int) -> tuple[str, socket]:
        """Return the canonical host and a connection to it; what became of it is written down first."""
        self.budget.take(0)
        try:
            name, grant = self._dial.authorise(text, port)
            target = network_grants.format_destination(name, port)
        except RefusedError as error:
            self.refuse(error.grant or f"{text}:{port}", error.detail, error.grant)
            raise
        try:
            sock, address = self._dial.connect(name, port)
        except RefusedError as error:
            self.refuse(target, error.detail, error.grant)
            raise
        except UnreachableError as error:
            self._book.write(connection_log.FAILED, target, detail=str(error), grant=grant)
            raise
        try:
            self._book.write(connection_log.ALLOWED, target, address=address, grant=grant)
        except OSError:
            sock.close()
            raise
        return name, sock

    def refuse(self, target: str, detail: str, grant: str = "") -> None:
        """Write down what was not let through."""
        try:
            self._book.write(connection_log.REFUSED, target, detail=detail, grant=grant)
        except connection_log.FullError:
            # It is refused all the same.
            return

    def added(self, name: str, port: int) -> list[tuple[str, str]]:
        """Return the headers that the owner adds for a host."""
        return self._added.get(network_grants.format_destination(name, port), [])

    def over_tls(self, sock: socket, name: str, port: int) -> socket:
        """Speak TLS to a server in the client's place, and see that it is the one; UnreachableError where it is not."""
        import ssl  # noqa: PLC0415  for those who have something added

        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._certificates or None)
        try:
            return self._context.wrap_socket(sock, server_hostname=name)
        except OSError as error:
            why = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
            detail = f"TLS with the server failed: {why}"
            self._book.write(connection_log.FAILED, network_grants.format_destination(name, port), detail=detail)
            raise UnreachableError(detail) from None

"""Connects to servers by the parent proxy of the user's environment, such as a company's. Its credentials stay in this process."""

from __future__ import annotations

from _socket import IPPROTO_TCP, TCP_NODELAY
from base64 import b64encode
from socket import create_connection
from time import monotonic

from corral._lib.network.network_grants import format_destination
from corral._lib.network.proxy_settings import ParentProxy, goes_direct
from corral.containment.network.proxy.outcome_errors import UnreachableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from socket import socket
    from typing import Any

CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 60.0  # a proxy may wait for the server
MAX_ANSWER_BYTES = 64 * 1024


class ParentProxies:
    """The parent proxies of one sandbox: one for tunnels and one for plain HTTP, either of which may be missing."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._proxies = {kind: ParentProxy(*settings[kind]) for kind in ("tunnel", "http") if kind in settings}
        self._direct: tuple[str, ...] = settings.get("direct", ())

    def find(self, name: str, port: int, *, is_http: bool) -> ParentProxy | None:
        """Return the proxy for a canonical host, or None if it is reached directly. Raise UnreachableError if it cannot be used."""
        found = self._proxies.get("http" if is_http else "tunnel")
        if found is None or goes_direct(name, port, self._direct):
            return None
        if found.problem:
            raise UnreachableError(found.problem)
        return found


def authorization(proxy: ParentProxy) -> list[tuple[str, str]]:
    """Return the header with the credentials, if there are any."""
    if not proxy.credentials:
        return []
    return [("Proxy-Authorization", f"Basic {b64encode(proxy.credentials.encode('latin-1')).decode()}")]


def connect(proxy: ParentProxy) -> socket:
    """Return a connection to the proxy itself."""
    try:
        sock = create_connection((proxy.host, proxy.port), CONNECT_SECONDS)
    except OSError as error:
        raise _failed(proxy, f"cannot be reached: {error.strerror or error}") from None
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    return sock


def open_tunnel(proxy: ParentProxy, name: str, port: int) -> socket:
    """Return a connection to a server through the proxy."""
    sock = connect(proxy)
    try:
        place = format_destination(name, port)
        lines = [
            f"CONNECT {place} HTTP/1.1",
            f"Host: {place}",
            *(f"{key}: {value}" for key, value in authorization(proxy)),
        ]
        sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        status = _status(sock)
    except (OSError, ValueError) as error:
        sock.close()
        raise _failed(proxy, f"gave no answer: {error}") from None
    if not 200 <= status < 300:
        sock.close()
        more = ": it wants other credentials" if status == 407 else ""
        raise _failed(proxy, f"refused with status {status}{more}")
    sock.settimeout(None)
    return sock


def _failed(proxy: ParentProxy, why: str) -> UnreachableError:
    # The client learns neither the proxy's address nor its credentials.
    return UnreachableError(f"the proxy {proxy.place} {why}", f"the user's proxy {why}")


def _status(sock: socket) -> int:
    """Read the head of the proxy's answer, and not a byte more: the server's bytes follow."""
    give_up_at, head = monotonic() + ANSWER_SECONDS, b""
    while not head.endswith(b"\r\n\r\n"):
        left = give_up_at - monotonic()
        if left <= 0 or len(head) > MAX_ANSWER_BYTES:
            raise ValueError("its answer is too long, or took too long")
        sock.settimeout(left)
        byte = sock.recv(1)
        if not byte:
            raise ValueError("it closed the connection")
        head += byte
    version, _, rest = head.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ValueError("it does not speak HTTP")
    return int(rest[:3])

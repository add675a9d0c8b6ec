"""Serves the page on loopback. Data needs the token, and requests that another web site caused are refused. Read-only."""

from __future__ import annotations

import hmac
import secrets
import socket
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import parse_qs, urlsplit

from corral.apps.viewer import page
from corral.apps.viewer.explain import details_of
from corral.apps.viewer.feed import dumps
from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from corral.apps.viewer.explain import Reader, Told
    from corral.apps.viewer.feed import Feed
    from corral.apps.viewer.sources import Source
    from corral.apps.viewer.spans import Spans

TOKEN_BYTES = 32
WAIT_SECONDS = 10.0  # a request for changes is answered after this time even if nothing changed
IDLE_SECONDS = 30.0  # closes a connection without requests
POLL_SECONDS = 0.2
MAX_STRANGERS = (
    16  # connections that have not shown the token; each has a thread, and anyone on this machine can connect
)
MAX_DIGITS = 15  # of a number in a request; Python refuses to parse thousands of them


class Server:
    """A server for one page. `url` has the token behind `#`, because browsers do not send that part to any server."""

    def __init__(self, feed: Feed, about: dict[str, Any], reader: Reader, *, port: int = 0, spans: Spans | None = None):
        self.feed = feed
        self.reader = reader
        self.spans = spans
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.html = page.served(about).encode()
        try:
            self._http = _Http(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise CorralError(f"cannot listen on 127.0.0.1:{port}: {why}; use port 0 for any free port") from None
        self._http.owner = self
        self.port = int(self._http.server_address[1])
        self.hosts = frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost"))
        self.url = f"http://127.0.0.1:{self.port}/#token={self.token}"
        self._thread = Thread(target=self._http.serve_forever, args=(POLL_SECONDS / 4,), daemon=True)

    def start(self) -> Self:
        """Start answering in a thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop answering."""
        self.feed.close()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()


def fill(feed: Feed, source: Source, stop: Event | None = None, *, told: Told | None = None) -> None:
    """Read a source into a feed and close it. With `stop`, follow the source until `stop` is set."""
    try:
        while source.look(feed):
            if told is not None:
                told("calls read", len(feed))
            if stop is not None and stop.is_set():
                return
        feed.loaded()
        while stop is not None and not stop.is_set():
            if not source.look(feed):
                stop.wait(POLL_SECONDS)
    finally:
        source.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a waiting page notices when its socket closes
    request_queue_size = 128  # with the default of 5, a crowd of connections makes the page wait seconds for its own
    owner: Server

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._strangers: dict[Any, None] = {}  # sockets, the oldest first
        self._lock = Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread. One too many ends the oldest that has not shown the token, so the page gets through."""
        with self._lock:
            oldest = next(iter(self._strangers)) if len(self._strangers) >= MAX_STRANGERS else None
            self._strangers.pop(oldest, None)
            self._strangers[request] = None
        if oldest is not None:
            # The thread of that connection then reads its end, and closes it.
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def trust(self, request: Any) -> None:
        """Keep a connection that has shown the token."""
        with self._lock:
            self._strangers.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.trust(request)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Print nothing: errors here are connections that the browser closed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: _Http

    def do_GET(self) -> None:
        """Answer one request."""
        owner = self.server.owner
        try:
            asked = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(asked.query).items()}
            numbers = [_number(name, query.get(name, "0")) for name in ("after", "evals")]
        except ValueError as error:
            self._send(400, f"the address cannot be read: {error}\n", "text/plain")
            return
        refusal = self._refusal(asked.path)
        if refusal:
            self._send(*refusal)
            return
        if asked.path == "/":
            self._send(200, owner.html, "text/html; charset=utf-8")
        elif asked.path == "/api/calls":
            knows_loaded = query.get("loaded") == "1"
            self._send(200, owner.feed.since(*numbers, seconds=WAIT_SECONDS, knows_loaded=knows_loaded))
        elif asked.path == "/api/detail":
            self._send(200, dumps(details_of(query.get("key", ""), owner.feed, owner.reader, owner.spans)))
        elif asked.path == "/api/evals":
            self._send(200, dumps(owner.feed.evals))
        else:
            self._send(404, "not found\n", "text/plain")

    def _refusal(self, path: str) -> tuple[int, str, str] | None:
        """Return the refusal of a request, or None. Requests for data need the token; the page itself holds no data."""
        owner = self.server.owner
        # Stops DNS rebinding: a site whose name resolves to 127.0.0.1 would otherwise have the same origin as this page.
        if self.headers.get_all("Host", []) not in [[host] for host in owner.hosts]:
            return 421, "the Host header names another server\n", "text/plain"
        origins = self.headers.get_all("Origin", [])
        if origins and origins not in [[f"http://{host}"] for host in owner.hosts]:
            return 403, "the Origin header names another site\n", "text/plain"
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return 403, "the request comes from another site\n", "text/plain"
        given = self.headers.get("X-Corral-Token", "").encode("utf-8", "replace")
        if path.startswith("/api/") and not hmac.compare_digest(given, owner.token.encode()):
            return 401, "the token is missing: open the address that corral view printed\n", "text/plain"
        if path.startswith("/api/"):
            self.server.trust(self.connection)
        return None

    def _send(self, status: int, body: str | bytes, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else body.encode()
        self.send_response_only(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(data))),
            ("Content-Security-Policy", f"{page.policy(connects=True)}; frame-ancestors 'none'"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing: requests are not worth a log line."""


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise ValueError(f"{name} must be a whole number of at most {MAX_DIGITS} digits")
    return int(text)

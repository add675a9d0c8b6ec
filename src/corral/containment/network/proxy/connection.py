"""Serves one client of the proxy. The request is checked before any byte of it is forwarded."""

from __future__ import annotations

from select import POLLIN, poll
from time import monotonic

from corral._lib.network import network_grants
from corral._lib.network.local_ports import is_loopback_host
from corral._lib.network.network_grants import TLS_PORTS, format_destination
from corral._lib.network.push_refs import PushReader
from corral.containment.network.proxy import http_request, relay, socks, tls_hello
from corral.containment.network.proxy.connection_log import FullError
from corral.containment.network.proxy.http_request import RequestError
from corral.containment.network.proxy.outcome_errors import RefusedError, UnreachableError
from corral.containment.network.proxy.parent import authorization
from corral.containment.network.proxy.relay import CHUNK_BYTES, IDLE_SECONDS, Flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from corral._lib.network.request_grants import RequestGrant
    from corral.containment.network.proxy.upstream import ProxyContext

HANDSHAKE_SECONDS = 30.0  # for a client's request, and again for the first bytes inside a tunnel
_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection:
    """A client that has connected to the proxy, or to the address of a granted name: then `destination` is name and port."""

    def __init__(self, client: socket, context: ProxyContext, destination: tuple[str, int] | None = None) -> None:
        self.client = client
        self.context = context
        self.destination = destination
        self.upstream: socket | None = None
        self.target = ""  # the destination, as far as it is known
        self._buffer = b""
        self._protocol = ""  # http or socks while the client expects an answer from the proxy
        self._spoken = b""  # the server's first bytes, if it speaks before the client
        self._is_http = False  # whether the connection to the server is for one plain HTTP request
        self._deadline = 0.0  # for the bytes that the proxy waits for

    def serve(self) -> None:
        """Fulfil the client's request or answer with a refusal, and close the connection."""
        self._allow(HANDSHAKE_SECONDS)
        try:
            self._begin()
        except RefusedError as error:
            self._answer_refusal(error.detail, error.grant)
        except UnreachableError as error:
            self._answer(502, f"{self.target} cannot be reached: {error.told}")
        except relay.ByteBudgetError as error:
            if error.is_about_sending:
                self._refuse("the call has sent more than a download needs")
            else:
                self._refuse("the sandbox has used up its byte limit", "limits.network_bytes")
        except FullError as error:
            self._refuse(str(error))
        except ValueError as error:
            # The parsers raise ValueError for any input that they do not accept.
            self.context.refuse(self.target, str(error))
            self._answer(400, f"refused: {error}", reply=getattr(error, "reply", b""))
        except (OSError, EOFError):
            # The client or the server has hung up, or a timeout has passed.
            pass
        finally:
            self.client.close()
            if self.upstream is not None:
                self.upstream.close()

    def _begin(self) -> None:
        if self.destination is not None:
            self._go_to(*self.destination)
            return
        first = self._peek()
        if first == socks.VERSION:
            self._protocol = "socks"
            self._socks()
        elif 0x41 <= first <= 0x5A or 0x61 <= first <= 0x7A:
            self._protocol = "http"
            self._http()
        else:
            raise RequestError("the client speaks neither HTTP nor SOCKS5")

    def _go_to(self, name: str, port: int) -> None:
        """Serve a client that knows no proxy. It gets a refusal as text only where it surely speaks HTTP."""
        self._protocol = "http" if port == http_request.HTTP_PORT else ""
        upstream = self._open(name, port)[1]
        if is_loopback_host(name):
            # A service of the user's own machine, which is granted as a whole.
            self._protocol = ""
            relay.relay(
                (Flow(self.client, upstream, self.context.sent), Flow(upstream, self.client, self.context.budget))
            )
        else:
            self._tunnel(name, port, upstream)

    def _socks(self) -> None:
        socks.greeting(self._read)
        self.client.sendall(socks.GREETED)
        text, port = socks.request(self._read)
        name, upstream = self._open(text, port)
        self.client.sendall(socks.answer(socks.GRANTED))
        self._tunnel(name, port, upstream)

    def _http(self) -> None:
        head = http_request.parse(self._read_head())
        self.target = head.target
        if head.method != "CONNECT":
            name, port, path = http_request.destination(head)
            http_request.check_host(head, name, port)
            requested = self.context.requested(name, port, head.method, path)
            is_http = requested is None and port not in TLS_PORTS
            upstream = self._open(name, port, requested, is_http=is_http)[1]
            self._forward(head, path, name, port, upstream, requested=requested)
            return
        text, port = network_grants.parse_authority(head.target)
        if head.values("content-length") not in ([], ["0"]) or head.values("transfer-encoding"):
            raise RequestError("a CONNECT request with a body")
        if head.values("host"):
            http_request.check_host(head, text, port)
        name, upstream = self._open(text, port)
        self.client.sendall(_CONNECTED)
        self._tunnel(name, port, upstream)

    def _open(
        self, text: str, port: int, requested: RequestGrant | None = None, *, is_http: bool | None = None
    ) -> tuple[str, socket]:
        """Connect to a destination. On port 80 the client can only send a plain HTTP request."""
        self.target = format_destination(text, port)
        self._is_http = port == http_request.HTTP_PORT if is_http is None else is_http
        name, self.upstream = self.context.open(text, port, self.client, requested, is_http=self._is_http)
        self.target = format_destination(name, port)
        return name, self.upstream

    def _tunnel(self, name: str, port: int, upstream: socket) -> None:
        """Connect the client to the server, once its first bytes are known to be meant for that server."""
        self._protocol = ""
        self._allow(HANDSHAKE_SECONDS)
        if port in TLS_PORTS:
            if self._peek() != tls_hello.HANDSHAKE:
                if self.destination is not None and self.context.adds_to(name, port):
                    # The address http://name:port that the user's policy adds a header to. The server gets it over TLS.
                    self._request_in_tunnel(name, port, upstream)
                    return
                self._refuse_tunnel(f"port {port} is for TLS, and the client does not begin with a TLS ClientHello")
            kind = "tls"
        else:
            kind = "http" if port == http_request.HTTP_PORT else self._first_bytes(upstream)
        if kind == "http":
            self._request_in_tunnel(name, port, upstream)
            return
        if kind == "tls":
            self._check_hello(name, port)
        if kind == "http2":
            self._begin_http2(upstream)
        # A server that does not speak TLS could find a request inside a ClientHello, too.
        check = None if port in TLS_PORTS else http_request.RequestScanner().feed
        if check is not None:
            check(self._buffer)
        self.context.sent.take(len(self._buffer))
        upstream.sendall(self._buffer)
        sending = Flow(self.client, upstream, self.context.sent, check=check)
        relay.relay((sending, Flow(upstream, self.client, self.context.budget)))

    def _first_bytes(self, upstream: socket) -> str:
        """Return the protocol of the client's first bytes. A server may speak first, so its bytes are forwarded meanwhile."""
        poller = poll()
        poller.register(self.client.fileno(), POLLIN)
        poller.register(upstream.fileno(), POLLIN)
        while True:
            if self._buffer:
                if self._buffer[0] == tls_hello.HANDSHAKE:
                    return "tls"
                is_http2 = http_request.begins_http2(self._buffer)
                if is_http2:
                    return "http2"
                is_request = http_request.looks_like_request(self._buffer) if is_http2 is False else None
                if is_request is not None:
                    return "http" if is_request else "other"
            ready = {number for number, _ in poller.poll(IDLE_SECONDS * 1000)}
            if not ready:
                raise TimeoutError("no data was transferred for too long")
            if upstream.fileno() in ready:
                data = upstream.recv(CHUNK_BYTES)
                if not data:
                    raise EOFError
                self._spoken = (self._spoken + data)[: http_request.HTTP2_FRAME_HEAD]
                self.context.budget.take(len(data))
                self.client.sendall(data)
            if self.client.fileno() in ready:
                self._allow(HANDSHAKE_SECONDS)
                self._receive()

    def _begin_http2(self, upstream: socket) -> None:
        """Forward the first bytes of HTTP/2, and nothing more before the server has shown that it speaks it.

        A server of HTTP/1 could take them for a request, and what follows for another one.
        """
        self.context.sent.take(len(http_request.HTTP2_PREFACE))
        upstream.sendall(self._read(len(http_request.HTTP2_PREFACE)))
        upstream.settimeout(HANDSHAKE_SECONDS)
        # The server may have spoken first.
        while len(self._spoken) < http_request.HTTP2_FRAME_HEAD:
            data = upstream.recv(http_request.HTTP2_FRAME_HEAD)
            if not data:
                raise EOFError
            self._spoken += data
            self.context.budget.take(len(data))
            self.client.sendall(data)
        if not http_request.is_http2_answer(self._spoken):
            self._refuse_tunnel("the client begins HTTP/2, which the server does not speak")

    def _check_hello(self, name: str, port: int) -> None:
        while (asked := tls_hello.server_name(self._buffer)) is None:
            self._receive()
        if asked != ("" if network_grants.is_address(name) else name):
            grant = format_destination(asked, port) if asked else ""
            self._refuse_tunnel(f"the TLS ClientHello asks for {grant or 'no server by name'}", grant)

    def _refuse_tunnel(self, detail: str, grant: str = "") -> None:
        self.context.refuse(self.target, detail)
        raise RefusedError(detail, grant)

    def _request_in_tunnel(self, name: str, port: int, upstream: socket) -> None:
        self._protocol = "http"
        head = http_request.parse(self._read_head())
        is_path = head.target.startswith("/") or (head.method, head.target) == ("OPTIONS", "*")
        if not is_path or head.method == "CONNECT":
            raise RequestError("a request to a server needs a path as its target")
        http_request.check_host(head, name, port)
        self._forward(head, head.target, name, port, upstream)

    def _forward(
        self,
        head: http_request.RequestHead,
        path: str,
        name: str,
        port: int,
        upstream: socket,
        *,
        requested: RequestGrant | None = None,
    ) -> None:
        """Send one request, and return the answer until the server hangs up."""
        added = self.context.added(name, port, path)
        body = http_request.framing(head)
        is_tls = port in TLS_PORTS or requested is not None
        push = _push_reader(head, requested)
        place = format_destination(name, port)
        is_default = port in TLS_PORTS or port == http_request.HTTP_PORT
        host = place.rpartition(":")[0] if is_default else place
        proxy = self.context.parent(name, port) if self._is_http else None
        if proxy is not None:
            path, added = f"http://{host}{path.removeprefix('*')}", [*added, *authorization(proxy)]
        upgrades = http_request.asks_for_websocket(head)
        made = http_request.rewrite_head(head, path, host, added, upgrades=upgrades)
        if is_tls:
            # Plain text only inside the sandbox; never on the way to the server.
            self.upstream = upstream = self.context.over_tls(upstream, name, port)
        if any(value.lower() == "100-continue" for value in head.values("expect")) and not body.is_whole:
            self.client.sendall(_CONTINUE)
        self.context.sent.take(len(made))
        # The refs of a push are known before the server hears anything.
        begun = b"" if push is None else self._read_refs(body, push)
        self._protocol = ""
        upstream.settimeout(IDLE_SECONDS)
        upstream.sendall(made + begun)
        self._send_body(body, upstream)
        answered = Flow(upstream, self.client, self.context.budget, is_tls=is_tls)
        if upgrades and not is_tls and self._become_websocket(upstream):
            check = http_request.RequestScanner().feed
            check(self._buffer)
            self.context.sent.take(len(self._buffer))
            upstream.sendall(self._buffer)
            relay.relay((Flow(self.client, upstream, self.context.sent, check=check), answered))
        else:
            relay.relay((answered, relay.DiscardedInput(self.client)))

    def _become_websocket(self, upstream: socket) -> bool:
        """Forward the head of the server's answer. Return whether it accepts: until then no further byte of the client is."""
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < http_request.MAX_HEAD:
            data = upstream.recv(CHUNK_BYTES)
            if not data:
                break
            answer += data
        self.context.budget.take(len(answer))
        self.client.sendall(answer)
        return http_request.accepts_websocket(answer.partition(b"\r\n\r\n")[0])

    def _read_refs(self, body: http_request.Body, push: PushReader) -> bytes:
        """Return the first part of a push's body, once all its refs are granted. Raise PushError for another ref."""
        passed = b""
        body.check = push.feed
        while not body.is_whole and not push.is_open:
            if not self._buffer:
                self._allow(IDLE_SECONDS)
                self._receive()
            data, self._buffer = self._buffer, b""
            passed += body.feed(data)
        push.end()
        body.check = None
        self.context.sent.take(len(passed))
        return passed

    def _send_body(self, body: http_request.Body, upstream: socket) -> None:
        while not body.is_whole:
            if not self._buffer:
                self._allow(IDLE_SECONDS)
                self._receive()
            data, self._buffer = self._buffer, b""
            passed = body.feed(data)
            self.context.sent.take(len(passed))
            try:
                upstream.sendall(passed)
            except (BrokenPipeError, ConnectionResetError):
                # A server may answer and close before it has read everything. Its answer is returned.
                return

    def _refuse(self, detail: str, grant: str = "") -> None:
        self.context.refuse(self.target, detail, grant)
        self._answer_refusal(detail, grant)

    def _answer_refusal(self, detail: str, grant: str) -> None:
        setting = grant if grant.startswith("limits.") else f'containment.network = ["{grant}"]'
        more = f"; to allow it, the user can set {setting}" if grant else ""
        self._answer(403, f"{self.target or 'this'} is not let through: {detail}{more}")

    def _answer(self, status: int, text: str, *, reply: bytes = b"") -> None:
        """Answer in the client's protocol, if it expects an answer from the proxy."""
        if self._protocol == "http":
            # Many programs show only this line of a refused tunnel.
            reason = "Not reached by corral" if status == 502 else "Refused by corral"
            body = ascii(f"corral: {text}")[1:-1].encode() + b"\n"
            head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            reply = f"{head}Connection: close\r\n\r\n".encode() + body
        elif self._protocol == "socks" and not reply:
            reply = socks.answer({403: socks.NOT_ALLOWED, 502: socks.UNREACHABLE}.get(status, socks.FAILED))
        if reply:
            try:
                self.client.sendall(reply)
            except OSError:
                # The client did not wait for the answer.
                return

    def _allow(self, seconds: float) -> None:
        """Set the deadline for all bytes that the client sends next: sending a byte at a time does not extend it."""
        self._deadline = monotonic() + seconds

    def _receive(self) -> None:
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError("the client took too long to send its request")
        self.client.settimeout(left)
        data = self.client.recv(CHUNK_BYTES)
        if not data:
            raise EOFError
        self._buffer += data

    def _peek(self) -> int:
        if not self._buffer:
            self._receive()
        return self._buffer[0]

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._receive()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _read_head(self) -> bytes:
        while True:
            at = self._buffer.find(b"\r\n\r\n")
            if at >= 0:
                return self._read(at + 4)
            if len(self._buffer) > http_request.MAX_HEAD:
                raise RequestError("the HTTP head is too long")
            if self._buffer.count(b"\n") != self._buffer.count(b"\r\n"):
                raise RequestError("a line of the HTTP head ends without a carriage return")
            self._receive()


def _push_reader(head: http_request.RequestHead, requested: RequestGrant | None) -> PushReader | None:
    """Return what checks the refs of a push, if the request is one."""
    if requested is None or requested.push is None:
        return None
    if head.has("content-encoding"):
        raise RequestError("a push in a compressed request, whose refs cannot be read")
    return PushReader(requested.push)

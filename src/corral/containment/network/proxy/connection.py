"""One client of the proxy, from its first byte to the end. What it asks for is looked at before a byte of it goes anywhere."""

from __future__ import annotations

from select import POLLIN, poll
from time import monotonic

from corral._lib import network_grants
from corral.containment.network.proxy import http_request, socks, tls_hello
from corral.containment.network.proxy.connection_log import FullError
from corral.containment.network.proxy.relay import (
    CHUNK_BYTES,
    IDLE_SECONDS,
    ByteBudgetError,
    DiscardedInput,
    Flow,
    relay,
)
from corral.containment.network.proxy.upstream import RefusedError, UnreachableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from corral.containment.network.proxy.context import ProxyContext

# For what a client has to say before anything is let through, and as long again inside a tunnel.
HANDSHAKE_SECONDS = 30.0
_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOT_TLS = "a port for TLS, and it does not begin with a TLS hello"
_SPENT, _SHARE = "the sandbox has used up its share of bytes", "limits.network_bytes"


class ClientConnection:
    """A client that has come."""

    def __init__(self, client: socket, desk: ProxyContext) -> None:
        self.client = client
        self.desk = desk
        self.upstream: socket | None = None
        self.target = ""  # as far as it is known
        self._buffer = b""
        self._speaks = ""  # http or socks while an answer is expected
        self._until = 0.0  # when the client must have said what is waited for

    def serve(self) -> None:
        """Do what the client asks for, or say why not; then hang up."""
        self._wait(HANDSHAKE_SECONDS)
        try:
            self._begin()
        except RefusedError as error:
            self._say(403, f"{self.target or 'this'} is not let through: {error.detail}", error.grant)
        except UnreachableError as error:
            self._say(502, f"{self.target} cannot be reached: {error}")
        except (http_request.RequestError, socks.SocksError, tls_hello.HelloError) as error:
            self.desk.refuse(self.target, str(error))
            self._say(400, f"refused: {error}", reply=getattr(error, "reply", b""))
        except ByteBudgetError:
            self.desk.refuse(self.target, _SPENT, _SHARE)
            self._say(403, f"{self.target} is not let through: {_SPENT}", _SHARE)
        except FullError as error:
            self.desk.refuse(self.target, str(error))
            self._say(403, f"{self.target} is not let through: {error}, until the command has ended")
        except (OSError, EOFError):
            # One of the two has hung up, or said nothing for too long.
            pass
        finally:
            self.client.close()
            if self.upstream is not None:
                self.upstream.close()

    def _begin(self) -> None:
        first = self._peek()
        if first == socks.VERSION:
            self._speaks = "socks"
            self._socks()
        elif 0x41 <= first <= 0x5A or 0x61 <= first <= 0x7A:
            self._speaks = "http"
            self._http()
        else:
            raise http_request.RequestError("it speaks neither HTTP nor SOCKS5")

    def _socks(self) -> None:
        socks.greeting(self._read)
        self.client.sendall(socks.GREETED)
        text, port = socks.request(self._read)
        name = self._open(text, port)
        self.client.sendall(socks.answer(socks.GRANTED))
        self._tunnel(name, port)

    def _http(self) -> None:
        head = http_request.parse(self._read_head())
        if head.method != "CONNECT":
            name, port, path = self._destination(head)
            http_request.check_host(head, name, port)
            self._open(name, port)
            self._forward(head, path, name, port)
            return
        text, port = self._authority(head.target)
        if head.values("content-length") not in ([], ["0"]) or head.values("transfer-encoding"):
            raise http_request.RequestError("a CONNECT with a body")
        if head.values("host"):
            http_request.check_host(head, text, port)
        name = self._open(text, port)
        self.client.sendall(_CONNECTED)
        self._tunnel(name, port)

    def _destination(self, head: http_request.RequestHead) -> tuple[str, int, str]:
        self.target = head.target
        try:
            return http_request.destination(head)
        except ValueError as error:
            raise http_request.RequestError(str(error)) from None

    def _authority(self, text: str) -> tuple[str, int]:
        self.target = text
        try:
            return network_grants.parse_authority(text)
        except ValueError as error:
            raise http_request.RequestError(str(error)) from None

    def _open(self, text: str, port: int) -> str:
        self.target = f"{text}:{port}"
        name, self.upstream = self.desk.open(text, port)
        self.target = network_grants.format_destination(name, port)
        return name

    def _tunnel(self, name: str, port: int) -> None:
        """Let the client speak to the server itself, once its first words are known to be for that server."""
        self._speaks = ""
        self._wait(HANDSHAKE_SECONDS)
        assert self.upstream is not None  # noqa: S101  opened before
        if port in network_grants.TLS_PORTS:
            if self._peek() != tls_hello.HANDSHAKE:
                raise RefusedError(self._noted(_NOT_TLS))
            self._check_hello(name, port)
        elif port == http_request.HTTP_PORT:
            self._request_in_tunnel(name, port)
            return
        else:
            kind = self._first_words(self.upstream)
            if kind == "tls":
                self._check_hello(name, port)
            elif kind == "http":
                self._request_in_tunnel(name, port)
                return
        self.desk.budget.take(len(self._buffer))
        self.upstream.sendall(self._buffer)
        relay((Flow(self.client, self.upstream, self.desk.budget), Flow(self.upstream, self.client, self.desk.budget)))

    def _first_words(self, upstream: socket) -> str:
        """Return what the client begins with; a server may speak first, and is heard meanwhile."""
        poller = poll()
        poller.register(self.client.fileno(), POLLIN)
        poller.register(upstream.fileno(), POLLIN)
        while True:
            if self._buffer:
                if self._buffer[0] == tls_hello.HANDSHAKE:
                    return "tls"
                is_request = http_request.looks_like_request(self._buffer)
                if is_request is not None:
                    return "http" if is_request else "other"
            ready = {number for number, _ in poller.poll(IDLE_SECONDS * 1000)}
            if not ready:
                raise TimeoutError("nothing was said for too long")
            if upstream.fileno() in ready:
                data = upstream.recv(CHUNK_BYTES)
                if not data:
                    raise EOFError
                self.desk.budget.take(len(data))
                self.client.sendall(data)
            if self.client.fileno() in ready:
                self._wait(HANDSHAKE_SECONDS)
                self._more()

    def _check_hello(self, name: str, port: int) -> None:
        while (asked := tls_hello.server_name(self._buffer)) is None:
            self._more()
        if asked == ("" if network_grants.is_address(name) else name):
            return
        whom = network_grants.format_destination(asked, port) if asked else "no server by name"
        raise RefusedError(
            self._noted(f"its TLS hello asks for {whom}"),
            network_grants.format_destination(asked, port) if asked else "",
        )

    def _noted(self, detail: str) -> str:
        self.desk.refuse(self.target, detail)
        return detail

    def _request_in_tunnel(self, name: str, port: int) -> None:
        self._speaks = "http"
        head = http_request.parse(self._read_head())
        is_path = head.target.startswith("/") or (head.method, head.target) == ("OPTIONS", "*")
        if not is_path or head.method == "CONNECT":
            raise http_request.RequestError("a server is asked with a path alone")
        http_request.check_host(head, name, port)
        self._forward(head, head.target, name, port)

    def _forward(self, head: http_request.RequestHead, path: str, name: str, port: int) -> None:
        """Send one request, and hand back what is answered until the server hangs up."""
        added = self.desk.added(name, port)
        body = http_request.framing(head)
        is_default = port == http_request.HTTP_PORT or port in network_grants.TLS_PORTS
        place = network_grants.format_destination(name, port)
        made = http_request.rewrite_head(head, path, place.rpartition(":")[0] if is_default else place, added)
        assert self.upstream is not None  # noqa: S101  opened before
        upstream = self.upstream
        if port in network_grants.TLS_PORTS:
            # Plain inside, where nobody listens but the sandbox itself; never plain on the way.
            self.upstream = upstream = self.desk.over_tls(upstream, name, port)
        if any(value.lower() == "100-continue" for value in head.values("expect")) and not body.is_whole:
            self.client.sendall(_CONTINUE)
        self.desk.budget.take(len(made))
        self._speaks = ""
        upstream.settimeout(IDLE_SECONDS)
        upstream.sendall(made)
        self._send_body(body, upstream)
        answer = Flow(upstream, self.client, self.desk.budget, is_tls=port in network_grants.TLS_PORTS)
        relay((answer, DiscardedInput(self.client)))

    def _send_body(self, body: http_request.Body, upstream: socket) -> None:
        while not body.is_whole:
            if not self._buffer:
                self._wait(IDLE_SECONDS)
                self._more()
            data, self._buffer = self._buffer, b""
            passed = body.feed(data)
            self.desk.budget.take(len(passed))
            try:
                upstream.sendall(passed)
            except (BrokenPipeError, ConnectionResetError):
                # A server may answer before it has heard all; what it said is handed back.
                return

    def _say(self, status: int, text: str, grant: str = "", *, reply: bytes = b"") -> None:
        """Answer in the client's own words, as long as it expects one from us."""
        # Of a tunnel that was refused, many programs show this and nothing else.
        words = "Not reached by corral" if status == 502 else "Refused by corral"
        key = "" if grant.startswith("limits.") else "containment.network, "
        said = f"corral: {text}{f'; the owner grants more: {key}{grant}' if grant else ''}\n"
        if self._speaks == "http":
            body = ascii(said)[1:-1].replace("\\n", "\n").encode()
            head = f"HTTP/1.1 {status} {words}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            reply = f"{head}Connection: close\r\n\r\n".encode() + body
        elif self._speaks == "socks" and not reply:
            reply = socks.answer({403: socks.NOT_ALLOWED, 502: socks.UNREACHABLE}.get(status, socks.FAILED))
        if reply:
            try:
                self.client.sendall(reply)
            except OSError:
                # It did not wait for the answer.
                return

    def _wait(self, seconds: float) -> None:
        """Give the client so long for all that it says next: one that says a byte at a time is not waited for longer."""
        self._until = monotonic() + seconds

    def _more(self) -> None:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("it took too long to say what it wants")
        self.client.settimeout(left)
        data = self.client.recv(CHUNK_BYTES)
        if not data:
            raise EOFError
        self._buffer += data

    def _peek(self) -> int:
        if not self._buffer:
            self._more()
        return self._buffer[0]

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _read_head(self) -> bytes:
        while True:
            at = self._buffer.find(b"\r\n\r\n")
            if at >= 0:
                return self._read(at + 4)
            if len(self._buffer) > http_request.MAX_HEAD:
                raise http_request.RequestError("a head that has no end")
            if self._buffer.count(b"\n") != self._buffer.count(b"\r\n"):
                raise http_request.RequestError("a line that ends without a carriage return")
            self._more()

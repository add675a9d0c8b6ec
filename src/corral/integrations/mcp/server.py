"""Serves an MCP client over its own pipes, or over HTTP on the loopback interface, with a token and for no request of a web page."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import stat
import sys
from signal import SIG_DFL, SIGINT, signal

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from corral.guard.path_zones import inside
from corral.integrations.mcp.server_state import ServerState
from corral.integrations.mcp.stdio import serve_pipes
from corral.integrations.mcp.tools import make_server
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Transport
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH = "/mcp"
TOKEN_BYTES = 32
MIN_TOKEN = 32  # characters
MAX_TOKEN = 1024
GRACE_SECONDS = 3  # for open streams when the server ends
HEAD_SECONDS = 5.0  # for the head of a request; anyone on this machine can connect, and needs no token for that
MAX_CONNECTIONS = 200  # a further one gets 503; against a machine without free descriptors for commands
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


def serve_stdio(root: str, environ: Mapping[str, str], *, profile: str | None) -> None:
    """Serve the client that started this process, until it closes its end."""
    state = ServerState(root, environ, profile=profile)
    _check_policy(state)
    if sys.stdin.isatty():
        print("corral: this is an MCP server; it reads JSON from a client on stdin. Ctrl-D ends it", file=sys.stderr)
    # Python cannot cancel the thread that waits for the client's next line, and would wait for it. When this process dies, the
    # keeper ends everything, as it does after SIGTERM.
    signal(SIGINT, SIG_DFL)
    anyio.run(serve_pipes, make_server(state))


def serve_http(
    root: str, environ: Mapping[str, str], address: str, *, profile: str | None, token_file: str | None
) -> None:
    """Serve clients on this machine that know the token."""
    state = ServerState(root, environ, profile=profile, sweeps=True)
    _check_policy(state)
    host, port = local_address(address)
    token = secrets.token_urlsafe(TOKEN_BYTES) if token_file is None else read_token(token_file, state.bound)
    with _listen(host, port) as listener:
        port = listener.getsockname()[1]
        names = [f"{name}:{port}" for name in LOCAL_NAMES]
        security = TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])
        app = make_server(state).streamable_http_app(streamable_http_path=PATH, transport_security=security)
        shown = f"[{host}]" if ":" in host else host
        print(f"corral: MCP on http://{shown}:{port}{PATH}", file=sys.stderr)
        if token_file is None:
            print(f"corral: send the header Authorization: Bearer {token}", file=sys.stderr)
        config = uvicorn.Config(
            RequestFilter(app, token, names, state),
            http=Connection,
            limit_concurrency=MAX_CONNECTIONS,
            lifespan="on",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        anyio.run(lambda: uvicorn.Server(config).serve(sockets=[listener]))


def local_address(text: str) -> tuple[str, int]:
    """Parse `PORT` or `HOST:PORT`; raise PolicyError if the host is not a loopback address."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise PolicyError(f"--http takes PORT or HOST:PORT, such as 8765 or 127.0.0.1:8765, not {text!r}")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise PolicyError(
            f"--http listens only on 127.0.0.1, ::1 or localhost, not on {host!r}, because every client can run commands. "
            "To connect from another machine, forward the port with ssh -L"
        )
    return host, int(port)


def read_token(path: str, bound: str) -> str:
    """Read the token from a file that only this user can read, and that commands cannot."""
    how = "create one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"
    if inside(os.path.realpath(path), bound.rstrip("/")):
        raise PolicyError(f"--token-file {path} is inside {bound}, where commands could read it; keep it elsewhere")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PolicyError(f"--token-file {path} cannot be read: {error.strerror}; {how}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o177:
            raise PolicyError(
                f"--token-file {path} must be a regular file of yours that no other user can read; run: chmod 600 {path}"
            )
        text = os.read(descriptor, MAX_TOKEN + 2).strip()
    finally:
        os.close(descriptor)
    if not MIN_TOKEN <= len(text) <= MAX_TOKEN or not text.isascii() or len(text.split()) != 1:
        raise PolicyError(f"--token-file {path} must contain one word of {MIN_TOKEN} to {MAX_TOKEN} characters; {how}")
    return text.decode()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise PolicyError(f"--http cannot listen on {host}:{port}: {error.strerror}") from None


def _check_policy(state: ServerState) -> None:
    """Read the policy once before the first call, so that its errors appear where the server is started."""
    if state.bound != "/":
        state.load(state.bound)


class Connection(H11Protocol):
    """A connection of a client. It is closed when the head of a request does not arrive in time; uvicorn would wait for ever."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the clock."""
        super().connection_made(transport)
        self._wait_for_request(None)

    def _wait_for_request(self, last: object) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered and last == (self.cycle,):
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(HEAD_SECONDS, self._wait_for_request, (self.cycle,) if is_answered else None)


class RequestFilter:
    """Lets a request pass that names this server, comes from no other web page and has the token.

    Ends the background processes of a session that the client deletes.
    """

    def __init__(self, app: ASGIApp, token: str, names: list[str], state: ServerState) -> None:
        self._app = app
        self._expected = f"bearer {token}".encode()
        self._hosts = frozenset(name.encode() for name in names)
        self._origins = frozenset(f"http://{name}".encode() for name in names)
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        refusal = self._refusal(scope) if scope["type"] != "lifespan" else None
        session = _header(scope, b"mcp-session-id").decode("latin-1") if scope.get("method") == "DELETE" else ""
        if refusal is not None or not session:
            await (refusal or self._app)(scope, receive, send)
            return
        statuses: list[int] = []

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        await self._app(scope, receive, watch)
        if statuses and 200 <= statuses[0] < 300:
            await self._state.end_session(session)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        # The token is checked last: a web page that made a browser send the request learns nothing about it.
        if _header(scope, b"host") not in self._hosts:
            return PlainTextResponse("the Host header names another server\n", 421)
        if any(name == b"origin" for name, _ in scope["headers"]) and _header(scope, b"origin") not in self._origins:
            return PlainTextResponse("the Origin header names another site\n", 403)
        scheme, _, word = _header(scope, b"authorization").partition(b" ")
        if not hmac.compare_digest(scheme.lower() + b" " + word.strip(), self._expected):
            return PlainTextResponse("a bearer token is required\n", 401, {"WWW-Authenticate": "Bearer"})
        return None


def _header(scope: Scope, wanted: bytes) -> bytes:
    """Return the value of a header; empty if the header is missing or repeated."""
    found = [value for name, value in scope["headers"] if name == wanted]
    return found[0] if len(found) == 1 else b""

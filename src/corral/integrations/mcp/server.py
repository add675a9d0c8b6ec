"""How a client reaches the server: its own pipes, or HTTP on this machine alone, with a token, for requests that no web page can make."""

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

from corral.guard.path_zones import inside
from corral.integrations.mcp.server_state import ServerState
from corral.integrations.mcp.tools import make_server
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/mcp"
TOKEN_BYTES = 32
MIN_TOKEN = 32  # characters
MAX_TOKEN = 1024
GRACE_SECONDS = 3  # for open streams when the server is told to end
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


def serve_stdio(root: str, environ: Mapping[str, str], *, profile: str | None) -> None:
    """Serve the client that started this process, until it hangs up."""
    desk = ServerState(root, environ, profile=profile)
    _look(desk)
    if sys.stdin.isatty():
        print(
            "corral: an MCP server, which speaks JSON with a client on stdin and stdout; Ctrl-D ends it",
            file=sys.stderr,
        )
    # A thread that waits for the client's next line cannot be called off, and Python would wait for it: without us the
    # keeper ends everything, as it does after SIGTERM.
    signal(SIGINT, SIG_DFL)
    anyio.run(make_server(desk).run_stdio_async)


def serve_http(
    root: str, environ: Mapping[str, str], address: str, *, profile: str | None, token_file: str | None
) -> None:
    """Serve clients on this machine that know the token."""
    desk = ServerState(root, environ, profile=profile, sweeps=True)
    _look(desk)
    host, port = local_address(address)
    token = secrets.token_urlsafe(TOKEN_BYTES) if token_file is None else read_token(token_file, desk.bound)
    with _listen(host, port) as listener:
        port = listener.getsockname()[1]
        names = [f"{name}:{port}" for name in LOCAL_NAMES]
        security = TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])
        app = make_server(desk).streamable_http_app(streamable_http_path=PATH, transport_security=security)
        shown = f"[{host}]" if ":" in host else host
        print(f"corral: MCP on http://{shown}:{port}{PATH}", file=sys.stderr)
        if token_file is None:
            print(f"corral: send the header Authorization: Bearer {token}", file=sys.stderr)
        config = uvicorn.Config(
            Gate(app, token, names, desk),
            lifespan="on",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        anyio.run(lambda: uvicorn.Server(config).serve(sockets=[listener]))


def local_address(text: str) -> tuple[str, int]:
    """Return host and port of `PORT` or `HOST:PORT`; PolicyError for any but this machine's own loopback."""
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
            f"--http listens on this machine alone: 127.0.0.1, ::1 or localhost, not {host!r}. "
            "Who can reach it can run commands; from elsewhere, forward the port with ssh -L"
        )
    return host, int(port)


def read_token(path: str, bound: str) -> str:
    """Return the token in a file that only this user can read, and no command."""
    how = "make one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"
    if inside(os.path.realpath(path), bound.rstrip("/")):
        raise PolicyError(f"--token-file {path} lies inside {bound}, where commands could read it; keep it elsewhere")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PolicyError(f"--token-file {path} cannot be read: {error.strerror}; {how}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o177:
            raise PolicyError(
                f"--token-file {path} must be a file of yours that nobody else can read; run: chmod 600 {path}"
            )
        text = os.read(descriptor, MAX_TOKEN + 2).strip()
    finally:
        os.close(descriptor)
    if not MIN_TOKEN <= len(text) <= MAX_TOKEN or not text.isascii() or len(text.split()) != 1:
        raise PolicyError(f"--token-file {path} must hold one word of {MIN_TOKEN} to {MAX_TOKEN} characters; {how}")
    return text.decode()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise PolicyError(f"--http cannot listen on {host}:{port}: {error.strerror}") from None


def _look(desk: ServerState) -> None:
    """Read the policy once before anybody calls, so that what is wrong with it shows where the server is started."""
    if desk.bound != "/":
        desk.load(desk.bound)


class Gate:
    """Lets a request through that names this server, comes from no other web page, and has the token; ends what a session leaves."""

    def __init__(self, app: ASGIApp, token: str, names: list[str], desk: ServerState) -> None:
        self._app = app
        self._expected = f"bearer {token}".encode()
        self._hosts = frozenset(name.encode() for name in names)
        self._origins = frozenset(f"http://{name}".encode() for name in names)
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)
        if scope["method"] == "DELETE":
            await self._desk.jobs.end(session=_one(scope, b"mcp-session-id").decode("latin-1"))

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        # Before the token: a page that has tricked a browser into asking learns nothing of it.
        if _one(scope, b"host") not in self._hosts:
            return PlainTextResponse("the Host header names another server\n", 421)
        if any(name == b"origin" for name, _ in scope["headers"]) and _one(scope, b"origin") not in self._origins:
            return PlainTextResponse("the Origin header names another site\n", 403)
        given = _one(scope, b"authorization")
        scheme, _, word = given.partition(b" ")
        if not hmac.compare_digest(scheme.lower() + b" " + word.strip(), self._expected):
            return PlainTextResponse("a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
        return None


def _one(scope: Scope, wanted: bytes) -> bytes:
    """Return a header that stands there once; nothing where it does not, or twice."""
    found = [value for name, value in scope["headers"] if name == wanted]
    return found[0] if len(found) == 1 else b""

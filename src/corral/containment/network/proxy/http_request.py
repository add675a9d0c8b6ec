"""Parses and rewrites one HTTP request, and finds the end of its body. Pure and strict.

A request that two parsers could understand in two ways is refused, so that no second request is smuggled inside the first.
"""

from __future__ import annotations

from corral._lib.network import network_grants
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_HEAD = 64 * 1024
MAX_HEADERS = 200
MAX_CHUNK_LINE = 256
HTTP_PORT = 80
MAX_METHOD = 32  # characters; the longest registered method has 17
_TOKEN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~")
_TEXT = frozenset([9, *range(32, 127), *range(128, 256)])
_TARGET = frozenset(range(33, 127))
_HEX = frozenset(b"0123456789abcdefABCDEF")
_BLANKS = b" \t\r\n\v\f"
# A server answers these with the request itself, and so with the injected credentials.
_ECHOES = frozenset({"TRACE", "TRACK"})
_HOP_BY_HOP = {
    *("connection", "proxy-connection", "keep-alive", "proxy-authorization", "proxy-authenticate"),
    *("te", "upgrade", "expect"),
}
_FRAMING = {"host", "content-length", "transfer-encoding", "trailer"}
_METHODS_WITHOUT_VERSION = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP2_FRAME_HEAD = 9  # bytes
_HTTP2_SETTINGS = 4
_CONTROLS = bytes(range(33))
# Servers in Python split a request's first line at these too.
_MORE_BLANKS = bytes.maketrans(b"\x1c\x1d\x1e\x1f\x85\xa0", b"      ")
_KEPT_BYTES = 256  # of either end of a line that is not complete: enough for its first words and its last


class RequestError(ValueError):
    """The request is malformed, or ambiguous between parsers."""


@frozen
class RequestHead(Record):
    """The request line and the headers of a request."""

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """Return all values of a header. The name is in lower case."""
        return [value for key, value in self.headers if key.lower() == name]

    def has(self, name: str) -> bool:
        """Return whether some server could find a header of this name, which is in lower case."""
        return any(_folded(key) == name for key, _ in self.headers)


def parse(data: bytes) -> RequestHead:
    """Parse the bytes of a head, up to and including the empty line."""
    lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if len(lines) - 1 > MAX_HEADERS:
        raise RequestError("too many HTTP headers")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise RequestError("not an HTTP/1.1 request")
    method, target, version = parts
    if not method or not _TOKEN.issuperset(method) or not target or not _TARGET.issuperset(target):
        raise RequestError("not an HTTP/1.1 request")
    headers = tuple(_header(line) for line in lines[1:])
    return RequestHead(method.decode(), target.decode(), version.decode(), headers)


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    # Some parsers end a header at a bare line feed, at a folded line, or at a blank before the colon.
    if not colon or not name or not _TOKEN.issuperset(name) or not _TEXT.issuperset(value):
        raise RequestError("malformed HTTP header")
    text = name.decode("ascii")
    if (folded := _folded(text)) != text.lower() and folded in _FRAMING | _HOP_BY_HOP:
        raise RequestError(f"some servers read the header {text[:40]} as {folded}")
    return text, value.strip(b" \t").decode("latin-1")


def _folded(name: str) -> str:
    """Return a header's name as servers see it that pass headers to programs as variables: these have no `-`, `_` or other signs."""
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def destination(head: RequestHead) -> tuple[str, int, str]:
    """Return host, port and path of a request to a proxy. Raise ValueError if the target is not an absolute http URL."""
    scheme, found, rest = head.target.partition("://")
    if not found or scheme.lower() != "http":
        raise RequestError("a request to a proxy needs an absolute URL, such as http://host/path")
    place, slash, path = rest.partition("/")
    if "?" in place or "#" in head.target or "\\" in head.target:
        raise RequestError("ambiguous URL")
    name, number = network_grants.parse_authority(place, HTTP_PORT)
    return name, number, slash + path or "/"


def check_host(head: RequestHead, name: str, number: int) -> None:
    """Raise RequestError unless the Host header names the destination."""
    given = head.values("host")
    if len(given) > 1 or (not given and head.version == "HTTP/1.1"):
        raise RequestError("the request must have exactly one Host header")
    for value in given:
        try:
            asked = network_grants.parse_authority(value, number)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if asked != (name, number):
            place = network_grants.format_destination(name, number)
            raise RequestError(f"the request goes to {place}, but its Host header says {value[:80]!r}")


def framing(head: RequestHead) -> Body:
    """Return an object that finds the end of the request's body."""
    lengths, codings = head.values("content-length"), head.values("transfer-encoding")
    if (lengths and codings) or len(lengths) > 1 or len(codings) > 1:
        raise RequestError("the request states its length more than once")
    if codings:
        if codings[0].lower() != "chunked" or head.version != "HTTP/1.1":
            raise RequestError("unknown Transfer-Encoding")
        return ChunkedBody()
    text = lengths[0] if lengths else "0"
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RequestError("Content-Length is not a number")
    return FixedLengthBody(int(text))


def asks_for_websocket(head: RequestHead) -> bool:
    """Return whether a request asks to turn the connection into a WebSocket, in the one usual form."""
    words = [word.strip().lower() for value in head.values("connection") for word in value.split(",")]
    is_whole = not (head.has("content-length") or head.has("transfer-encoding"))
    upgrades = [value.lower() for value in head.values("upgrade")]
    return (
        (head.method, head.version, upgrades) == ("GET", "HTTP/1.1", ["websocket"]) and "upgrade" in words and is_whole
    )


def accepts_websocket(answer: bytes) -> bool:
    """Return whether the head of an answer turns the connection into a WebSocket."""
    lines = answer.split(b"\r\n")
    upgrades = [line.partition(b":")[2].strip().lower() for line in lines[1:] if line.lower().startswith(b"upgrade:")]
    return lines[0].startswith(b"HTTP/1.1 101") and upgrades == [b"websocket"]


def rewrite_head(
    head: RequestHead, path: str, place: str, added: Sequence[tuple[str, str]], *, upgrades: bool = False
) -> bytes:
    """Return the head to send to the server: a single request, after which the connection is closed, or is a WebSocket."""
    if added and head.method.upper() in _ECHOES:
        raise RequestError(f"the answer to {head.method} would reveal the credentials that corral adds")
    own = {_folded(name) for name, _ in added}
    # The Connection header names further hop-by-hop headers.
    named = {word.strip().lower() for value in head.values("connection") for word in value.split(",")}
    if named & {"host", "content-length", "transfer-encoding"}:
        raise RequestError("the Connection header removes a header that states the request's host or length")
    lines = [f"{head.method} {path} {head.version}", f"Host: {place}"]
    for name, value in head.headers:
        if name.lower() not in _HOP_BY_HOP | named | {"host"} and _folded(name) not in own:
            lines.append(f"{name}: {value}")
    lines += [f"{name}: {value}" for name, value in added]
    ending = ["Connection: Upgrade", "Upgrade: websocket"] if upgrades else ["Connection: close"]
    return "\r\n".join([*lines, *ending, "", ""]).encode("latin-1")


class FixedLengthBody:
    """A body of a known number of bytes. `check` sees its content, and may raise."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.check: Callable[[bytes], object] | None = None

    @property
    def is_whole(self) -> bool:
        """True if the whole body was fed."""
        return self.left == 0

    def feed(self, data: bytes) -> bytes:
        """Return the part of the data that belongs to the body."""
        taken = data[: self.left]
        self.left -= len(taken)
        if self.check is not None:
            self.check(taken)
        return taken


class ChunkedBody:
    """A body in chunks, each preceded by its length. Only bytes that were understood are passed on. `check` sees their content."""

    def __init__(self) -> None:
        self.check: Callable[[bytes], object] | None = None
        self.is_whole = False
        self._buffer = b""
        self._left = 0  # bytes of the current chunk, including the line end after it
        self._is_last = False  # the last chunk was read, and trailers may follow

    def feed(self, data: bytes) -> bytes:
        """Return the part of the data that belongs to the body."""
        self._buffer += data
        passed = b""
        while self._buffer and not self.is_whole:
            if self._left > 2:
                taken = self._buffer[: self._left - 2]
                self._buffer = self._buffer[len(taken) :]
                self._left -= len(taken)
                if self.check is not None:
                    self.check(taken)
                passed += taken
                continue
            line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                if len(self._buffer) > MAX_CHUNK_LINE or (self._left and self._buffer not in (b"", b"\r")):
                    raise RequestError("unterminated line in a chunked body")
                break
            self._buffer = rest
            passed += self._line(line)
        return passed

    def _line(self, line: bytes) -> bytes:
        if self._left:
            if line:
                raise RequestError("a chunk is longer than its stated length")
            self._left = 0
        elif self._is_last:
            if line:
                # A trailer may contradict a header.
                raise RequestError("headers after a chunked body")
            self.is_whole = True
        else:
            # No chunk extensions: parsers disagree on where they end.
            if not line or len(line) > 16 or not _HEX.issuperset(line):
                raise RequestError("the length of a chunk is not a number")
            size = int(line, 16)
            self._is_last = size == 0
            self._left = size + 2 if size else 0
        return line + b"\r\n"


Body = FixedLengthBody | ChunkedBody


def begins_http2(data: bytes) -> bool | None:
    """Say whether a client begins HTTP/2 without TLS, as gRPC does. None if more bytes are needed."""
    if len(data) < len(HTTP2_PREFACE):
        return None if data and HTTP2_PREFACE.startswith(data) else False
    return data.startswith(HTTP2_PREFACE)


def is_http2_answer(data: bytes) -> bool:
    """Return whether a server's first bytes are the SETTINGS frame with which HTTP/2 begins: no other server's are."""
    return len(data) >= HTTP2_FRAME_HEAD and data[3] == _HTTP2_SETTINGS and data[4:9] == bytes(5)


def looks_like_request(data: bytes) -> bool | None:
    """Say whether the most lenient server would take a client's first line for an HTTP request. None if more bytes are needed."""
    # By the version at the end of the line, not by the method: servers accept any method, and skip blank lines before it.
    line, is_whole, _ = data.lstrip(_BLANKS).partition(b"\n")
    if b"HTTP/" in line.upper() or len(data) > MAX_HEAD:
        return True
    # HTTP/0.9 has no version. Some servers still read headers after it.
    if is_whole and line.startswith((b"GET /", b"GET http")):
        return True
    if is_whole:
        return False
    method = line.split(maxsplit=1)[0] if line else b""
    could_be = not method or (method[:1].isalpha() and len(method) <= MAX_METHOD and _TOKEN.issuperset(method))
    return None if could_be else False


class RequestScanner:
    """Refuses a tunnel whose client sends an HTTP request after other bytes: a lenient server would answer it, whatever its Host is.

    A line is judged when it ends, so the end of a request line is never forwarded.
    """

    def __init__(self) -> None:
        self._line = b""
        self._has_no_version = False  # the last lines may be a request without a version, and its headers

    def feed(self, data: bytes) -> None:
        """Read the client's next bytes. Raise RequestError at the end of a line that could be a request's first."""
        *lines, last = (self._line + data.replace(b"\r", b"\n")).split(b"\n")
        self._line = last if len(last) <= 2 * _KEPT_BYTES else last[:_KEPT_BYTES] + last[-_KEPT_BYTES:]
        for line in lines:
            # Most lines of binary protocols have neither.
            if (b"/" in line or self._has_no_version) and self._is_request(line):
                raise RequestError("an HTTP request follows bytes of another protocol, so its Host is not checked")

    def _is_request(self, line: bytes) -> bool:
        line = line.translate(_MORE_BLANKS)
        words = line.split()
        if self._has_no_version and words:
            name, colon, _ = line.partition(b":")
            self._has_no_version = bool(colon) and _TOKEN.issuperset(name.strip())
            if self._has_no_version and name.strip().lower() == b"host":
                return True
        if len(words) < 2:
            return False
        is_target = words[1] == b"*" or words[1].lower().startswith((b"/", b"http:", b"https:"))
        versions = [_is_version(word) for word in words[2:]]
        if not versions:
            self._has_no_version = self._has_no_version or is_target
            return is_target and words[0] in _METHODS_WITHOUT_VERSION
        return versions[-1] or (is_target and any(versions))


def _is_version(word: bytes) -> bool:
    number = word[5:].strip(_CONTROLS)
    return word[:5].upper() == b"HTTP/" and number[:1].isdigit() and number.replace(b".", b"").isdigit()

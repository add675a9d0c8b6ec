"""One HTTP request: its head, taken apart and put together anew, and where its body ends. Pure and strict.

What two readers could understand in two ways is refused, so that no second request travels inside the first.
"""

from __future__ import annotations

from corral._lib import network_grants
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HEAD = 64 * 1024
MAX_HEADERS = 200
MAX_CHUNK_LINE = 256
HTTP_PORT = 80
MAX_METHOD = 32  # characters; the longest that is registered has 17
_TOKEN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~")
_TEXT = frozenset([9, *range(32, 127), *range(128, 256)])
_TARGET = frozenset(range(33, 127))
_HEX = frozenset(b"0123456789abcdefABCDEF")
_BLANKS = b" \t\r\n\v\f"
# Of what was added, nobody inside may ask to be told what a request looked like.
_ECHOES = frozenset({"TRACE", "TRACK"})
# Of this one connection, and not for the server.
_HOP = frozenset(
    {
        "connection",
        "proxy-connection",
        "keep-alive",
        "proxy-authorization",
        "proxy-authenticate",
        "te",
        "upgrade",
        "expect",
    }
)


class RequestError(ValueError):
    """The request is not one that everybody understands in the same way."""


@frozen
class RequestHead(Record):
    """The head of a request."""

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self.headers if key.lower() == name]


def parse(data: bytes) -> RequestHead:
    """Return the head that ends with an empty line."""
    lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if len(lines) - 1 > MAX_HEADERS:
        raise RequestError("too many headers")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise RequestError("not a request of HTTP/1.1")
    method, target, version = parts
    if not method or not _TOKEN.issuperset(method) or not target or not _TARGET.issuperset(target):
        raise RequestError("not a request of HTTP/1.1")
    headers = tuple(_header(line) for line in lines[1:])
    return RequestHead(method.decode(), target.decode(), version.decode(), headers)


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    # A bare line feed, a folded line, a blank before the colon: each is the end of a header to somebody.
    if not colon or not name or not _TOKEN.issuperset(name) or not _TEXT.issuperset(value):
        raise RequestError("a header that not everybody reads alike")
    return name.decode("ascii"), value.strip(b" \t").decode("latin-1")


def destination(head: RequestHead) -> tuple[str, int, str]:
    """Return host, port and path of a request to a proxy, whose target is a whole address; ValueError where it is none."""
    scheme, found, rest = head.target.partition("://")
    if not found or scheme.lower() != "http":
        raise RequestError("a proxy is asked with a whole address, http://host/path")
    place, slash, path = rest.partition("/")
    if "?" in place or "#" in head.target or "\\" in head.target:
        raise RequestError("an address that not everybody reads alike")
    name, number = network_grants.parse_authority(place, HTTP_PORT)
    return name, number, slash + path or "/"


def check_host(head: RequestHead, name: str, number: int) -> None:
    """Refuse a request whose Host is not the one it goes to."""
    given = head.values("host")
    if len(given) > 1 or (not given and head.version == "HTTP/1.1"):
        raise RequestError("it must name its host once")
    for value in given:
        try:
            asked = network_grants.parse_authority(value, number)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if asked != (name, number):
            raise RequestError(
                f"it goes to {network_grants.format_destination(name, number)}, and its Host says {value[:80]!r}"
            )


def framing(head: RequestHead) -> Body:
    """Return what finds the end of the request's body."""
    lengths, codings = head.values("content-length"), head.values("transfer-encoding")
    if (lengths and codings) or len(lengths) > 1 or len(codings) > 1:
        raise RequestError("it says more than once where it ends")
    if codings:
        if codings[0].lower() != "chunked" or head.version != "HTTP/1.1":
            raise RequestError("a transfer coding that is not known")
        return ChunkedBody()
    text = lengths[0] if lengths else "0"
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RequestError("a length that is no number")
    return FixedLengthBody(int(text))


def rewrite_head(head: RequestHead, path: str, place: str, added: Sequence[tuple[str, str]]) -> bytes:
    """Return the head as the server gets it: one request, after which the connection is closed."""
    if added and head.method.upper() in _ECHOES:
        raise RequestError("its answer would tell the credentials that are added to it")
    own = {name.lower() for name, _ in added}
    # What is named in Connection is of this connection too.
    named = {word.strip().lower() for value in head.values("connection") for word in value.split(",")}
    if named & {"host", "content-length", "transfer-encoding"}:
        raise RequestError("it would take away what says where it ends")
    lines = [f"{head.method} {path} {head.version}", f"Host: {place}"]
    for name, value in head.headers:
        if name.lower() not in _HOP | named | own | {"host"}:
            lines.append(f"{name}: {value}")
    lines += [f"{name}: {value}" for name, value in added]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")


class FixedLengthBody:
    """A body of so many bytes."""

    def __init__(self, count: int) -> None:
        self.left = count

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self.left == 0

    def feed(self, data: bytes) -> bytes:
        """Return what of the data is the body's."""
        taken = data[: self.left]
        self.left -= len(taken)
        return taken


class ChunkedBody:
    """A body in chunks, each with its length in front; what is passed on is exactly what was understood."""

    def __init__(self) -> None:
        self.is_whole = False
        self._buffer = b""
        self._left = 0  # of the chunk at hand, with the line end after it
        self._ends = False  # whether the last chunk has come, and lines follow

    def feed(self, data: bytes) -> bytes:
        """Return what of the data is the body's."""
        self._buffer += data
        passed = b""
        while self._buffer and not self.is_whole:
            if self._left > 2:
                taken = self._buffer[: self._left - 2]
                self._buffer = self._buffer[len(taken) :]
                self._left -= len(taken)
                passed += taken
                continue
            line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                self._refuse_long()
                break
            self._buffer = rest
            passed += self._line(line)
        return passed

    def _line(self, line: bytes) -> bytes:
        if self._left:
            if line:
                raise RequestError("a chunk that is longer than it says")
            self._left = 0
        elif self._ends:
            if line:
                # Trailers may say again what the head has said.
                raise RequestError("headers behind its body")
            self.is_whole = True
        else:
            # No extensions: some end a chunk there, some do not.
            if not line or len(line) > 16 or not _HEX.issuperset(line):
                raise RequestError("a chunk whose length is no number")
            size = int(line, 16)
            self._ends = size == 0
            self._left = size + 2 if size else 0
        return line + b"\r\n"

    def _refuse_long(self) -> None:
        if len(self._buffer) > MAX_CHUNK_LINE or (self._left and self._buffer not in (b"", b"\r")):
            raise RequestError("a chunk that has no end")


Body = FixedLengthBody | ChunkedBody


def looks_like_request(data: bytes) -> bool | None:
    """Say whether a client's first line is an HTTP request, to whoever reads most leniently; None while it could become one."""
    # By its end, not by a list of methods: servers take any, and skip empty lines and blanks in front of it.
    line, is_whole, _ = data.lstrip(_BLANKS).partition(b"\n")
    if b"HTTP/" in line.upper() or len(data) > MAX_HEAD:
        return True
    # HTTP/0.9, which names no version; some servers read headers behind it all the same.
    if is_whole and line.startswith((b"GET /", b"GET http")):
        return True
    if is_whole:
        return False
    method = line.split(maxsplit=1)[0] if line else b""
    could_be = not method or (method[:1].isalpha() and len(method) <= MAX_METHOD and _TOKEN.issuperset(method))
    return None if could_be else False

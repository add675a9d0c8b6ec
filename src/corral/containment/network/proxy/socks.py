"""Parses SOCKS5 requests to connect, without login. Strict. The caller's `read(n)` returns exactly n bytes."""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 5
GRANTED, FAILED, NOT_ALLOWED, UNREACHABLE, UNKNOWN_COMMAND, UNKNOWN_ADDRESS = 0, 1, 2, 4, 7, 8
GREETED, NO_METHOD = b"\x05\x00", b"\x05\xff"
_CONNECT = 1
_NO_LOGIN = 0


class SocksError(ValueError):
    """The client's message is not an acceptable request. `reply` is the answer to send."""

    def __init__(self, message: str, reply: bytes = b"") -> None:
        super().__init__(message)
        self.reply = reply


def answer(code: int) -> bytes:
    """Return the answer to a request. Clients do not use the address in it, so it is zero."""
    return bytes((VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0))


def greeting(read: Callable[[int], bytes]) -> None:
    """Read a client's greeting. Raise SocksError if it does not offer to connect without a login."""
    version, count = read(2)
    if version != VERSION or _NO_LOGIN not in read(count):
        raise SocksError("the SOCKS5 client requires a login", NO_METHOD)


def request(read: Callable[[int], bytes]) -> tuple[str, int]:
    """Return the host, as the client wrote it, and the port that it asks for."""
    version, command, reserved, kind = read(4)
    if version != VERSION or reserved != 0:
        raise SocksError("malformed SOCKS5 request", answer(FAILED))
    if kind == 1:
        host = inet_ntop(AF_INET, read(4))
    elif kind == 4:
        host = inet_ntop(AF_INET6, read(16))
    elif kind == 3:
        # Any bytes: network_grants alone decides which of them are a name.
        host = read(read(1)[0]).decode("latin-1")
    else:
        raise SocksError("unknown SOCKS5 address type", answer(UNKNOWN_ADDRESS))
    port = int.from_bytes(read(2), "big")
    if command != _CONNECT:
        raise SocksError("only the SOCKS5 command CONNECT is supported", answer(UNKNOWN_COMMAND))
    return host, port

"""SOCKS5 as far as a client needs it to connect: no login, a name or an address. Strict; `read` gives exactly so many bytes."""

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
    """What the client says is no request; `reply` is what to answer."""

    def __init__(self, message: str, reply: bytes = b"") -> None:
        super().__init__(message)
        self.reply = reply


def answer(code: int) -> bytes:
    """Return the answer to a request; the address in it is of no use to anybody."""
    return bytes((VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0))


def greeting(read: Callable[[int], bytes]) -> None:
    """Take a client's greeting; SocksError unless it comes without a login."""
    version, count = read(2)
    if version != VERSION or _NO_LOGIN not in read(count):
        raise SocksError("it wants a login", NO_METHOD)


def request(read: Callable[[int], bytes]) -> tuple[str, int]:
    """Return the host, as it was written, and the port that a client asks for."""
    version, command, reserved, kind = read(4)
    if version != VERSION or reserved != 0:
        raise SocksError("not a request of SOCKS5", answer(FAILED))
    if kind == 1:
        host = inet_ntop(AF_INET, read(4))
    elif kind == 4:
        host = inet_ntop(AF_INET6, read(16))
    elif kind == 3:
        # Whatever bytes they are: which of them make a name is decided in one place.
        host = read(read(1)[0]).decode("latin-1")
    else:
        raise SocksError("an address of an unknown kind", answer(UNKNOWN_ADDRESS))
    port = int.from_bytes(read(2), "big")
    if command != _CONNECT:
        raise SocksError("only connecting is possible, not listening or UDP", answer(UNKNOWN_COMMAND))
    return host, port

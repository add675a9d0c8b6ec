"""Parses the server name from a TLS ClientHello. Pure and strict: an incomplete or unusual message is refused."""

from __future__ import annotations

from corral._lib.network import network_grants

MAX_BYTES = 64 * 1024  # of a ClientHello; with post-quantum keys it has about 2,000
MAX_RECORDS = 1024  # that a ClientHello may be split into; all are parsed again whenever more bytes arrive
HANDSHAKE = 0x16
_CLIENT_HELLO = 1
_SERVER_NAME, _ENCRYPTED = 0, 0xFE0D
_MAX_RECORD = 1 << 14


class HelloError(ValueError):
    """The client's first bytes are not an acceptable ClientHello."""


def server_name(data: bytes) -> str | None:
    """Return the server name in a ClientHello, "" if it has none, or None if more bytes are needed."""
    message = _message(data)
    if message is None:
        return None
    extensions = _extensions(message)
    if _ENCRYPTED in extensions:
        # The encrypted part names another server. A dummy (GREASE) extension cannot be told from a real one.
        raise HelloError("the TLS ClientHello is encrypted (ECH), so its server name cannot be checked")
    return _parse_server_name(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else ""


def _message(data: bytes) -> bytes | None:
    """Return the body of the handshake message that TLS records carry, or None if it is incomplete."""
    message, at = b"", 0
    for _ in range(MAX_RECORDS):
        head = data[at : at + 5]
        if head and (head[0] != HANDSHAKE or (len(head) > 1 and head[1] != 3)):
            raise HelloError("the first bytes are not a TLS ClientHello")
        if len(head) < 5:
            break
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= _MAX_RECORD:
            raise HelloError("invalid record length in the TLS ClientHello")
        message += data[at + 5 : at + 5 + length]
        if message[0:1] not in (b"", bytes((_CLIENT_HELLO,))):
            raise HelloError("the first bytes are not a TLS ClientHello")
        if len(message) >= 4:
            whole = 4 + int.from_bytes(message[1:4], "big")
            if whole > MAX_BYTES:
                raise HelloError("the TLS ClientHello is too long")
            # Also if the rest of the record is still to come: the server would read it before it answers.
            if len(message) > whole or (len(message) == whole and at + 5 + length > len(data)):
                raise HelloError("more data follows the TLS ClientHello")
            if len(message) == whole:
                return message[4:]
        at += 5 + length
        if at > len(data):
            break
    else:
        raise HelloError("the TLS ClientHello is split into too many records")
    if len(data) > MAX_BYTES:
        raise HelloError("the TLS ClientHello is too long")
    return None


class _Fields:
    """Reads the fields of a message in order, and raises HelloError where one is missing."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise HelloError("the TLS ClientHello is truncated")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def vector(self, count: int) -> bytes:
        """Return a field that is preceded by its length in `count` bytes."""
        return self.take(self.number(count))


def _extensions(message: bytes) -> dict[int, bytes]:
    fields = _Fields(message)
    fields.take(2 + 32)  # version and random
    fields.vector(1)  # session
    fields.vector(2)  # ciphers
    fields.vector(1)  # compression
    found: dict[int, bytes] = {}
    if not fields.data:
        return found
    listed = _Fields(fields.vector(2))
    if fields.data:
        raise HelloError("more data follows the extensions in the TLS ClientHello")
    while listed.data:
        kind = listed.number(2)
        if kind in found:
            raise HelloError("duplicate extension in the TLS ClientHello")
        found[kind] = listed.vector(2)
    return found


def _parse_server_name(extension: bytes) -> str:
    fields = _Fields(extension)
    names = _Fields(fields.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or names.data or fields.data:
        raise HelloError("the TLS ClientHello names more than one server")
    try:
        return network_grants.parse_host(name.decode("ascii"))
    except ValueError:
        raise HelloError("invalid server name in the TLS ClientHello") from None

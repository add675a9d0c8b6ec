"""The server that a TLS client asks for, from its first words. Pure and strict: what is not whole, or not plain, is refused."""

from __future__ import annotations

from corral._lib import network_grants

MAX_BYTES = 64 * 1024  # of a hello; post-quantum keys make two thousand, nobody makes this many
HANDSHAKE = 0x16
_CLIENT_HELLO = 1
_SERVER_NAME, _ENCRYPTED = 0, 0xFE0D
_MAX_RECORD = 1 << 14
MAX_RECORDS = 1024  # that a hello is cut into; it is read anew as more of it comes


class HelloError(ValueError):
    """The client's first words are no hello that could be let through."""


def server_name(data: bytes) -> str | None:
    """Return the server that a hello asks for, empty where it names none; None while there is more to come."""
    message = _message(data)
    if message is None:
        return None
    extensions = _extensions(message)
    if _ENCRYPTED in extensions:
        # What is inside names another server, which only the real one can read; and a dummy looks just like it.
        raise HelloError("its TLS hello is encrypted (ECH), so that nobody sees which server it asks for")
    return _named(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else ""


def _message(data: bytes) -> bytes | None:
    """Return the handshake message that TLS records carry, as far as they have come; None while it is not whole."""
    message, at = b"", 0
    for _ in range(MAX_RECORDS):
        head = data[at : at + 5]
        if head and (head[0] != HANDSHAKE or (len(head) > 1 and head[1] != 3)):
            raise HelloError("it does not begin with a TLS hello")
        if len(head) < 5:
            break
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= _MAX_RECORD:
            raise HelloError("its TLS hello has a record of a wrong length")
        message += data[at + 5 : at + 5 + length]
        if message[0:1] not in (b"", bytes((_CLIENT_HELLO,))):
            raise HelloError("it does not begin with a TLS hello")
        if len(message) >= 4:
            whole = 4 + int.from_bytes(message[1:4], "big")
            if whole > MAX_BYTES:
                raise HelloError("its TLS hello is too long")
            # Also what the record holds back: it would be read after the hello, and before anybody answers it.
            if len(message) > whole or (len(message) == whole and at + 5 + length > len(data)):
                raise HelloError("its TLS hello is followed by something else")
            if len(message) == whole:
                return message[4:]
        at += 5 + length
        if at > len(data):
            break
    else:
        raise HelloError("its TLS hello comes in too many pieces")
    if len(data) > MAX_BYTES:
        raise HelloError("its TLS hello is too long")
    return None


class _Fields:
    """Takes a message apart; what is missing is an error."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > len(self.data):
            raise HelloError("its TLS hello is cut")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, count: int) -> int:
        """Return the number in the next bytes."""
        return int.from_bytes(self.take(count), "big")

    def counted(self, count: int) -> bytes:
        """Return what follows a length of so many bytes."""
        return self.take(self.number(count))


def _extensions(message: bytes) -> dict[int, bytes]:
    fields = _Fields(message)
    fields.take(2 + 32)  # version and random
    fields.counted(1)  # session
    fields.counted(2)  # ciphers
    fields.counted(1)  # compression
    found: dict[int, bytes] = {}
    if not fields.data:
        return found
    listed = _Fields(fields.counted(2))
    if fields.data:
        raise HelloError("its TLS hello is longer than it says")
    while listed.data:
        kind = listed.number(2)
        if kind in found:
            raise HelloError("its TLS hello says a thing twice")
        found[kind] = listed.counted(2)
    return found


def _named(extension: bytes) -> str:
    fields = _Fields(extension)
    names = _Fields(fields.counted(2))
    kind, name = names.number(1), names.counted(2)
    if kind != 0 or names.data or fields.data:
        raise HelloError("its TLS hello names more than one server")
    try:
        return network_grants.parse_host(name.decode("ascii"))
    except ValueError:
        raise HelloError("its TLS hello names a server in a form that is not usual") from None

"""Answers the DNS queries of commands: a granted name has an address on the sandbox's loopback, and no other name exists.

It asks no other server, so no query leaves the machine. A refusal is an answer too: without one, programs would wait and try again.
"""

from __future__ import annotations

from _socket import MSG_DONTWAIT
from time import monotonic

from corral._lib.network import network_grants
from corral._lib.network.name_addresses import MAX_WILDCARD_NAMES, is_name_address
from corral._lib.records import Record, frozen
from corral.containment.network.proxy.connection_log import NAME_REFUSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from corral._lib.network.name_addresses import NameAddresses

MAX_QUERY = 512
A, PTR, AAAA = 1, 12, 28
_INTERNET = 1
_RESPONSE, _AUTHORITATIVE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0100, 0x0080
_OPCODE = 0x7800
NO_ERROR, FORMAT_ERROR, NO_SUCH_NAME, NOT_IMPLEMENTED, REFUSED = 0, 1, 3, 4, 5
_TTL_SECONDS = 60
_REVERSE = ".in-addr.arpa"
_BATCH = 64  # queries before other clients are served
_REPEATED_SECONDS = 5.0  # in which a query for a name's other kind of address is part of the same attempt
_MAX_REFUSED = 1000  # names that are remembered for that
POOL_USED_UP = f"{MAX_WILDCARD_NAMES} names below wildcards have an address already"
NO_ADDRESS = "no address could be opened for it"


class QueryError(ValueError):
    """The query is malformed. `code` is the answer."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@frozen
class Query(Record):
    """A question for the records of one name."""

    number: int
    flags: int
    name: str  # in lower case and without the last dot; "" for the root, and for what is no name of a host
    kind: int
    question: bytes  # as it came, for the answer


def parse_query(data: bytes) -> Query:
    """Parse a query with one question. Raise QueryError for anything else."""
    if len(data) < 12:
        raise QueryError(FORMAT_ERROR)
    number, flags, count = (int.from_bytes(data[at : at + 2], "big") for at in (0, 2, 4))
    if flags & (_RESPONSE | _OPCODE):
        raise QueryError(NOT_IMPLEMENTED)
    if count != 1:
        raise QueryError(FORMAT_ERROR)
    labels, at = [], 12
    while length := data[at] if at < len(data) else 64:
        # A question has no compressed names, so a longer label is malformed.
        if length > network_grants.MAX_LABEL or at + 1 + length >= len(data) or at - 12 > network_grants.MAX_NAME:
            raise QueryError(FORMAT_ERROR)
        labels.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    end = at + 5
    if end > len(data):
        raise QueryError(FORMAT_ERROR)
    if int.from_bytes(data[at + 3 : end], "big") != _INTERNET:
        raise QueryError(NOT_IMPLEMENTED)
    # A dot inside a label would name another host in text.
    is_plain = all(b"." not in label and label.isascii() for label in labels)
    name = b".".join(labels).decode("ascii").lower() if is_plain else ""
    return Query(number, flags, name, int.from_bytes(data[at + 1 : at + 3], "big"), data[12:end])


def reply(query: Query, code: int, record: bytes = b"") -> bytes:
    """Return the answer to a query: a code, and the data of a record of the kind that was asked for."""
    flags = _RESPONSE | _AUTHORITATIVE | _RECURSION_AVAILABLE | (query.flags & _RECURSION_DESIRED) | code
    words = (query.number, flags, 1, 1 if record else 0, 0, 0)
    head = b"".join(word.to_bytes(2, "big") for word in words)
    if not record:
        return head + query.question
    kind = query.kind.to_bytes(2, "big") + _INTERNET.to_bytes(2, "big")
    # 0xc00c is the name of the question.
    answer = b"\xc0\x0c" + kind + _TTL_SECONDS.to_bytes(4, "big") + len(record).to_bytes(2, "big") + record
    return head + query.question + answer


def error_reply(data: bytes, code: int) -> bytes:
    """Return the answer to a malformed query, or nothing if it has no number or is no query."""
    if len(data) < 12 or data[2] & 0x80:
        return b""
    return data[:2] + (_RESPONSE | code).to_bytes(2, "big") + bytes(8)


def _encoded_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split(".")) + b"\0"


class Responder:
    """Answers on one socket. `allot` opens a name below a wildcard, and returns its address or "".

    `refuse` logs a refused name. `own_name` is the machine's: programs ask for it without wanting a network.
    """

    def __init__(
        self,
        sock: socket,
        names: NameAddresses,
        allot: Callable[[str], str],
        refuse: Callable[[str, str], None],
        own_name: str = "",
    ) -> None:
        self._sock = sock
        self._names = names
        self._allot = allot
        self._refuse = refuse
        self._own_name = own_name.lower()
        self._refused: dict[str, tuple[int, float]] = {}  # kind and time of the last refusal

    def serve(self) -> None:
        """Answer the queries that wait, up to a number."""
        for _ in range(_BATCH):
            try:
                data, client = self._sock.recvfrom(MAX_QUERY, MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                # An earlier answer did not arrive.
                continue
            answer = self.answer(data)
            if answer:
                try:
                    self._sock.sendto(answer, MSG_DONTWAIT, client)
                except OSError:
                    # The program has gone.
                    continue

    def answer(self, data: bytes) -> bytes:
        """Return the answer to the bytes of a query, or nothing."""
        try:
            query = parse_query(data)
        except QueryError as error:
            return error_reply(data, error.code)
        if query.kind == PTR:
            name = self._reverse(query.name)
            return reply(query, NO_ERROR, _encoded_name(name)) if name else reply(query, NO_SUCH_NAME)
        if network_grants.is_loopback_name(query.name):
            records = {A: bytes((127, 0, 0, 1)), AAAA: bytes(15) + b"\x01"}
            return reply(query, NO_ERROR, records.get(query.kind, b""))
        address = self._address(query)
        if not address:
            return reply(query, NO_SUCH_NAME)
        record = bytes(map(int, address.split("."))) if query.kind == A else b""
        return reply(query, NO_ERROR, record)

    def _reverse(self, text: str) -> str:
        if not text.endswith(_REVERSE):
            return ""
        address = ".".join(reversed(text.removesuffix(_REVERSE).split(".")))
        if address == "127.0.0.1":
            return "localhost"
        return self._names.name(address) if is_name_address(address) else ""

    def _address(self, query: Query) -> str:
        try:
            name = network_grants.parse_host(query.name)
        except ValueError:
            return ""
        known = self._names.address(name)
        if known:
            return known
        if not network_grants.is_address(name) and self._names.ports(name):
            if not self._names.has_room:
                self._refuse(name, POOL_USED_UP)
                return ""
            address = self._allot(name)
            if not address:
                self._refuse(name, NO_ADDRESS)
            return address
        if query.kind in (A, AAAA) and name != self._own_name and not self._is_repeated(name, query.kind):
            self._refuse(name, NAME_REFUSED)
        return ""

    def _is_repeated(self, name: str, kind: int) -> bool:
        """Return whether a program asks for the second kind of address of a name that was just refused."""
        now = monotonic()
        last_kind, at = self._refused.get(name, (kind, 0.0))
        if last_kind != kind and now - at < _REPEATED_SECONDS:
            return True
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused[name] = (kind, now)
        return False

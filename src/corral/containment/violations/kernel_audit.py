"""Reads the kernel's audit records of refusals, if this user may read them and audit is on.

This only listens: it never switches audit on, and keeps no socket open while audit is off. A record counts for a command only if it
names the Landlock domain of the command's warden.
"""

from __future__ import annotations

from _socket import SO_RCVBUF, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_RAW, SOL_SOCKET, socket
from _struct import Struct
from select import POLLIN, poll

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.lazy_regex import pattern
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_AF_NETLINK, _NETLINK_AUDIT, _READLOG_GROUP = 16, 9, 1
_GET, _REQUEST = 1000, 1
SECCOMP, LANDLOCK_ACCESS, LANDLOCK_DOMAIN = 1326, 1423, 1424
_HEADER = Struct("=IHHII")  # length, type, flags, sequence, port
_STATUS = Struct("=II")  # mask, enabled
_BUFFER_BYTES = 1 << 20  # for a burst of records; the kernel caps it at the machine's limit
_MAX_RECORD_BYTES = 1 << 14
ANSWER_MILLISECONDS = 200
LATE_MILLISECONDS = 20  # a kernel thread delivers records, mostly within one millisecond
MAX_WAITING = 64  # records kept for a running command, against a loop of refusals
MAX_DOMAINS = 4096  # kept, against a host process that runs for long
# A field of a record. The kernel writes a value that contains a quote in hexadecimal.
_FIELD = pattern(r'([^\s="]*)=("[^"]*"|\S*)')
_UNTRUSTED = frozenset(
    ("path", "name", "comm", "exe", "ocomm")
)  # fields that the kernel quotes, or writes in hexadecimal


@frozen
class Denial(Record):
    """A refusal that the kernel recorded."""

    blockers: tuple[str, ...]  # the Landlock rights that were missing
    target: str
    at: float  # seconds since the epoch


def parse(text: str) -> tuple[float, dict[str, str]]:
    """Return the time and the fields of a record, or (0.0, {}) if the text is not a record."""
    head, _, rest = text.partition("): ")
    stamp, _, _ = head.removeprefix("audit(").partition(":")
    try:
        at = float(stamp)
    except ValueError:
        return 0.0, {}
    found = _FIELD.finditer(rest.rstrip("\0\n"))
    return at, {match[1]: _decoded(match[1], match[2]) for match in found}


def _decoded(name: str, value: str) -> str:
    if value.startswith('"'):
        return value.strip('"')
    if name in _UNTRUSTED:
        try:
            return bytes.fromhex(value).decode("utf-8", "surrogateescape")
        except ValueError:
            return value
    return value


def _target(fields: Mapping[str, str]) -> str:
    """Return the object of a refused request: a path, an address or a process."""
    if "path" in fields:
        return fields["path"]
    for address, port in (("daddr", "dest"), ("saddr", "src")):
        if address in fields or port in fields:
            return ":".join(fields[name] for name in (address, port) if name in fields)
    if "opid" in fields:
        return f"process {fields['opid']}"
    return fields.get("dev", "")


class AuditListener:
    """Collects the kernel's records by the process that entered the Landlock domain."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._poller = poll()
        self._poller.register(sock.fileno(), POLLIN)
        self._lock = ForkSafeLock()  # two threads must not use one poll object at once
        self._entered: dict[str, int] = {}  # the process that made each domain
        self._waiting: dict[str, list[Denial]] = {}  # by domain: the record that names its process comes later
        self.kills: list[tuple[float, dict[str, str]]] = []

    def take(self, pid: int, since: float, *, expected: bool) -> tuple[Denial, ...]:
        """Return the refusals in the domain of a process since a time. With `expected`, wait a moment for late records."""
        found: list[Denial] = []
        with self._lock:
            self._read(LATE_MILLISECONDS if expected else 0)
            for domain, entered in self._entered.items():
                if entered == pid:
                    # An older record came too late for its own command, and does not belong to this one.
                    found += [denial for denial in self._waiting.pop(domain, ()) if denial.at >= since]
        return tuple(found)

    def take_kill(self, since: float) -> dict[str, str]:
        """Return the fields of the first record since a time of a process that a seccomp filter killed, or {}."""
        with self._lock:
            self._read(LATE_MILLISECONDS)
            found = next((fields for at, fields in self.kills if at >= since), {})
            self.kills.clear()
        return found

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _read(self, milliseconds: int) -> None:
        while self._poller.poll(milliseconds):
            try:
                message = self._sock.recv(_MAX_RECORD_BYTES)
            except OSError:
                # The buffer overflowed. Lost refusals are inferred from error messages, as they are without audit.
                return
            milliseconds = 0
            self.handle(message)

    def handle(self, message: bytes) -> None:
        """Record one message of the kernel."""
        if len(message) < _HEADER.size:
            return
        kind = _HEADER.unpack_from(message)[1]
        if kind not in (SECCOMP, LANDLOCK_ACCESS, LANDLOCK_DOMAIN):
            return
        at, fields = parse(message[_HEADER.size :].decode("utf-8", "surrogateescape"))
        domain = fields.get("domain", "")
        if kind == SECCOMP:
            self.kills = [*self.kills[-MAX_WAITING:], (at, fields)]
        elif kind == LANDLOCK_ACCESS and domain:
            waiting = self._waiting.setdefault(domain, [])
            if len(waiting) < MAX_WAITING:
                waiting.append(Denial(tuple(fields.get("blockers", "").split(",")), _target(fields), at))
        elif kind == LANDLOCK_DOMAIN and fields.get("status") == "allocated" and fields.get("pid", "").isdecimal():
            self._entered[domain] = int(fields["pid"])
            while len(self._entered) > MAX_DOMAINS:
                self._forget(next(iter(self._entered)))
        elif kind == LANDLOCK_DOMAIN and fields.get("status") == "deallocated" and domain not in self._waiting:
            self._forget(domain)

    def _forget(self, domain: str) -> None:
        self._entered.pop(domain, None)
        self._waiting.pop(domain, None)


def open_socket() -> socket | None:
    """Return a socket that receives the kernel's records, or None if this user may not."""
    try:
        sock = socket(_AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, _NETLINK_AUDIT)
    except OSError:
        return None
    try:
        sock.bind((0, _READLOG_GROUP))
    except OSError:
        sock.close()
        return None
    return sock


def is_enabled(sock: socket) -> bool:
    """Ask the kernel whether audit is on. No answer counts as no."""
    poller = poll()
    poller.register(sock.fileno(), POLLIN)
    try:
        sock.send(_HEADER.pack(_HEADER.size, _GET, _REQUEST, 1, 0))
        while poller.poll(ANSWER_MILLISECONDS):
            message = sock.recv(_MAX_RECORD_BYTES)
            if _HEADER.unpack_from(message)[1:4:2] == (_GET, 1):
                return bool(_STATUS.unpack_from(message, _HEADER.size)[1])
    except OSError:
        return False
    return False


def open_listener() -> AuditListener | None:
    """Return a listener if audit is on and this user may read its records, else None."""
    sock = open_socket()
    if sock is None:
        return None
    if not is_enabled(sock):
        sock.close()
        return None
    sock.setsockopt(SOL_SOCKET, SO_RCVBUF, _BUFFER_BYTES)
    return AuditListener(sock)

"""What the kernel itself says that it refused: its audit records, where this user may read them and audit is on.

Only listens: nothing here switches audit on, and where it is off no socket stays open. A record counts for a command only if
the kernel names the warden's own domain in it.
"""

from __future__ import annotations

from _socket import SO_RCVBUF, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_RAW, SOL_SOCKET, socket
from _struct import Struct
from select import POLLIN, poll

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_AF_NETLINK, _NETLINK_AUDIT, _READLOG_GROUP = 16, 9, 1
_GET, _REQUEST = 1000, 1
SECCOMP, LANDLOCK_ACCESS, LANDLOCK_DOMAIN = 1326, 1423, 1424
_HEADER = Struct("=IHHII")  # length, type, flags, sequence, port
_STATUS = Struct("=II")  # mask, enabled
_BUFFER_BYTES = 1 << 20  # for a burst of records, as far as the machine's own bound goes
_MAX_RECORD_BYTES = 1 << 14
ANSWER_MILLISECONDS = 200
LATE_MILLISECONDS = 20  # the kernel hands records on from a thread of its own, mostly within one
MAX_WAITING = 64  # records kept for a command that has not ended yet, against one that is refused in a loop
MAX_DOMAINS = 4096  # whose denials are told apart, against a host that lives for long


@frozen
class Denial(Record):
    """One refusal in the kernel's own words: by which right or call, of what, and when in seconds of the epoch."""

    blockers: tuple[str, ...]
    target: str
    at: float


def parse(text: str) -> tuple[float, dict[str, str]]:
    """Return the time and the fields of a record's text; what is no record has neither."""
    head, _, rest = text.partition("): ")
    stamp, _, _ = head.removeprefix("audit(").partition(":")
    try:
        at = float(stamp)
    except ValueError:
        return 0.0, {}
    fields: dict[str, str] = {}
    for word in _words(rest.rstrip("\0\n")):
        name, equals, value = word.partition("=")
        if equals:
            fields[name] = _plain(name, value)
    return at, fields


def _words(text: str) -> list[str]:
    """Split at blanks outside quotes; a value with a quote of its own comes as hexadecimal."""
    words: list[str] = []
    for index, part in enumerate(text.split('"')):
        if index % 2:
            words[-1:] = [f'{words[-1] if words else ""}"{part}"']
        else:
            words += part.split()
    return words


_UNTRUSTED = frozenset(("path", "name", "comm", "exe", "ocomm"))  # what the kernel quotes, or writes in hexadecimal


def _plain(name: str, value: str) -> str:
    if value.startswith('"'):
        return value.strip('"')
    if name in _UNTRUSTED:
        try:
            return bytes.fromhex(value).decode("utf-8", "surrogateescape")
        except ValueError:
            return value
    return value


def _target(fields: Mapping[str, str]) -> str:
    """Return what a denied request was about: a path, an address, a process."""
    if "path" in fields:
        return fields["path"]
    for address, port in (("daddr", "dest"), ("saddr", "src")):
        if address in fields or port in fields:
            return ":".join(fields[name] for name in (address, port) if name in fields)
    if "opid" in fields:
        return f"process {fields['opid']}"
    return fields.get("dev", "")


class AuditListener:
    """The kernel's records, by the process that entered the domain which refused."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._poller = poll()
        self._poller.register(sock.fileno(), POLLIN)
        self._lock = ForkSafeLock()  # two threads may not even poll at once
        self._entered: dict[str, int] = {}  # domain to the process that made it
        self._waiting: dict[str, list[Denial]] = {}  # by domain: the record that names its process comes second
        self.kills: list[tuple[float, dict[str, str]]] = []

    def take(self, pid: int, since: float, *, expected: bool) -> tuple[Denial, ...]:
        """Return what was refused in the domain of a process since a time; `expected` gives a late record time to come."""
        found: list[Denial] = []
        with self._lock:
            self._read(LATE_MILLISECONDS if expected else 0)
            for domain, entered in self._entered.items():
                if entered == pid:
                    # An earlier one came too late for its own command, and is not this one's.
                    found += [denial for denial in self._waiting.pop(domain, ()) if denial.at >= since]
        return tuple(found)

    def take_kill(self, since: float) -> dict[str, str]:
        """Return the fields of the first record since a time of a process that a filter ended, or none."""
        with self._lock:
            self._read(LATE_MILLISECONDS)
            found = next((fields for at, fields in self.kills if at >= since), {})
            self.kills.clear()
        return found

    def close(self) -> None:
        """Hear no more."""
        self._sock.close()

    def _read(self, milliseconds: int) -> None:
        while self._poller.poll(milliseconds):
            try:
                message = self._sock.recv(_MAX_RECORD_BYTES)
            except OSError:
                # More came than the buffer holds; what was lost is inferred from words, as it is without audit.
                return
            milliseconds = 0
            self.hear(message)

    def hear(self, message: bytes) -> None:
        """Note what one message of the kernel says."""
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
    """Return a socket that hears the kernel's records, or nothing where this user may not."""
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
    """Ask the kernel whether audit is on; not to be told is no."""
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
    """Return a listener where it would hear something: audit is on, and this user may read its records."""
    sock = open_socket()
    if sock is None:
        return None
    if not is_enabled(sock):
        sock.close()
        return None
    sock.setsockopt(SOL_SOCKET, SO_RCVBUF, _BUFFER_BYTES)
    return AuditListener(sock)

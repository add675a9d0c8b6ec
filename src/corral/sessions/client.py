"""Runs one call in a session: the short program that a rewritten command starts. It decides nothing.

Returns None where no service took the call, so that the caller runs it without a session. A call that a service may have
started is never run a second time. This imports only built-in modules and `protocol`: with the interpreter itself, that is
nearly all that a command of a session costs.
"""

import marshal
import posix
import sys
from _signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]  # `signal` imports enum
from _socket import AF_UNIX, SO_PEERCRED, SOCK_CLOEXEC, SOCK_SEQPACKET, SOL_SOCKET, socket

from corral.sessions import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FAILURE_STATUS = 125
KILL = 9
SERVICE = -1  # the position of the service's socket in the record of a pending call
_DIRECTORY_FLAGS = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
_MAX_RECORD = 64 * 1024 * 1024
LOST = -1  # instead of an exit status: the service has ended, and may have run the call
LOST_TEXT = b"corral: the session ended while it ran the command, so the command is not run again\n"


def run_pending(state: str, line: "list[str]") -> "int | None":
    """Run the call that a hook stored under an id, if its session serves it. `line` is `go`, the id, and the text if it is shown."""
    if len(line) not in (2, 3) or line[0] != "go" or not line[1].isalnum():
        return None
    record = f"{state}/pending/{line[1]}"
    try:
        name = _service_of(record)
    except (OSError, ValueError, EOFError, TypeError, IndexError):
        return None
    sock = connect(name) if name else None
    if sock is None:
        return None
    # Bytes: the locale decides how Python decodes an argument.
    encoding, errors = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    text = line[2].encode(encoding, errors) if len(line) == 3 else None
    status = run(sock, (protocol.RUN_PENDING, line[1], text))
    if status == LOST:
        # A service takes the record of a call before it starts it. If it is there, nothing was started.
        if _exists(record):
            return None
        write(2, LOST_TEXT)
        return FAILURE_STATUS
    return status


def _exists(path: str) -> bool:
    try:
        posix.lstat(path)
    except OSError:
        return False
    return True


def _service_of(path: str) -> str:
    descriptor = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        size = posix.fstat(descriptor).st_size
        name = marshal.loads(posix.read(descriptor, min(size, _MAX_RECORD)))[SERVICE]  # noqa: S302  only the user can write the store
    finally:
        posix.close(descriptor)
    return name if isinstance(name, str) else ""


def connect(path: str) -> "socket | None":
    """Return a connection to the service at a path, or None. The directory and the service must be this user's own."""
    folder, _, name = path.rpartition("/")
    try:
        directory = posix.open(folder, _DIRECTORY_FLAGS)
    except OSError:
        return None
    sock = None
    try:
        found = posix.fstat(directory)
        if found.st_uid != posix.geteuid() or found.st_mode & 0o077:
            return None
        sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
        # By the descriptor: the path of a socket is limited to 107 bytes.
        sock.connect(f"/proc/self/fd/{directory}/{name}")
        user = int.from_bytes(sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], "little")
        if user == posix.geteuid():
            return sock
    except OSError:
        # No service runs, or it has ended.
        pass
    finally:
        posix.close(directory)
    if sock is not None:
        sock.close()
    return None


def run(sock: socket, request: "tuple[Any, ...]") -> "int | None":
    """Run a call with this process's streams and environment. Return its exit status, None if it did not start, or LOST."""
    streams = [_stream(number) for number in range(3)]
    mask = posix.umask(0o077)
    posix.umask(mask)
    try:
        protocol.send(sock, (*request, dict(posix.environ), mask), streams)
    except (OSError, protocol.ProtocolError):
        # A packet is sent as a whole or not at all.
        sock.close()
        return None
    finally:
        protocol.close_all([number for number in streams if number > 2])
    return _await_end(sock)


def _stream(number: int) -> int:
    try:
        posix.fstat(number)
    except OSError:
        return posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
    return number


def _await_end(sock: socket) -> "int | None":
    ending = [0]
    interrupts = [0]

    def forward(number: int, _: object) -> None:
        if number == SIGINT:
            # The command has a session of its own, so the signal is passed on. The second one kills.
            interrupts[0] += 1
            number = KILL if interrupts[0] > 1 else number
        else:
            ending[0] = 128 + number
            number = KILL
        try:
            protocol.send(sock, (protocol.SIGNAL, number))
        except (OSError, protocol.ProtocolError):
            # The service is gone, which the next receive() notices.
            return

    handlers = {number: getsignal(number) for number in (SIGINT, SIGTERM, SIGHUP)}
    for number, handler in handlers.items():
        if handler is not SIG_IGN:
            signal(number, forward)
    try:
        answer, descriptors = protocol.receive(sock)
        protocol.close_all(descriptors)
    except (OSError, protocol.ProtocolError):
        answer = ()
    finally:
        for number, handler in handlers.items():
            signal(number, handler)
        sock.close()
    if answer[:1] == (protocol.NOT_HERE,):
        return ending[0] or (128 + SIGINT if interrupts[0] else None)
    if not answer or answer[0] != protocol.ENDED:
        return ending[0] or LOST
    _, status, stdout, stderr = answer
    write(1, stdout)
    write(2, stderr)
    return ending[0] or int(status)


def write(descriptor: int, data: bytes) -> bool:
    """Write a message. Returns false if it could not be written."""
    view = memoryview(data)
    try:
        while view:
            view = view[posix.write(descriptor, view) :]
    except OSError:
        return False
    return True

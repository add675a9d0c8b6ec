"""Defines the messages between a session's service and its clients, one per packet of a unix socket.

The client of a rewritten command runs once for every command, so this module imports nothing but built-in modules.
"""

import marshal
import posix
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_NOSIGNAL, MSG_TRUNC, SCM_RIGHTS, SOL_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Sequence
    from typing import Any

VERSION = 1  # another version is refused, and the call runs without a session
# Requests of a client. The first message of a connection is one of these.
RUN_PENDING, RUN, START = "run-pending", "run", "start"
LIST, LOGS, INPUT, STOP, HOOK = "list", "logs", "input", "stop", "hook"
PUBLISH = "publish"  # a port inside, one of this machine or 0, and whether that ends
SIGNAL = "signal"  # a later message of the client: a signal for the command
# Answers of the service.
NOT_HERE = "not-here"  # nothing was started and nothing will be: the client runs the call without a session
ENDED = "ended"  # the command has ended: exit status, and text for stdout and stderr
STARTED = "started"  # a process that stays was started
ANSWERED = "answered"  # the answer of a hook: text for stdout and stderr, and the exit status
FACTS = "facts"  # the answer to a question
REFUSED = "refused"  # the request cannot be served, and why

MAX_PACKET_BYTES = 60_000  # a larger message goes in a memory file
MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # of a memory file: an environment and a command are below 4 MB together
MAX_DESCRIPTORS = 4
_IN_PACKET, _IN_FILE = b"p", b"f"


class ProtocolError(Exception):
    """The peer sent something that is not a message."""


def send(sock: "socket", message: "tuple[Any, ...]", descriptors: "Sequence[int]" = ()) -> None:
    """Send one message with descriptors."""
    data = marshal.dumps((VERSION, *message))
    if len(data) <= MAX_PACKET_BYTES:
        _send_packet(sock, _IN_PACKET + data, descriptors)
        return
    file = posix.memfd_create("corral-message", 1)  # MFD_CLOEXEC
    try:
        view = memoryview(data)
        while view:
            view = view[posix.write(file, view) :]
        _send_packet(sock, _IN_FILE, (*descriptors, file))
    finally:
        posix.close(file)


def _send_packet(sock: "socket", data: bytes, descriptors: "Sequence[int]") -> None:
    rights = b"".join(number.to_bytes(4, "little") for number in descriptors)
    if rights:
        sock.sendmsg((data,), ((SOL_SOCKET, SCM_RIGHTS, rights),), MSG_NOSIGNAL)
    else:
        sock.send(data, MSG_NOSIGNAL)


def receive(sock: "socket") -> "tuple[tuple[Any, ...], list[int]]":
    """Receive one message and its descriptors. The message is empty if the peer is gone. Raise ProtocolError for anything else."""
    data, ancillary, flags, _ = sock.recvmsg(MAX_PACKET_BYTES + 1, CMSG_SPACE(MAX_DESCRIPTORS * 4), MSG_CMSG_CLOEXEC)
    descriptors = [
        int.from_bytes(rights[at : at + 4], "little")
        for level, kind, rights in ancillary
        if level == SOL_SOCKET and kind == SCM_RIGHTS
        for at in range(0, len(rights) - 3, 4)
    ]
    try:
        if flags & (MSG_TRUNC | MSG_CTRUNC):
            raise ProtocolError("a message was truncated")
        if not data:
            return (), descriptors
        body = data[1:]
        if data[:1] == _IN_FILE:
            if not descriptors:
                raise ProtocolError("a message has no file")
            body = _read(descriptors.pop())
        version, *message = marshal.loads(body)  # noqa: S302  both sides check first that the peer is the same user, outside a sandbox
        if version != VERSION:
            raise ProtocolError("the other side is of another version of corral")
        return tuple(message), descriptors
    except BaseException as error:
        close_all(descriptors)
        if isinstance(error, (ValueError, EOFError, TypeError, OSError)):
            raise ProtocolError(f"a message cannot be read: {error}") from None
        raise


def _read(file: int) -> bytes:
    try:
        size = posix.fstat(file).st_size
        if size > MAX_MESSAGE_BYTES:
            raise ProtocolError("a message is too long")
        return posix.pread(file, size, 0)
    finally:
        posix.close(file)


def close_all(descriptors: "Sequence[int]") -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        posix.close(descriptor)

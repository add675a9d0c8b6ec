"""Defines the messages between a stub inside a sandbox and the broker outside, over SOCK_SEQPACKET.

A request is text between NUL bytes, so that there is nothing to parse. The sender is not trusted: any command can speak to the socket.
"""

from __future__ import annotations

import os
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_NOSIGNAL, MSG_TRUNC, SCM_RIGHTS, SOL_SOCKET, socket
from _struct import unpack

SHOWN_AT = "/run/corral"  # the broker's directory, inside
GREETING = b"corral-broker/1"
MAX_REQUEST_BYTES = 128 * 1024
MAX_WORDS = 1024
MAX_LATER_BYTES = 1024  # of every message after the request
MAX_PATH_BYTES = 4096  # of a file that the stub opens
MAX_SAID_BYTES = 4096
STREAMS = 3  # the descriptors of a request: stdin, stdout, stderr
SIGNALS = (1, 2, 3, 15)  # that a stub may pass on: hang-up, interrupt, quit, terminate


class RequestError(ValueError):
    """The message is not valid."""


def receive(sock: socket, size: int, descriptors: int) -> tuple[bytes, list[int]]:
    """Receive one message of at most `size` bytes, with at most so many descriptors. Raise RequestError if it has more."""
    data, ancillary, flags, _ = sock.recvmsg(size + 1, CMSG_SPACE((descriptors + 1) * 4), MSG_CMSG_CLOEXEC)
    given: list[int] = []
    for level, kind, rights in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            count = len(rights) // 4
            given += unpack(f"={count}i", rights[: count * 4])
    if flags & (MSG_TRUNC | MSG_CTRUNC) or len(data) > size or len(given) > descriptors:
        close_all(given)
        raise RequestError("the message is too large, or has too many descriptors")
    return data, given


def parse_request(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the program and the arguments of a request. Raise RequestError for anything else."""
    greeting, *words = data.split(b"\0")
    if greeting != GREETING or not words or not words[0]:
        raise RequestError("this is not a request to the broker")
    if len(words) - 1 > MAX_WORDS:
        raise RequestError(f"more than {MAX_WORDS} arguments")
    try:
        program, *argv = (word.decode("utf-8") for word in words)
    except UnicodeDecodeError:
        raise RequestError("an argument is not UTF-8") from None
    return program, tuple(argv)


def parse_signal(data: bytes) -> int:
    """Return the signal that a stub passes on. Raise RequestError for any other message."""
    for number in SIGNALS:
        if data == b"signal %d" % number:
            return number
    raise RequestError("this is not a message of a stub")


def send(sock: socket, data: bytes) -> bool:
    """Send one message. Return false if the stub is gone."""
    try:
        sock.send(data, MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def close_all(descriptors: list[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)

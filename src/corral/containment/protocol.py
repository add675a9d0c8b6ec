"""Defines the messages between host, keeper and warden: fixed structs over SOCK_SEQPACKET, with descriptors by SCM_RIGHTS.

Every message about a command carries the command's nonce, so that a late or forged message has no effect on another command.
"""

from __future__ import annotations

import fcntl
import marshal
import os
from _socket import (
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_CTRUNC,
    MSG_NOSIGNAL,
    MSG_TRUNC,
    SCM_RIGHTS,
    SOL_SOCKET,
    socket,
)
from _struct import Struct
from select import PIPE_BUF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

NEW, SWEEP, MAP, LIMIT_HITS, MOUNT_OVERLAY, UNMOUNT_OVERLAY = 1, 2, 10, 12, 13, 14  # host to keeper and back
READY, RUN, KILL, SIGNAL, DRAINED, EXITED, ENDED = 3, 4, 5, 6, 7, 8, 9  # host to warden and back
TERMINAL = 11  # warden to host, with the descriptor of a terminal's master end
REMOUNT = 16  # host to keeper and back, with the mount namespace of a warden
PUBLISH = 18  # host to keeper and back, with a port inside, a listening socket of the host, and a pipe that ends the publishing
FACTS = 17  # keeper to host, after READY: the layers and the places of control groups that it has tried
OUTPUT = 15  # warden to host, and once more with the read ends of the output pipes

NONCE_BYTES = 16
MAX_PACKET_BYTES = 32_000  # a larger body goes in a sealed memfd; beyond about 212 kB, send() fails with EMSGSIZE
MAX_PRINTED_BYTES = 32_000  # of output in an outcome, and at most one packet more of each stream
MAX_DESCRIPTORS = 5
ENFORCEMENTS = ("full", "partial", "none")

HAS_STDIN, HAS_BODY = 1, 2  # flags of a request: the descriptors that follow stdout and stderr
ON_TERMINAL = 4  # instead of stdout, stderr and stdin
WARDEN_MAKES_PIPES = 8  # instead of stdout and stderr: the warden makes the pipes
HAS_CONTROL = 16  # a descriptor after stdin, which becomes the command's number 3
NO_DIRECTORY, TIMED_OUT, UNKILLABLE_LEFT, NO_TERMINAL = (
    1,
    2,
    4,
    512,
)  # flags of an outcome; then the exceeded limits
TOO_MANY_PROCESSES, PROCESS_LIMIT_REACHED, TOO_MUCH_MEMORY, TOO_MUCH_CPU = 8, 16, 32, 64
TOO_MUCH_WRITTEN, DISK_NEARLY_FULL, INODES_NEARLY_USED_UP = 128, 256, 1024

# kind, nonce, monotonic deadline or 0, drain seconds, flags, bytes of the environment, rows and columns of a terminal
REQUEST = Struct(f"=B{NONCE_BYTES}sddBIHH")
# kind, nonce, signal
CONTROL = Struct(f"=B{NONCE_BYTES}sB")
# kind, nonce, flags, wait status, errno of a failed start, processes killed, user and system seconds, peak bytes of memory,
# bytes read and written, bytes of stdout and of stderr that follow
OUTCOME = Struct(f"=B{NONCE_BYTES}sHiiIddQQQII")
_PRINTED = Struct("=II")
_PRINTED_AT = OUTCOME.size - _PRINTED.size
# warden to keeper: nonce, CPU seconds and bytes written of the processes that have ended, bytes in shared memory
ASK = Struct(f"={NONCE_BYTES}sdQQ")
# and back: nonce, bytes of memory in use, exceeded limits
ANSWER = Struct(f"={NONCE_BYTES}sQH")
# kind, number
COUNT = Struct("=BI")

# One more: the kernel aligns the space for descriptors, so one that is too many may arrive.
_DESCRIPTORS = [Struct(f"{count}i") for count in range(MAX_DESCRIPTORS + 2)]
MAX_ANSWER_BYTES = OUTCOME.size + MAX_PRINTED_BYTES + 2 * PIPE_BUF
# The arguments of `recvmsg`.
RECEIVED = (max(MAX_PACKET_BYTES + REQUEST.size, MAX_ANSWER_BYTES), CMSG_SPACE(MAX_DESCRIPTORS * 4), MSG_CMSG_CLOEXEC)


class ProtocolError(Exception):
    """The peer sent something that is not a valid message."""


def send(sock: socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message."""
    if descriptors:
        rights = _DESCRIPTORS[len(descriptors)].pack(*descriptors)
        sock.sendmsg((data,), ((SOL_SOCKET, SCM_RIGHTS, rights),), MSG_NOSIGNAL)
    else:
        sock.send(data, MSG_NOSIGNAL)


def receive(sock: socket) -> tuple[bytes, tuple[int, ...]]:
    """Receive one message and its descriptors, which are close-on-exec. The message is empty if the peer is gone."""
    return parse_received(sock.recvmsg(*RECEIVED))


def parse_received(
    received: tuple[bytes, Sequence[tuple[int, int, bytes]], int, object],
) -> tuple[bytes, tuple[int, ...]]:
    """Return the message and the descriptors in the result of `recvmsg`. Raise an error if the message was truncated."""
    data, ancillary, flags, _ = received
    descriptors: tuple[int, ...] = ()
    for level, kind, rights in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            descriptors += _DESCRIPTORS[len(rights) // 4].unpack(rights)
    if flags & (MSG_TRUNC | MSG_CTRUNC):
        close_all(descriptors)
        raise ProtocolError("a message was truncated")
    return data, descriptors


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def sealed(name: str, data: bytes) -> int:
    """Return a descriptor of a memfd that holds `data` and cannot change."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(
            descriptor,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE,
        )
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def request_body(executable: str, cwd: str, argv: Sequence[str], env: bytes) -> bytes:
    """Return the variable part of a request. Its parts must not contain NUL bytes."""
    return os.fsencode("\0".join((executable, cwd, *argv, ""))) + env


def environment_block(env: Mapping[str, str]) -> bytes:
    """Return an environment in the form that ends a request body."""
    return os.fsencode("\0".join([f"{name}={value}" for name, value in env.items()]))


def parse_body(body: bytes, environment_bytes: int) -> tuple[bytes, bytes, list[bytes], bytes]:
    """Return the executable, directory, arguments and environment block of a request body."""
    end = len(body) - environment_bytes
    executable, cwd, *argv = body[: end - 1].split(b"\0")
    return executable, cwd, argv, body[end:]


def parse_environment(block: bytes) -> list[bytes]:
    """Return the variables of an environment block as NAME=VALUE."""
    return [entry for entry in block.split(b"\0") if b"=" in entry]


def read_body(descriptor: int) -> bytes:
    """Return the body of a request that was too large for a packet."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def printed(outcome: bytearray) -> tuple[bytes, bytes]:
    """Return the stdout and stderr that follow an outcome."""
    stdout, stderr = _PRINTED.unpack_from(outcome, _PRINTED_AT)
    middle = OUTCOME.size + stdout
    return bytes(outcome[OUTCOME.size : middle]), bytes(outcome[middle : middle + stderr])


def answer_bytes(outcome: bytearray) -> int:
    """Return the size of an outcome with the output that follows it."""
    stdout, stderr = _PRINTED.unpack_from(outcome, _PRINTED_AT)
    size: int = OUTCOME.size + stdout + stderr
    return size


def clear_printed(outcome: bytearray) -> None:
    """Declare that no output follows an outcome."""
    _PRINTED.pack_into(outcome, _PRINTED_AT, 0, 0)


def ask_for_all_ids(ctl: socket) -> bool:
    """Ask the host to map all ids of the keeper's user namespace. Return whether it has."""
    # The kernel accepts a map of more than one id only from a process outside the user namespace.
    send(ctl, COUNT.pack(MAP, os.getpid()))
    answer, _ = receive(ctl)
    return unpack_count(answer, MAP) == 0


def pack_ready(backend: str, enforcement: str, missing: Sequence[str]) -> bytes:
    """Return a warden's first message, which says how it confines commands."""
    return bytes((READY,)) + "\0".join((backend, enforcement, *missing)).encode()


def unpack_ready(data: bytes) -> tuple[str, str, tuple[str, ...]]:
    """Return backend, enforcement and missing layers of a warden's first message."""
    if data[:1] != bytes((READY,)):
        raise ProtocolError("the first message of a warden is not READY")
    backend, _, rest = data[1:].decode("utf-8", "replace").partition("\0")
    enforcement, *missing = rest.split("\0")
    # A warden that lacks a layer and claims full enforcement would pass for a whole one.
    if enforcement not in ENFORCEMENTS or (enforcement == "full" and missing) or not all(missing):
        raise ProtocolError("the first message of a warden claims an unknown enforcement")
    return backend, enforcement, tuple(missing)


def pack(values: Any) -> bytes:
    """Return plain values as bytes for a process that this one starts."""
    return marshal.dumps(values)


def unpack(data: bytes) -> Any:
    """Return the values that the parent process packed. Never call it with data that a command could have written."""
    return marshal.loads(data)  # noqa: S302  from the process that started this one


def unpack_count(data: bytes, kind: int) -> int:
    """Return the number in a keeper's answer."""
    if len(data) != COUNT.size or data[0] != kind:
        raise ProtocolError("the keeper's answer does not match the request")
    number: int = COUNT.unpack(data)[1]
    return number

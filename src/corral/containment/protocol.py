"""The messages between host, keeper and warden: fixed structs over SOCK_SEQPACKET, descriptors by SCM_RIGHTS.

Every message about a command carries its nonce, so that a late or forged one answers nothing else.
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
TERMINAL = 11  # warden to host, with the descriptor of a terminal's outer end
OUTPUT = 15  # warden to host, and once more with the descriptors of what the command prints

NONCE_BYTES = 16
MAX_PACKET_BYTES = 32_000  # what is larger goes by sealed memory; beyond about 212 kB a send is EMSGSIZE
MAX_PRINTED_BYTES = 32_000  # that go with an outcome, and at most a packet more of each stream
MAX_DESCRIPTORS = 4

HAS_STDIN, HAS_BODY = 1, 2  # flags of a request: descriptors that follow stdout and stderr
ON_TERMINAL = 4  # instead of stdout, stderr and stdin
WARDEN_MAKES_PIPES = 8  # instead of stdout and stderr: the warden makes the pipes
NO_DIRECTORY, TIMED_OUT, UNKILLABLE_LEFT, NO_TERMINAL = (
    1,
    2,
    4,
    512,
)  # flags of an outcome; then the bounds that were broken
TOO_MANY_PROCESSES, PROCESS_LIMIT_REACHED, TOO_MUCH_MEMORY, TOO_MUCH_CPU = 8, 16, 32, 64
TOO_MUCH_WRITTEN, DISK_NEARLY_FULL = 128, 256

# kind, nonce, monotonic deadline or 0, drain seconds, flags, bytes of the environment, rows and columns of a terminal
REQUEST = Struct(f"=B{NONCE_BYTES}sddBIHH")
# kind, nonce, signal
CONTROL = Struct(f"=B{NONCE_BYTES}sB")
# kind, nonce, flags, wait status, errno of a failed start, processes killed, user and system seconds, peak bytes of memory,
# bytes read and written, bytes of stdout and of stderr that follow
OUTCOME = Struct(f"=B{NONCE_BYTES}sHiiIddQQQII")
_PRINTED = Struct("=II")
_PRINTED_AT = OUTCOME.size - _PRINTED.size
# warden to keeper: nonce, processor seconds and bytes written of the processes that have ended, bytes in shared memory
ASK = Struct(f"={NONCE_BYTES}sdQQ")
# and back: nonce, bytes of memory in use, bounds that are broken
ANSWER = Struct(f"={NONCE_BYTES}sQH")
# kind, number
COUNT = Struct("=BI")

_DESCRIPTORS = [Struct(f"{count}i") for count in range(MAX_DESCRIPTORS + 1)]
MAX_ANSWER_BYTES = OUTCOME.size + MAX_PRINTED_BYTES + 2 * PIPE_BUF
# What `recvmsg` is given.
RECEIVED = (max(MAX_PACKET_BYTES + REQUEST.size, MAX_ANSWER_BYTES), CMSG_SPACE(MAX_DESCRIPTORS * 4), MSG_CMSG_CLOEXEC)


class ProtocolError(Exception):
    """The other side said something that is not a message."""


def send(sock: socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message."""
    if descriptors:
        rights = _DESCRIPTORS[len(descriptors)].pack(*descriptors)
        sock.sendmsg((data,), ((SOL_SOCKET, SCM_RIGHTS, rights),), MSG_NOSIGNAL)
    else:
        sock.send(data, MSG_NOSIGNAL)


def receive(sock: socket) -> tuple[bytes, tuple[int, ...]]:
    """Receive one message and its descriptors, which are close-on-exec; empty when the other side is gone."""
    return told(sock.recvmsg(*RECEIVED))


def told(received: tuple[bytes, Sequence[tuple[int, int, bytes]], int, object]) -> tuple[bytes, tuple[int, ...]]:
    """Return a message that was received, and its descriptors; those of one that was cut are closed."""
    data, ancillary, flags, _ = received
    descriptors: tuple[int, ...] = ()
    for level, kind, rights in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            descriptors += _DESCRIPTORS[len(rights) // 4].unpack(rights)
    if flags & (MSG_TRUNC | MSG_CTRUNC):
        close_all(descriptors)
        raise ProtocolError("a message was cut")
    return data, descriptors


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def sealed(name: str, data: bytes) -> int:
    """Return a descriptor of an anonymous file that holds `data` and can never change."""
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
    """Return the variable part of a request; none of the parts can hold a NUL byte."""
    return os.fsencode("\0".join((executable, cwd, *argv, ""))) + env


def environment_block(env: Mapping[str, str]) -> bytes:
    """Return an environment as it stands at the end of a request."""
    return os.fsencode("\0".join([f"{name}={value}" for name, value in env.items()]))


def parse_body(body: bytes, environment_bytes: int) -> tuple[bytes, bytes, list[bytes], bytes]:
    """Return executable, directory, arguments and the environment's block of a request's body."""
    end = len(body) - environment_bytes
    executable, cwd, *argv = body[: end - 1].split(b"\0")
    return executable, cwd, argv, body[end:]


def parse_environment(block: bytes) -> list[bytes]:
    """Return the variables of an environment's block, each with its name."""
    return [entry for entry in block.split(b"\0") if b"=" in entry]


def read_body(descriptor: int) -> bytes:
    """Return the body of a request that was too large for a packet."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def printed(outcome: bytearray) -> tuple[bytes, bytes]:
    """Return what follows an outcome, of stdout and of stderr."""
    stdout, stderr = _PRINTED.unpack_from(outcome, _PRINTED_AT)
    middle = OUTCOME.size + stdout
    return bytes(outcome[OUTCOME.size : middle]), bytes(outcome[middle : middle + stderr])


def answer_bytes(outcome: bytearray) -> int:
    """Return how many bytes an outcome and what follows it have."""
    stdout, stderr = _PRINTED.unpack_from(outcome, _PRINTED_AT)
    size: int = OUTCOME.size + stdout + stderr
    return size


def clear_printed(outcome: bytearray) -> None:
    """Have nothing follow an outcome any more."""
    _PRINTED.pack_into(outcome, _PRINTED_AT, 0, 0)


def pack_ready(backend: str, enforcement: str, missing: Sequence[str]) -> bytes:
    """Return a warden's first message: what holds the commands it will run."""
    return bytes((READY,)) + "\0".join((backend, enforcement, *missing)).encode()


def unpack_ready(data: bytes) -> tuple[str, str, tuple[str, ...]]:
    """Return backend, enforcement and missing layers of a warden's first message."""
    if data[:1] != bytes((READY,)):
        raise ProtocolError("a warden began with something else than being ready")
    backend, enforcement, *missing = data[1:].decode("utf-8", "replace").split("\0")
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
        raise ProtocolError("a keeper answered something else than it was asked")
    number: int = COUNT.unpack(data)[1]
    return number

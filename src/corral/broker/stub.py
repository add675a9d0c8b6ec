"""Runs inside a sandbox under the name of a program, and lets the broker outside run that program. It is not trusted.

Builtin modules only, since each call of the program starts it.
"""

import posix
import sys
from _signal import signal  # type: ignore[import-not-found]  # `signal` loads enum
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket


def main() -> None:
    """Send the request, pass signals on, and end as the program outside has ended."""
    for number in (0, 1, 2):
        try:
            posix.fstat(number)
        except OSError:
            # Closed by the caller. open() gives it the lowest free number, which is this one.
            posix.open("/dev/null", posix.O_RDWR)
    broker = socket(AF_UNIX, SOCK_SEQPACKET)
    try:
        broker.connect("/run/corral/broker")
    except OSError as error:
        stop(f"there is no broker for this call: {error}")
    words = (sys.argv[0].rpartition("/")[2], *sys.argv[1:])
    request = b"\0".join([b"corral-broker/1", *(word.encode("utf-8", "surrogateescape") for word in words)])
    for number in (1, 2, 3, 15):
        signal(number, lambda got, _: broker.send(b"signal %d" % got))
    try:
        give(broker, request, 0, 1, 2)
    except BrokenPipeError:
        # It has closed already, and has said why.
        pass
    except OSError as error:
        stop(f"the broker does not take the call: {error}")
    # Now only the broker holds these ends, so that the processes at the others notice when it closes them.
    posix.close(0)
    posix.close(1)
    failures = 0
    while True:
        kind = b""
        try:
            kind, _, rest = broker.recv(8192).partition(b" ")
        except ConnectionResetError:
            # The kernel reports once that the broker has closed. What it said before can still be read.
            failures += 1
            if failures == 1:
                continue
        if kind == b"exit":
            posix._exit(int(rest))
        elif kind == b"say":
            posix.write(2, rest + b"\n")
        elif kind == b"open":
            show(broker, rest)
        elif kind == b"pack":
            pack(broker, rest)
        else:
            stop("the broker has ended")


def give(broker: socket, message: bytes, *descriptors: int) -> None:
    """Send a message with descriptors."""
    rights = b"".join([number.to_bytes(4, sys.byteorder) for number in descriptors])
    broker.sendmsg([message], [(SOL_SOCKET, SCM_RIGHTS, rights)])


def show(broker: socket, path: bytes) -> None:
    """Open a file that an argument names, with the rights of this side, and send it."""
    try:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except OSError as error:
        broker.send(b"fail %d" % (error.errno or 5))
        return
    give(broker, b"file", descriptor)
    posix.close(descriptor)


def pack(broker: socket, path: bytes) -> None:
    """Send a pipe from which a directory can be read as an archive. A process of this side packs it."""
    reader, writer = posix.pipe()
    if posix.fork() == 0:
        posix.dup2(writer, 1)
        posix.set_inheritable(1, True)  # 0 and 1 were closed, so the pipe may have these numbers already
        try:
            posix.execv(sys.executable, (sys.executable, "-IS", "/run/corral/build_context.py", path))
        except OSError as error:
            stop(f"the directory cannot be packed: {error}")
    posix.close(writer)
    give(broker, b"file", reader)
    posix.close(reader)


def stop(reason: str) -> None:
    """Say why there is no result, and exit."""
    posix.write(2, f"corral: {reason}\n".encode())
    posix._exit(255)


if __name__ == "__main__":
    main()

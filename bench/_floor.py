"""A plain Python process that spawns the commands it receives over a socket and passes their output through pipes.

It has no guard, no containment and no result object, so its cost is the lower bound for a sandbox with a helper process.
"""

import os
import select
import struct
import subprocess
import sys
from _socket import AF_UNIX, CMSG_SPACE, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket, socketpair

TWO = struct.Struct("ii")
STATUS = struct.Struct("i")
MESSAGE_BYTES = 1 << 16


class Floor:
    """A client of the process. It runs one command at a time."""

    def __init__(self, project: str) -> None:
        self._socket, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        command = [sys.executable, "-I", "-S", __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=project, pass_fds=[theirs.fileno()])
        theirs.close()
        self._poller = select.poll()
        self._poller.register(self._socket.fileno(), select.POLLIN)

    def run(self, argv: list[str]) -> int:
        """Run a command, wait until it has ended and its output is read, and return its status."""
        pipes = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        rights = [(SOL_SOCKET, SCM_RIGHTS, TWO.pack(pipes[0][1], pipes[1][1]))]
        self._socket.sendmsg(["\0".join(argv).encode()], rights)
        for ours, theirs in pipes:
            os.close(theirs)
            self._poller.register(ours, select.POLLIN)
        reading, status = 2, None
        while reading or status is None:
            for descriptor, _ in self._poller.poll():
                if descriptor == self._socket.fileno():
                    (status,) = STATUS.unpack(self._socket.recv(MESSAGE_BYTES))
                elif not os.read(descriptor, 1 << 16):
                    self._poller.unregister(descriptor)
                    os.close(descriptor)
                    reading -= 1
        return int(status)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()


def spawn_for(host: socket) -> None:
    """Spawn the commands that the host sends, until the host closes the socket."""
    env = dict(os.environ)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    while True:
        message, ancillary, _, _ = host.recvmsg(MESSAGE_BYTES, CMSG_SPACE(TWO.size))
        if not message:
            return
        out, err = TWO.unpack(ancillary[0][2])
        argv = message.decode().split("\0")
        actions = [(os.POSIX_SPAWN_DUP2, theirs, ours) for ours, theirs in enumerate((null, out, err))]
        pid = os.posix_spawn(argv[0], argv, env, file_actions=actions, setpgroup=0)
        os.close(out)
        os.close(err)
        host.send(STATUS.pack(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    spawn_for(socket(AF_UNIX, SOCK_SEQPACKET, 0, int(sys.argv[1])))

"""Starts the service of a session as a process of its own, which outlives the process that starts it.

The socket is made here and handed over, so that a client can connect at once, and waits until the service is ready.
"""

from __future__ import annotations

import os
import sys
from _signal import SIGKILL, SIGSTOP, valid_signals  # type: ignore[import-not-found]  # `signal` imports enum
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_SEQPACKET, socket
from fcntl import F_DUPFD_CLOEXEC, LOCK_EX, LOCK_NB, fcntl, flock

from corral.sessions.client import connect
from corral.sessions.socket_paths import LOCK_SUFFIX, SUFFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LISTENER, LOCK = 3, 4  # the descriptors that the service gets
BACKLOG = 128
_FIRST_FREE_DESCRIPTOR = 10
_PROGRAM = (
    "import sys; sys.path += sys.argv[4:]; from corral.apps.cli.session.program import main; main(*sys.argv[1:4])"
)


def ensure_service(path: str, root: str, session: str, environ: Mapping[str, str]) -> bool:
    """Start the service of a socket unless it runs. Returns false if it cannot be started."""
    sock = connect(path)
    if sock is not None:
        sock.close()
        return True
    try:
        lock = _lock(path)
        if lock < 0:
            return connect(path) is not None  # another process starts it
        try:
            listener = _listen(path)
            try:
                _start(path, root, session, environ, listener.fileno(), lock)
            except BaseException:
                os.unlink(path)
                raise
            finally:
                listener.close()
        finally:
            # The service has copies of both.
            os.close(lock)
    except OSError:
        return False
    return True


def _lock(path: str) -> int:
    """Return a descriptor of the lock that a service holds as long as it runs, or -1 if one holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(path.removesuffix(SUFFIX) + LOCK_SUFFIX, flags, 0o600)
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return -1
    return lock


def _listen(path: str) -> socket:
    folder, _, name = path.rpartition("/")
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
    try:
        # By the descriptor: the path of a socket is limited to 107 bytes. Renamed, so that a stale one is replaced at once.
        partial = f"{name}.{os.getpid()}"
        listener.bind(f"/proc/self/fd/{directory}/{partial}")
        os.chmod(partial, 0o600, dir_fd=directory)
        listener.listen(BACKLOG)
        os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener


def _start(path: str, root: str, session: str, environ: Mapping[str, str], *descriptors: int) -> None:
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # there since 3.3
    folders = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), *sys.path]
    folders = list(dict.fromkeys(folder for folder in folders if folder.startswith("/")))
    # Above the target numbers, which may be in use.
    high = [fcntl(descriptor, F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR) for descriptor in descriptors]
    opened = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)]
    handed = [(os.POSIX_SPAWN_DUP2, high[at], number) for at, number in enumerate((LISTENER, LOCK))]
    try:
        os.posix_spawn(
            python,
            (python, "-I", "-S", "-c", _PROGRAM, path, root, session, *folders),
            environ,
            file_actions=(*opened, *handed),
            setsid=True,
            setsigmask=(),
            setsigdef=valid_signals() - {SIGKILL, SIGSTOP},
        )
    finally:
        for descriptor in high:
            os.close(descriptor)

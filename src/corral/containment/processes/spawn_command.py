"""Starts a command in a warden: by vfork, as subprocess does, or by a fork that runs a little Python first."""

from __future__ import annotations

import os
import resource
from _posixsubprocess import fork_exec  # a tenth of what `subprocess` takes to load
from _signal import (  # type: ignore[import-not-found]  # as in the warden
    SIG_BLOCK,
    SIG_DFL,
    SIG_SETMASK,
    SIGCHLD,
    SIGPIPE,
    SIGTERM,
    SIGUSR1,
    SIGXFSZ,
    pthread_sigmask,
    signal,
)
from _struct import pack
from errno import EIO
from fcntl import ioctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Wanted(Protocol):
        """What is to be started."""

        executable: bytes
        argv: list[bytes]
        env: list[bytes]


AWAITED = (SIGCHLD, SIGUSR1)  # what a warden waits for: an exit below; a message about the command at hand
# The same on x86 and arm; termios would be one more file to load.
_TCGETS, _TCSETS, _TIOCSWINSZ = 0x5401, 0x5402, 0x5414
_TERMIOS_BYTES = 36
_IUTF8 = 0x4000
_IGNORED_BY_PYTHON = (SIGPIPE, SIGXFSZ)  # which exec would hand on ignored
_FAILED = 255 << 8  # how one ends that could not become the command
_FAILURE_BYTES = 64
_fork_exec: Callable[..., int] = fork_exec


class CommandStarter:
    """Starts the commands of one warden, which blocks what it waits for and lets a command have nothing blocked."""

    def __init__(self, rlimits: list[tuple[str, int]], *, leads_session: bool) -> None:
        self.rlimits = rlimits  # of each command, and not of the warden
        self.leads_session = leads_session  # instead of a group alone
        self.missed = False  # whether an order came while no signal was blocked
        # Where one that could not become the command says why.
        self._told, self._tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # An exit is asked for after each start: only an order must not be missed.
        signal(SIGUSR1, self._miss)
        pthread_sigmask(SIG_BLOCK, AWAITED)

    def _miss(self, *_: object) -> None:
        self.missed = True

    def start(self, wanted: Wanted, stdin: int, stdout: int, stderr: int) -> int:
        """Start a command with these streams, and return its number. One that cannot be is found to have failed."""
        if self.rlimits:
            return self._start_limited(wanted, (stdin, stdout, stderr))
        # A command begins with what is blocked here.
        pthread_sigmask(SIG_SETMASK, ())
        try:
            # posix_spawn makes a stack for the child and asks for a limit six times, which is a thirtieth of what /bin/true takes.
            return _fork_exec(
                wanted.argv,
                (wanted.executable,),
                False,  # all that this process has is closed by exec anyway
                (),
                None,
                wanted.env,
                stdin,
                -1,
                -1,
                stdout,
                -1,
                stderr,
                self._told,
                self._tell,
                True,  # what Python ignores is not ignored
                self.leads_session,
                -1 if self.leads_session else 0,
                None,
                None,
                None,
                -1,
                None,
                True,  # by vfork
            )
        except TypeError:
            # A Python whose own way is another.
            return self._start_limited(wanted, (stdin, stdout, stderr))
        finally:
            pthread_sigmask(SIG_BLOCK, AWAITED)

    def failure(self, status: int | None) -> int:
        """Return why a command that ended so could not be started, or 0."""
        try:
            # OSError, the number in hexadecimal, a word; also of one that was killed meanwhile, so that no other is taken for it.
            said = os.read(self._told, _FAILURE_BYTES)
        except BlockingIOError:
            return 0
        return int(said.split(b":")[1], 16) or EIO if status == _FAILED else 0

    def _start_limited(self, wanted: Wanted, streams: tuple[int, ...]) -> int:
        def enter_session() -> None:
            os.setsid()
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)

        return self.start_forked(wanted, enter_session)

    def start_forked(self, wanted: Wanted, enter_session: Callable[[], None]) -> int:
        """Start a command once some Python has run in its process, for what vfork cannot: rlimits, and a terminal."""
        # This process could not raise its own limits again. A fork is safe: there is one thread.
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                enter_session()
                for number in (*_IGNORED_BY_PYTHON, SIGTERM):
                    signal(number, SIG_DFL)
                pthread_sigmask(SIG_SETMASK, ())
                set_rlimits(self.rlimits)
                env = dict(entry.split(b"=", 1) for entry in wanted.env)
                os.execve(wanted.executable, wanted.argv, env)  # noqa: S606  this is what a warden is for
            except OSError as error:
                os.write(tell, (error.errno or EIO).to_bytes(4, "little"))
            finally:
                os._exit(127)
        os.close(tell)
        failed = os.read(told, 4)
        os.close(told)
        if failed:
            os.waitpid(pid, 0)
            number = int.from_bytes(failed, "little")
            raise OSError(number, os.strerror(number))
        return pid


def set_rlimits(rlimits: list[tuple[str, int]]) -> None:
    """Set limits of this process, as far as they can be."""
    for name, value in rlimits:
        number = getattr(resource, name)
        ceiling = resource.getrlimit(number)[1]
        bound = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(number, (bound, bound))


def set_up_terminal(terminal: int, rows: int, columns: int) -> None:
    """Give a terminal its size, and erase whole characters of UTF-8, before the command can look."""
    ioctl(terminal, _TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))
    settings = bytearray(_TERMIOS_BYTES)
    ioctl(terminal, _TCGETS, settings)
    flags = int.from_bytes(settings[:4], "little")
    settings[:4] = (flags | _IUTF8).to_bytes(4, "little")
    ioctl(terminal, _TCSETS, bytes(settings))

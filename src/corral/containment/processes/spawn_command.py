"""Starts a command in a warden: by vfork() as subprocess does, or by fork() if Python code must run in the child first."""

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
from fcntl import F_DUPFD_CLOEXEC, fcntl, ioctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Wanted(Protocol):
        """A command to start."""

        executable: bytes
        argv: list[bytes]
        env: list[bytes]


AWAITED = (SIGCHLD, SIGUSR1)  # the signals that a warden waits for: a child exited; the host sent a message
# The same on x86 and arm. Importing termios would load one more file.
_TCGETS, _TCSETS, _TIOCSWINSZ = 0x5401, 0x5402, 0x5414
_TERMIOS_BYTES = 36
_IUTF8 = 0x4000
_IGNORED_BY_PYTHON = (SIGPIPE, SIGXFSZ)  # would stay ignored after execve()
_FAILED = 255 << 8  # the wait status of a child that could not execute the command
_FAILURE_BYTES = 64
_fork_exec: Callable[..., int] = fork_exec


class CommandStarter:
    """Starts the commands of one warden. The warden blocks the signals that it waits for; a command starts with none blocked."""

    def __init__(self, rlimits: list[tuple[str, int]], *, leads_session: bool) -> None:
        self.rlimits = rlimits  # of each command, not of the warden
        self.leads_session = leads_session  # or else only a process group
        self.missed = False  # whether SIGUSR1 came while no signal was blocked
        # A child that cannot execute the command writes the reason to this pipe.
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The warden checks for an exit after each start, so only SIGUSR1 must not be missed.
        signal(SIGUSR1, self._miss)
        pthread_sigmask(SIG_BLOCK, AWAITED)

    def _miss(self, *_: object) -> None:
        self.missed = True

    def start(self, wanted: Wanted, stdin: int, stdout: int, stderr: int) -> int:
        """Start a command with these streams, and return its pid. If it cannot be executed, `failure` returns why."""
        if self.rlimits:
            return self.start_with(wanted, (stdin, stdout, stderr))
        # A command inherits the signal mask.
        pthread_sigmask(SIG_SETMASK, ())
        try:
            # Not posix_spawn(): it allocates a stack and reads a limit six times, which is 3% of the time of /bin/true.
            return _fork_exec(
                wanted.argv,
                (wanted.executable,),
                False,  # all descriptors of this process are close-on-exec anyway
                (),
                None,
                wanted.env,
                stdin,
                -1,
                -1,
                stdout,
                -1,
                stderr,
                self._reader,
                self._writer,
                True,  # restore the signals that Python ignores
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
            # A Python version with another signature.
            return self.start_with(wanted, (stdin, stdout, stderr))
        finally:
            pthread_sigmask(SIG_BLOCK, AWAITED)

    def failure(self, status: int | None) -> int:
        """Return the errno with which a command could not be executed, or 0. `status` is its wait status."""
        try:
            # "OSError:", the errno in hexadecimal, ":", a word. Read it even if the child was killed meanwhile, so that the
            # next command does not get it.
            text = os.read(self._reader, _FAILURE_BYTES)
        except BlockingIOError:
            return 0
        return int(text.split(b":")[1], 16) or EIO if status == _FAILED else 0

    def start_with(self, wanted: Wanted, streams: tuple[int, ...]) -> int:
        """Start a command whose descriptors from 0 on are these, and return its pid."""

        def enter_session() -> None:
            os.setsid()
            # Copies above them all: a descriptor may have the number that another one gets.
            copies = [fcntl(descriptor, F_DUPFD_CLOEXEC, len(streams)) for descriptor in streams]
            for number, descriptor in enumerate(copies):
                os.dup2(descriptor, number)

        return self.start_forked(wanted, enter_session)

    def start_forked(self, wanted: Wanted, enter_session: Callable[[], None]) -> int:
        """Fork, run `enter_session` and set rlimits in the child, then execute the command."""
        # The warden could not raise its own limits again. Forking is safe, because it has one thread.
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                enter_session()
                for number in (*_IGNORED_BY_PYTHON, SIGTERM):
                    signal(number, SIG_DFL)
                pthread_sigmask(SIG_SETMASK, ())
                set_rlimits(self.rlimits)
                env = dict(entry.split(b"=", 1) for entry in wanted.env)
                os.execve(wanted.executable, wanted.argv, env)  # noqa: S606  a warden runs commands
            except OSError as error:
                os.write(writer, (error.errno or EIO).to_bytes(4, "little"))
            finally:
                os._exit(127)
        os.close(writer)
        failed = os.read(reader, 4)
        os.close(reader)
        if failed:
            os.waitpid(pid, 0)
            number = int.from_bytes(failed, "little")
            raise OSError(number, os.strerror(number))
        return pid


def set_rlimits(rlimits: list[tuple[str, int]]) -> None:
    """Set resource limits of this process, at most to the present hard limits."""
    for name, value in rlimits:
        number = getattr(resource, name)
        ceiling = resource.getrlimit(number)[1]
        bound = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(number, (bound, bound))


def set_up_terminal(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal, and let it erase whole UTF-8 characters."""
    ioctl(terminal, _TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))
    settings = bytearray(_TERMIOS_BYTES)
    ioctl(terminal, _TCGETS, settings)
    flags = int.from_bytes(settings[:4], "little")
    settings[:4] = (flags | _IUTF8).to_bytes(4, "little")
    ioctl(terminal, _TCSETS, bytes(settings))

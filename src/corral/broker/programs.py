"""Runs a program of the user's outside the sandbox for a request, and copies its streams. Ends it when the request ends.

The program gets nothing of the agent's: no descriptor, directory, variable or terminal. Its words are those that a service has checked.
"""

from __future__ import annotations

import os
from _signal import SIGKILL, SIGSTOP, SIGTERM, pidfd_send_signal, valid_signals  # type: ignore[import-not-found]
from fcntl import F_DUPFD_CLOEXEC, fcntl
from select import POLLIN, poll
from time import monotonic

from corral.broker.streams import Copy, InsideEnd, PipeEnd, RefusedError
from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corral.broker.server import Request
    from corral.broker.streams import Filter

SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MAX_SECONDS = 600.0
TERM_SECONDS = 2.0  # from SIGTERM to SIGKILL
DRAIN_SECONDS = 2.0  # for output of processes that a program left behind
REFUSED_STATUS = 126
GONE_STATUS = 129
_PASSED = ("HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR")
_FIRST_FREE_DESCRIPTOR = 10
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


def find_program(name: str, writable: Iterable[str], directories: Sequence[str] = SYSTEM_DIRECTORIES) -> str:
    """Return the real path of a program in the system's directories, or "". Never one that a command could have written."""
    for directory in directories:
        path = os.path.realpath(f"{directory}/{name}")
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return "" if any(inside(path, root) for root in writable) else path
    return ""


def clean_environment(environ: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return the variables for a program outside: those that say who the user is, and `more`. Never a token."""
    found = {name: environ[name] for name in (*_PASSED, *more) if environ.get(name)}
    return found | {"PATH": ":".join(SYSTEM_DIRECTORIES)}


def run_program(
    request: Request,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    directory: str = "",
    takes_stdin: bool = True,
    filters: Mapping[int, Filter] | None = None,
    seconds: float = MAX_SECONDS,
) -> int:
    """Run a program by its path until it ends, and return its exit status. A refusal by a filter ends it, and is raised.

    It starts in `directory`, by default an empty one of this request. `filters` see the streams 0, 1 and 2.
    """
    checks = filters or {}
    pipes: list[int] = []
    try:
        for _ in range(3):
            pipes += os.pipe()
        for number in (0, 2):
            _enlarge(pipes[number])
        stdin_out, stdin_in, stdout_out, stdout_in, stderr_out, stderr_in = pipes
        pid = _start(argv, environ, directory or request.directory(), (stdin_out, stdout_in, stderr_in))
    except BaseException:
        for descriptor in pipes:
            os.close(descriptor)
        raise
    for descriptor in (stdin_out, stdout_in, stderr_in):
        os.close(descriptor)
    copies: list[Copy] = []
    process = _Process(pid)
    try:
        given, *printed = PipeEnd(stdin_in), PipeEnd(stdout_out), PipeEnd(stderr_out)
        if takes_stdin:
            copies.append(Copy(InsideEnd(request.take(0), writes=False), given, checks.get(0)))
        else:
            given.close()
        for number, end in enumerate(printed, 1):
            copies.append(Copy(end, InsideEnd(request.take(number), writes=True), checks.get(number)))
        return _relay(request, process, copies, monotonic() + seconds)
    finally:
        process.end()
        for copy in copies:
            copy.close()
        for copy in copies:
            if isinstance(copy.source, InsideEnd):
                request.bytes_in += copy.moved
            else:
                request.bytes_out += copy.moved


def _relay(request: Request, process: _Process, copies: list[Copy], ends_at: float) -> int:
    drained_at = float("inf")  # set when the program has ended
    was_moved = 0
    is_gone = False
    while not (process.has_ended and all(copy.is_done for copy in copies)):
        # A new poll object each time: one reports the hang-up of a registered descriptor for ever.
        poller = poll()
        wanted: dict[int, int] = {}
        for copy in copies:
            for number, event in copy.wanted().items():
                wanted[number] = wanted.get(number, 0) | event
        for number, event in wanted.items():
            poller.register(number, event)
        if not is_gone:
            poller.register(request.sock.fileno(), POLLIN)
        if not process.has_ended:
            poller.register(process.pidfd, POLLIN)
        now = monotonic()
        until = min(ends_at, drained_at, process.killed_at)
        events = dict(poller.poll(max(0.0, until - now) * 1000))
        now = monotonic()
        if now >= ends_at:
            raise RefusedError("it took too long")
        if process.pidfd in events:
            process.finish()
            # Its input has no reader now. Its output may still be in the pipes.
            for copy in copies:
                if isinstance(copy.source, InsideEnd):
                    copy.close()
            drained_at = now + DRAIN_SECONDS
        if request.sock.fileno() in events:
            number = request.next_signal()
            if number > 0:
                process.signal(number)
            else:
                is_gone = True
                process.terminate(now)
        for copy in copies:
            copy.step(events)
        moved = sum(copy.moved for copy in copies)
        request.count(moved - was_moved)
        if moved != was_moved and process.has_ended:
            drained_at = now + DRAIN_SECONDS
        was_moved = moved
        if now >= process.killed_at:
            process.kill()
        if is_gone and process.has_ended:
            return GONE_STATUS
        if now >= drained_at:
            # Something that the program left behind holds its output open, or the command inside does not read.
            if not any(copy.is_waiting for copy in copies):
                break
            drained_at = now + DRAIN_SECONDS
    return process.status


class _Process:
    """A running program and its process group, which has the same number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.has_ended = False
        self.killed_at = float("inf")  # when SIGKILL follows SIGTERM
        self.status = 255

    def signal(self, number: int) -> None:
        """Send a signal to the group. Until the program is reaped, nothing else has its number."""
        if not self.has_ended:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                # It has not become the leader of its group yet.
                pidfd_send_signal(self.pidfd, number)

    def terminate(self, now: float) -> None:
        """Ask the group to end, and kill it after a while."""
        if self.killed_at == float("inf"):
            self.signal(SIGTERM)
            self.killed_at = now + TERM_SECONDS

    def kill(self) -> None:
        """Kill the group."""
        self.signal(SIGKILL)
        self.killed_at = float("inf")

    def finish(self) -> None:
        """Kill what is left of the group, and take the exit status."""
        self.kill()
        self.has_ended = True
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            # The host program reaps all children itself.
            return
        self.status = status if status >= 0 else 128 - status

    def end(self) -> None:
        """End the program, if it still runs."""
        if not self.has_ended:
            self.signal(SIGTERM)
            poller = poll()
            poller.register(self.pidfd, POLLIN)
            poller.poll(TERM_SECONDS * 1000)
            self.finish()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _start(argv: Sequence[str], environ: Mapping[str, str], directory: str, streams: tuple[int, ...]) -> int:
    # Above the target numbers: if the host has closed its 0, 1 or 2, a pipe may have that number.
    high = [fcntl(descriptor, F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR) for descriptor in streams]
    try:
        # By a shell, because posix_spawn() cannot change the directory, and the host's may be the project.
        words = ("/bin/sh", "-c", 'cd -- "$0" && exec "$@"', directory, *argv)
        return os.posix_spawn(
            words[0],
            words,
            environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(high)],
            setsid=True,
            setsigmask=(),
            # Python ignores SIGPIPE, and exec() keeps ignored signals ignored.
            setsigdef=valid_signals() - {SIGKILL, SIGSTOP},
        )
    finally:
        for descriptor in high:
            os.close(descriptor)


def _enlarge(pipe: int) -> None:
    try:
        fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        # The user's limit for the size of pipes is reached.
        return

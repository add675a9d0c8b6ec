"""Runs a short command on the host for corral itself: a fixed argv, no input, bounded time and output."""

from __future__ import annotations

import os
from contextlib import suppress
from select import POLLIN, poll
from signal import SIGKILL, SIGPIPE
from time import monotonic

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READ_BYTES = 1 << 16
# posix_spawn() cannot change the directory.
_IN_DIRECTORY = 'cd -- "$0" && exec "$@"'
_SHELL = "/bin/sh"


@frozen
class Answer(Record):
    """The output of a command that ended by itself within its bounds, and its exit code."""

    code: int
    output: bytes


def run_bounded(
    argv: Sequence[str], directory: str, environ: Mapping[str, str], *, seconds: float, max_bytes: int
) -> Answer | None:
    """Run a command and return its output. None if it takes too long, prints too much or cannot be started.

    The command and its process group are killed when the function returns.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    words = [_SHELL, "-c", _IN_DIRECTORY, directory, *argv]
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in ((null, 0), (writer, 1), (null, 2))]
    try:
        # Python ignores SIGPIPE, and a new process would too.
        pid = os.posix_spawn(
            _SHELL, words, dict(environ), file_actions=actions, setsid=True, setsigmask=(), setsigdef=(SIGPIPE,)
        )
    except OSError:
        os.close(reader)
        return None
    finally:
        os.close(writer)
        os.close(null)
    output: bytes | None = None
    try:
        output = _read(reader, monotonic() + seconds, max_bytes)
    finally:
        os.close(reader)
        status = _end(pid, kills=output is None)
    return None if output is None or status < 0 else Answer(status, output)


def _read(descriptor: int, ends_at: float, max_bytes: int) -> bytes | None:
    """Return everything until the end of the stream. None if there is more than `max_bytes`, or if the time is over."""
    poller = poll()
    poller.register(descriptor, POLLIN)
    found = b""
    while len(found) <= max_bytes:
        left = ends_at - monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return None
        data = os.read(descriptor, READ_BYTES)
        if not data:
            return found
        found += data
    return None


def _end(pid: int, *, kills: bool) -> int:
    """Wait for the command and return its exit code, negative for a signal. Its process group does not outlive it."""
    # A command that closed its output but runs on gets a moment to exit.
    ends_at = monotonic() + (0.0 if kills else 1.0)
    descriptor = os.pidfd_open(pid)
    try:
        poller = poll()
        poller.register(descriptor, POLLIN)
        poller.poll(max(0.0, ends_at - monotonic()) * 1000)
    finally:
        os.close(descriptor)
    # The pid is not reused before waitpid(), and the command leads the group.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

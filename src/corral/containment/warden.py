"""Runs one command at a time, and answers only when nothing of it is left. What it is told to run, it does not judge.

Everything alive below this process belongs to the command at hand: it is the subreaper, so daemons come back to it.
"""

from __future__ import annotations

import os
import resource
import select
from _signal import (  # type: ignore[import-not-found]  # `signal` loads enum, a third of a keeper's start
    SIG_DFL,
    SIG_SETMASK,
    SIGCHLD,
    SIGINT,
    SIGKILL,
    SIGPIPE,
    SIGTERM,
    SIGXFSZ,
    pthread_sigmask,
    signal,
)
from errno import EIO
from time import monotonic

from corral.containment import tree, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

SETTLE_SECONDS = 0.02  # what a background child that has closed its output has to end by itself
KILL_PASS_SECONDS = 0.01  # between two passes: a process that forks faster than one pass loses to the next
KILL_SECONDS = 2.0  # against what no signal ends: a set-user-id program, a process in uninterruptible sleep
LONGEST_WAIT_SECONDS = 3600.0  # poll takes an int of milliseconds
_SIGNAL_RECORD_BYTES = 128  # struct signalfd_siginfo, which begins with the number
_NEVER = float("inf")
_IGNORED_BY_PYTHON = (SIGPIPE, SIGXFSZ)  # posix_spawn would hand them on ignored

_Rlimits = list[tuple[int, int, int]]


def serve(sock: socket, plan: dict[str, Any], keeper: int) -> None:
    """Run what the host asks for until the host or the keeper is gone."""
    tree.adopt_orphans()
    signal(SIGINT, SIG_DFL)
    signals = tree.signal_descriptor((SIGCHLD, SIGTERM))
    tree.signal_when_parent_dies(SIGTERM)
    if os.getppid() != keeper:
        return
    tree.hide()
    warden = _Warden(sock, signals, [(getattr(resource, name), soft, hard) for name, soft, hard in plan["rlimits"]])
    wire.send(sock, wire.pack_ready("none", "none", ()))
    while warden.answer():
        pass


class _Warden:
    def __init__(self, sock: socket, signals: int, rlimits: _Rlimits) -> None:
        self.sock = sock
        self.signals = signals
        self.rlimits = rlimits
        self.block = b""
        self.env: dict[bytes, bytes] = {}
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.poller = select.poll()
        self.poller.register(sock.fileno(), select.POLLIN)
        self.poller.register(signals, select.POLLIN)

    def environment(self, block: bytes) -> dict[bytes, bytes]:
        """Return the variables of a block; most requests have the same as the one before."""
        if block != self.block:
            self.block, self.env = block, wire.parse_environment(block)
        return self.env

    def answer(self) -> bool:
        """Serve one message while idle; false when there is nobody left to serve."""
        spoken, signalled = self.wait(None)
        if signalled and self.keeper_is_gone():
            return False
        if not spoken:
            return True
        message, descriptors = wire.receive(self.sock)
        if not message:
            return False
        if message[0] != wire.RUN:
            # A kill that crossed the answer it was meant for.
            wire.close_all(descriptors)
            return True
        run = _Run(self, message, descriptors)
        run.start(descriptors)
        wire.close_all(descriptors)
        if not run.error:
            run.supervise()
        if run.deserted:
            return False
        wire.send(self.sock, run.outcome(wire.ENDED))
        # After the answer, which the host waits for; before the next command, whose absence must not keep a directory busy.
        os.chdir("/")
        return not run.flags & wire.SPENT

    def wait(self, seconds: float | None) -> tuple[bool, bool]:
        """Wait for a message or a signal; say which came."""
        events = self.poller.poll(None if seconds is None else min(seconds, LONGEST_WAIT_SECONDS) * 1000)
        if len(events) == 1:
            return events[0][0] != self.signals, events[0][0] == self.signals
        return bool(events), bool(events)

    def keeper_is_gone(self) -> bool:
        """Take the signals that have come; the keeper's death is one, an exit below is another."""
        records = os.read(self.signals, 64 * _SIGNAL_RECORD_BYTES)
        numbers = [records[at] for at in range(0, len(records), _SIGNAL_RECORD_BYTES)]
        return SIGTERM in numbers


class _Run:
    """One command, from its request to its outcome."""

    def __init__(self, warden: _Warden, message: bytes, descriptors: tuple[int, ...]) -> None:
        self.warden = warden
        _, self.nonce, self.deadline, self.drain_seconds, self.request_flags, size = wire.REQUEST.unpack_from(message)
        large = self.request_flags & wire.HAS_BODY
        body = wire.read_body(descriptors[-1]) if large else message[wire.REQUEST.size :]
        self.executable, self.cwd, self.argv, block = wire.parse_body(body, size)
        self.env = warden.environment(block)
        self.pid = 0
        self.status: int | None = None
        self.flags = 0
        self.error = 0
        self.killed: set[int] = set()
        self.user_seconds = self.system_seconds = 0.0
        self.peak_bytes = 0
        self.deserted = False

    def start(self, descriptors: tuple[int, ...]) -> None:
        """Start the command, or note why it cannot be."""
        stdin = descriptors[2] if self.request_flags & wire.HAS_STDIN else self.warden.null
        try:
            os.chdir(self.cwd)
        except OSError as error:
            self.error = _number(error)
            self.flags |= wire.NO_DIRECTORY
            return
        try:
            if self.warden.rlimits:
                self.pid = _start_limited(self, (stdin, *descriptors[:2]), self.warden.rlimits)
            else:
                self.pid = os.posix_spawn(
                    self.executable,
                    self.argv,
                    self.env,
                    file_actions=(
                        (os.POSIX_SPAWN_DUP2, stdin, 0),
                        (os.POSIX_SPAWN_DUP2, descriptors[0], 1),
                        (os.POSIX_SPAWN_DUP2, descriptors[1], 2),
                    ),
                    setsid=True,
                    setsigmask=(),
                    setsigdef=_IGNORED_BY_PYTHON,
                )
        except OSError as error:
            self.error = _number(error)

    def supervise(self) -> None:
        """Wait until the command and all it started are gone, by themselves or by SIGKILL."""
        end_at = self.deadline or _NEVER
        give_up_at = 0.0
        draining = False
        while True:
            now = monotonic()
            if give_up_at:
                if now >= give_up_at:
                    self.flags |= wire.SPENT
                    return
                self.killed |= tree.kill_descendants()
                seconds = KILL_PASS_SECONDS
            else:
                seconds = max(end_at - now, 0.0)
            spoken, signalled = self.warden.wait(seconds)
            order = self._hear() if spoken else 0
            kill = order == wire.KILL
            if order == wire.DRAINED and draining:
                end_at = min(end_at, monotonic() + SETTLE_SECONDS)
            if not self._reap():
                return
            if signalled and self.warden.keeper_is_gone():
                self.deserted = kill = True
            if give_up_at:
                continue
            now = monotonic()
            if self.status is not None and not draining:
                draining = True
                end_at = now + self.drain_seconds
                wire.send(self.warden.sock, self.outcome(wire.EXITED))
            if now >= end_at:
                kill = True
                if not draining:
                    self.flags |= wire.TIMED_OUT
            if kill:
                give_up_at = now + KILL_SECONDS

    def _hear(self) -> int:
        """Take one message about this command, pass on a signal, and return any other order."""
        message, descriptors = wire.receive(self.warden.sock)
        wire.close_all(descriptors)
        if not message:
            self.deserted = True
            return wire.KILL
        if len(message) != wire.CONTROL.size:
            return 0
        kind, nonce, number = wire.CONTROL.unpack(message)
        if nonce != self.nonce:
            return 0
        if kind == wire.SIGNAL and self.status is None:
            try:
                os.killpg(self.pid, number)
            except OSError:
                # It has gone meanwhile, is a set-user-id program, or there is no such signal.
                return 0
        return int(kind)

    def _reap(self) -> bool:
        """Collect the dead; false when nobody is left, which the kernel says by ECHILD."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.user_seconds += usage.ru_utime
            self.system_seconds += usage.ru_stime
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
            if pid == self.pid:
                self.status = status

    def outcome(self, kind: int) -> bytes:
        """Return the message that says how it went."""
        return wire.OUTCOME.pack(
            kind,
            self.nonce,
            self.flags,
            SIGKILL if self.status is None else self.status,
            self.error,
            len(self.killed),
            self.user_seconds,
            self.system_seconds,
            self.peak_bytes,
        )


def _number(error: OSError) -> int:
    return error.errno or EIO


def _start_limited(run: _Run, streams: tuple[int, ...], rlimits: _Rlimits) -> int:
    # posix_spawn sets no rlimits, and this process could not raise its own again. A fork is safe: there is one thread.
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            for number in _IGNORED_BY_PYTHON:
                signal(number, SIG_DFL)
            pthread_sigmask(SIG_SETMASK, ())
            for name, soft, hard in rlimits:
                ceiling = resource.getrlimit(name)[1]
                bound = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
                resource.setrlimit(name, (min(soft, bound), bound))
            os.execve(run.executable, run.argv, run.env)  # noqa: S606  this is what a warden is for
        except OSError as error:
            os.write(tell, _number(error).to_bytes(4, "little"))
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

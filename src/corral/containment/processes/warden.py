"""Runs as a warden: starts one command at a time, and answers when no process of it is left.

Every living descendant of a warden belongs to the current command. The warden is the first process of a pid namespace, or a
subreaper, so it inherits daemons.
"""

from __future__ import annotations

import os
import sys
from _signal import (  # type: ignore[import-not-found]  # `signal` loads enum, a third of a keeper's start
    SIG_DFL,
    SIG_IGN,
    SIGINT,
    SIGKILL,
    SIGTERM,
    SIGUSR1,
    signal,
    sigtimedwait,
)
from _socket import MSG_DONTWAIT, SHUT_RD, SO_RCVTIMEO, SOL_SOCKET
from _struct import pack
from errno import EIO, ETOOMANYREFS
from select import POLLIN, poll
from time import monotonic, sleep

from corral.containment import protocol
from corral.containment.kernel import limits, process_tree
from corral.containment.kernel.limit_monitor import OomScore
from corral.containment.kernel.syscalls import libc
from corral.containment.layers import confine
from corral.containment.processes.ipc_cleanup import IpcObjects
from corral.containment.processes.output_pipes import HOLD_SECONDS, LOOK_SECONDS, OutputPipes
from corral.containment.processes.spawn_command import AWAITED, CommandStarter, set_rlimits, set_up_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable
    from typing import NoReturn

    from corral.containment.kernel.limit_monitor import LimitMonitor
    from corral.containment.plan import WardenPlan

SETTLE_SECONDS = 0.02  # for background children to exit by themselves after all output was read
KILL_PASS_SECONDS = 0.01  # between two passes of kill: a process that escapes one by forking is met by the next
KILL_SECONDS = 2.0  # against processes that no signal ends: another user's, or in uninterruptible sleep
LONGEST_WAIT_SECONDS = 3600.0  # against a deadline that the kernel's clock cannot represent
METER_SECONDS = 0.2  # between two measurements; a command that ends sooner is never measured
METER_SHARE = 10  # measuring takes at most a tenth of the time: walking thousands of processes takes long
HOLD_DIRECTORY_SECONDS = 1.0  # for which the last command's directory is kept, so that the next one starts faster
_NEVER = float("inf")
_waitid = libc.waitid
_P_ALL = 0
_ANY_LEFT = os.WEXITED | os.WNOHANG | os.WNOWAIT
_BLOCK_BYTES = 512  # the unit of ru_inblock and ru_oublock


class _HungUpError(BaseException):
    """Raised at any point when the warden must exit: only its descendants are left to kill."""


def _hang_up(*_: object) -> NoReturn:
    raise _HungUpError


def serve(
    sock: socket,
    plan: WardenPlan,
    monitor: LimitMonitor,
    *,
    keeper_lives: int,
    is_first: bool,
    in_group: int = -1,
) -> None:
    """Confine this process, and run the host's commands until the host or the keeper hangs up.

    `in_group` is a pipe: the keeper writes a byte when it has moved this process to its control group.
    """
    layers = plan.layers
    owns_pids = "pid" in layers
    if owns_pids and os.getsid(0) != os.getpid():
        # Its commands are process groups of this session, not of the keeper's.
        os.setsid()
    process_tree.become_subreaper()
    signal(SIGINT, SIG_DFL)
    # The first process of a pid namespace gets only signals from inside that it handles. The host sends SIGKILL.
    signal(SIGTERM, SIG_DFL if owns_pids else _hang_up)
    own_rlimits, command_rlimits = limits.split(plan.limits.rlimits)
    # A process group takes a tenth of the time of a session. In a pid namespace nothing else shares the warden's session.
    starter = CommandStarter(command_rlimits, leads_session=not owns_pids)
    try:
        process_tree.set_parent_death_signal(SIGKILL if owns_pids else SIGTERM)
        if _is_at_end(keeper_lives):
            return
        os.close(keeper_lives)
        oom_score = OomScore()
        if layers:
            confine(plan)
        else:
            process_tree.hide()
        set_rlimits(own_rlimits)
        warden = _Warden(
            sock, starter, layers, monitor, oom_score, idle_seconds=0.0 if is_first else plan.host.idle_seconds
        )
        warden.wake_after(warden.idle_seconds)
        if in_group >= 0:
            # As late as possible, since moving a process takes the kernel long. No command may start outside the group.
            await_byte(in_group)
            os.close(in_group)
        # For `mounts.cover_again`, before any command runs.
        own_mounts = [os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)] if plan.remounts else []
        protocol.send(sock, protocol.pack_ready(*plan.status()), own_mounts)
        protocol.close_all(own_mounts)
        while warden.answer():
            pass
    except _HungUpError:
        return
    finally:
        if not owns_pids:
            signal(SIGTERM, SIG_IGN)
            process_tree.kill_and_reap_descendants(KILL_SECONDS)


def exit_after(run: Callable[[], None]) -> NoReturn:
    """Run a function as a warden, and exit: nothing of the caller's stack may run in a fork."""
    try:
        run()
    except (BrokenPipeError, ConnectionResetError):
        # The host hung up during an answer, or the keeper before it let the warden begin.
        pass
    except BaseException:  # noqa: BLE001  the last frame of this process: report to the keeper's stderr and exit
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def await_byte(pipe: int) -> None:
    """Wait for the keeper to write a byte to a pipe."""
    if not os.read(pipe, 1):
        raise ConnectionResetError


def _is_at_end(pipe: int) -> bool:
    poller = poll()
    poller.register(pipe, POLLIN)
    return bool(poller.poll(0))


class _Warden:
    def __init__(
        self,
        sock: socket,
        starter: CommandStarter,
        layers: frozenset[str],
        monitor: LimitMonitor,
        oom_score: OomScore,
        *,
        idle_seconds: float,
    ) -> None:
        self.sock = sock
        self.monitor = monitor
        self.oom_score = oom_score
        self.starter = starter
        self.owns_pids = "pid" in layers
        self.lists_pids = "proc" in layers
        self.block = self.body = b""
        self.env: list[bytes] = []
        self.words: tuple[bytes, bytes, list[bytes]] = (b"", b"", [])
        self.pipes = OutputPipes()
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.shared_memory = -1
        if {"mount", "ipc"} <= layers:
            self.shared_memory = os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: S108
        self.ipc_objects = IpcObjects(self.shared_memory) if self.shared_memory >= 0 else None
        self.holds_directory = False
        self.idle_seconds = idle_seconds  # 0: never exit

    def answer(self) -> bool:
        """Handle one message while idle; return false when the warden must exit."""
        try:
            message, descriptors = protocol.receive(self.sock)
        except BlockingIOError:
            self._be_idle()
            return True
        if not message:
            return False
        if message[0] != protocol.RUN:
            # A kill for a command that has ended meanwhile.
            protocol.close_all(descriptors)
            return True
        run = _Run(self, message, descriptors)
        run.start(descriptors)
        protocol.close_all(descriptors)
        if not run.error:
            run.supervise()
            if run.status:
                run.error = self.starter.failure(run.status)
        run.flags |= self.monitor.hits(run.user_seconds + run.system_seconds, run.blocks_written * _BLOCK_BYTES)
        run.answer()
        # The host often waits for the same CPU.
        os.sched_yield()
        if run.request_flags & protocol.WARDEN_MAKES_PIPES:
            self.pipes.renew()
        self.oom_score.use_command_score()
        if self.ipc_objects is not None:
            # Only this warden's next command could see these, so the answer need not wait.
            self.ipc_objects.clear()
        if not self.holds_directory:
            self.holds_directory = True
            self.wake_after(HOLD_DIRECTORY_SECONDS)
        return not run.flags & protocol.UNKILLABLE_LEFT

    def _be_idle(self) -> None:
        """Leave the last command's directory after a short idle time; exit after a longer one."""
        if self.holds_directory:
            # A directory that is not in use must not stay busy.
            os.chdir("/")
            self.holds_directory = False
            self.wake_after(self.idle_seconds)
        else:
            # The host's next message fails, and it takes another warden. A message that has just come is still handled.
            self.sock.shutdown(SHUT_RD)

    def wake_after(self, seconds: float) -> None:
        """Limit the wait for a message to some seconds, or not at all for 0."""
        # SO_RCVTIMEO, since a timeout of Python's would cost a poll() for every message.
        whole = int(seconds)
        self.sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, pack("@ll", whole, int((seconds - whole) * 1_000_000)))

    def read(self, body: bytes, environment_bytes: int) -> None:
        """Parse the body of a request. Most have the same environment as the one before, and some are equal."""
        if body != self.body or environment_bytes != len(self.block):
            executable, cwd, argv, block = protocol.parse_body(body, environment_bytes)
            if block != self.block:
                self.block, self.env = block, protocol.parse_environment(block)
            self.body, self.words = body, (executable, cwd, argv)


class _Run:
    """A command, from its request to its outcome."""

    __slots__ = (
        "argv",
        "blocks_read",
        "blocks_written",
        "columns",
        "cwd",
        "deadline",
        "drain_seconds",
        "env",
        "error",
        "executable",
        "flags",
        "killed",
        "killing",
        "nonce",
        "peak_bytes",
        "pid",
        "request_flags",
        "rows",
        "status",
        "system_seconds",
        "user_seconds",
        "warden",
    )

    def __init__(self, warden: _Warden, message: bytes, descriptors: tuple[int, ...]) -> None:
        self.warden = warden
        _, self.nonce, self.deadline, self.drain_seconds, self.request_flags, size, self.rows, self.columns = (
            protocol.REQUEST.unpack_from(message)
        )
        large = self.request_flags & protocol.HAS_BODY
        body = protocol.read_body(descriptors[-1]) if large else message[protocol.REQUEST.size :]
        warden.read(body, size)
        self.executable, self.cwd, self.argv = warden.words
        self.env = warden.env
        self.pid = 0
        self.status: int | None = None
        self.flags = 0
        self.error = 0
        self.killed: set[int] = set()
        self.killing = False
        self.user_seconds = self.system_seconds = 0.0
        self.peak_bytes = self.blocks_read = self.blocks_written = 0

    def start(self, descriptors: tuple[int, ...]) -> None:
        """Start the command, or record the error."""
        try:
            os.chdir(self.cwd)
        except OSError as error:
            self.error = _number(error)
            self.flags |= protocol.NO_DIRECTORY
            return
        if self.request_flags & protocol.ON_TERMINAL:
            self._start_on_terminal()
            return
        pipes = self.warden.pipes if self.request_flags & protocol.WARDEN_MAKES_PIPES else None
        try:
            if pipes is not None:
                pipes.make()
                descriptors = (*pipes.theirs, *descriptors)
            stdin = descriptors[2] if self.request_flags & protocol.HAS_STDIN else self.warden.null
            if self.request_flags & protocol.HAS_CONTROL:
                streams = (stdin, descriptors[0], descriptors[1], descriptors[3])
                self.pid = self.warden.starter.start_with(self, streams)
            else:
                self.pid = self.warden.starter.start(self, stdin, descriptors[0], descriptors[1])
            if pipes is not None:
                pipes.is_held = True
        except OSError as error:
            self.error = _number(error)

    def _start_on_terminal(self) -> None:
        """Start the command as session leader on a new terminal, and send the terminal's master end to the host."""
        try:
            outer, inner = os.openpty()
        except OSError as error:
            self.error = _number(error)
            self.flags |= protocol.NO_TERMINAL
            return
        try:
            set_up_terminal(inner, self.rows, self.columns)
            protocol.send(self.warden.sock, protocol.CONTROL.pack(protocol.TERMINAL, self.nonce, 0), (outer,))
            self.pid = self.warden.starter.start_forked(self, lambda: os.login_tty(inner))
        except OSError as error:
            self.error = _number(error)
        finally:
            os.close(outer)
            os.close(inner)

    def supervise(self) -> None:
        """Wait until the command and all its descendants have exited, by themselves or by SIGKILL."""
        end_at = self.deadline or _NEVER
        give_up_at = 0.0
        draining = False
        has_begun = True
        now = monotonic()
        look_at = now + METER_SECONDS if self.warden.monitor.meter else _NEVER
        hold_until = now + HOLD_SECONDS
        hand_over_at = now + LOOK_SECONDS if self.warden.pipes.is_held else _NEVER
        starter = self.warden.starter
        while True:
            if give_up_at:
                if now >= give_up_at:
                    self.flags |= protocol.UNKILLABLE_LEFT
                    return
                self._kill()
                seconds = KILL_PASS_SECONDS
            else:
                seconds = min(max(min(end_at, look_at, hand_over_at) - now, 0.0), LONGEST_WAIT_SECONDS)
            woken = None
            # A short command has ended before this process runs again, so reap before the first wait.
            if not has_begun and not starter.missed:
                self.warden.oom_score.use_own_score()
                woken = sigtimedwait(AWAITED, seconds)
            if not self._reap():
                return
            missed, starter.missed, has_begun = starter.missed, False, False
            orders = self._orders() if missed or (woken is not None and woken.si_signo == SIGUSR1) else ()
            now = monotonic()
            if give_up_at:
                continue
            if self.status is not None and not draining:
                draining = True
                end_at = now + self.drain_seconds
                hand_over_at = self._next_hand_over(now, now)
                protocol.send(self.warden.sock, self.outcome(protocol.EXITED))
            if now >= hand_over_at:
                hand_over_at = self._next_hand_over(now, hold_until)
            if protocol.DRAINED in orders and draining:
                end_at = min(end_at, now + SETTLE_SECONDS)
            exceeds_limit = False
            if now >= look_at:
                exceeds_limit = self._measure()
                looked_at, now = now, monotonic()
                look_at = now + max(METER_SECONDS, METER_SHARE * (now - looked_at))
            if now >= end_at and not draining and not exceeds_limit:
                self.flags |= protocol.TIMED_OUT
            if now >= end_at or exceeds_limit or protocol.KILL in orders:
                give_up_at = now + KILL_SECONDS

    def _next_hand_over(self, now: float, hold_until: float) -> float:
        """Hand the output pipes to the host if it is time; return when to try again."""
        pipes = self.warden.pipes
        if now < hold_until and not pipes.is_filling():
            return hold_until
        return _NEVER if pipes.hand_over(self.warden.sock, self.nonce) else now + HOLD_SECONDS

    def answer(self) -> None:
        """Send the outcome to the host, with the output if it is still in the warden's pipes."""
        pipes = self.warden.pipes
        stdout = stderr = b""
        if pipes.is_held:
            printed = pipes.take()
            if printed is not None:
                stdout, stderr = printed
            else:
                self._hand_over_now()
        message = self.outcome(protocol.ENDED, len(stdout), len(stderr))
        protocol.send(self.warden.sock, message + stdout + stderr if stdout or stderr else message)

    def _hand_over_now(self) -> None:
        give_up_at = monotonic() + KILL_SECONDS
        while not self.warden.pipes.hand_over(self.warden.sock, self.nonce):
            if monotonic() >= give_up_at:
                raise OSError(ETOOMANYREFS, os.strerror(ETOOMANYREFS))
            sleep(HOLD_SECONDS)

    def _measure(self) -> bool:
        """Ask the keeper for the usage of the command; return whether it exceeds a limit."""
        shared = self.warden.shared_memory
        held = os.fstatvfs(shared) if shared >= 0 else None
        shared_bytes = (held.f_blocks - held.f_bfree) * held.f_frsize if held else 0
        used = (self.user_seconds + self.system_seconds, self.blocks_written * _BLOCK_BYTES, shared_bytes)
        memory_bytes, exceeded = self.warden.monitor.ask(protocol.ASK.pack(self.nonce, *used))
        self.peak_bytes = max(self.peak_bytes, memory_bytes)
        self.flags |= exceeded
        return bool(exceeded & ~protocol.PROCESS_LIMIT_REACHED)

    def _kill(self) -> None:
        if self.warden.owns_pids:
            self.killing = True
            self.killed |= process_tree.kill_namespace(listed=self.warden.lists_pids)
        else:
            self.killed |= process_tree.kill_descendants()

    def _orders(self) -> list[int]:
        """Receive the host's messages about this command, forward signals, and return the kinds of the others."""
        orders: list[int] = []
        while True:
            try:
                message = self.warden.sock.recv(protocol.CONTROL.size + 1, MSG_DONTWAIT)
            except BlockingIOError:
                return orders
            if not message:
                raise _HungUpError
            if len(message) != protocol.CONTROL.size:
                continue
            kind, nonce, number = protocol.CONTROL.unpack(message)
            if nonce != self.nonce:
                continue
            if kind == protocol.SIGNAL:
                self._signal(number)
            else:
                orders.append(kind)

    def _signal(self, number: int) -> None:
        if self.status is None:
            try:
                os.killpg(self.pid, number)
            except OSError:
                # The command has exited, runs as another user, or there is no such signal.
                return

    def _reap(self) -> bool:
        """Reap dead children; return false when none are left, which the kernel reports by ECHILD."""
        while True:
            try:
                # When the command is reaped, usually no child is left. Asking first costs less than an exception.
                if self.status is not None and _waitid(_P_ALL, 0, None, _ANY_LEFT) < 0:
                    return False
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.user_seconds += usage.ru_utime
            self.system_seconds += usage.ru_stime
            # At least the few megabytes of this process, which a command shares until execve().
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
            self.blocks_read += usage.ru_inblock
            self.blocks_written += usage.ru_oublock
            if self.killing and os.WIFSIGNALED(status):
                # If /proc shows another pid namespace, only this tells which processes the kill reached.
                self.killed.add(pid)
            if pid == self.pid:
                self.status = status

    def outcome(self, kind: int, stdout_bytes: int = 0, stderr_bytes: int = 0) -> bytes:
        """Return the outcome as a message."""
        return protocol.OUTCOME.pack(
            kind,
            self.nonce,
            self.flags,
            SIGKILL if self.status is None else self.status,
            self.error,
            len(self.killed),
            self.user_seconds,
            self.system_seconds,
            self.peak_bytes,
            self.blocks_read * _BLOCK_BYTES,
            self.blocks_written * _BLOCK_BYTES,
            stdout_bytes,
            stderr_bytes,
        )


def _number(error: OSError) -> int:
    return error.errno or EIO

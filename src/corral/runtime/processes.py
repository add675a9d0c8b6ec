"""The host's connections to the keeper and the wardens. No other module of the host starts processes.

There is one keeper per sandbox, and it makes the wardens. Both are signalled by pidfd, never by pid alone. Messages that are
not well-formed are not trusted.
"""

from __future__ import annotations

import fcntl
import os
import select
from _io import FileIO
from _socket import (
    AF_UNIX,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SHUT_RDWR,
    SO_RCVTIMEO,
    SO_SNDTIMEO,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    socket,
    socketpair,
)
from _struct import pack
from _thread import RLock
from signal import SIGKILL, SIGSTOP, SIGTERM, SIGUSR1, pidfd_send_signal, valid_signals
from time import monotonic, sleep

from corral.containment import protocol
from corral.containment.kernel import namespaces, process_tree
from corral.containment.processes.keeper_command import keeper_command
from corral.containment.system_limits import explained
from corral.model.errors import ContainmentError
from corral.runtime.streams import READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from corral.containment.plan import Place
    from corral.runtime.streams import Streams

    class Probes(Protocol):
        """The cache of what earlier keepers found about the machine."""

        held: tuple[str, ...]

        def keep(self, held: Sequence[str], places: Mapping[str, Place]) -> None: ...
        def forget(self) -> bool: ...


START_SECONDS = 30.0  # for a keeper or warden to become ready; a loaded machine may take seconds
END_SECONDS = 5.0  # for a keeper to exit; it spends up to 2 of them on processes that no signal ends
FORCE_SECONDS = 2.0  # for killing the processes of a keeper that does not exit
LONGEST_WAIT_SECONDS = 5.0  # of one wait for an answer, so that a kill from another thread takes effect
LOOK_SECONDS = 0.1  # between two checks whether a silent keeper was stopped by SIGSTOP
_FIRST_FREE_DESCRIPTOR = 10  # above the fixed numbers 0 to 4 of the keeper


class WardenClient:
    """The host's connection to one warden."""

    def __init__(self, sock: socket, pid: int, pidfd: int) -> None:
        self.sock = sock
        self._closing = RLock()  # two threads may close it; a descriptor number must not be used after it was closed
        # The kernel's timeout serves a thread that waits for the answer alone.
        sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, pack("@ll", int(LONGEST_WAIT_SECONDS), 0))
        # A warden that reads nothing must not hold up the thread that sends it a command.
        sock.setsockopt(SOL_SOCKET, SO_SNDTIMEO, pack("@ll", int(LONGEST_WAIT_SECONDS), 0))
        self.pid = pid
        self.descriptor = sock.fileno()
        self.pidfd = pidfd
        self.poller = select.poll()
        self.poller.register(self.descriptor, select.POLLIN)
        self.streams: Streams | None = None  # of the running command; a fork of the host closes them
        self.idle_since = 0.0
        self.generation = 0  # of the credential files that it hides, as counted by the pool
        # Holds an unhandled message when its first byte is not 0.
        self.inbox = bytearray(protocol.MAX_ANSWER_BYTES + 1)
        # Two open files that keep two descriptor numbers free for the command's pipes, whatever else the host opens.
        # A FileIO may be closed twice without harm.
        self._reserved: list[FileIO] = []
        self._namespace: list[FileIO] = []  # its mount namespace, if paths can be mounted there later
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.backend = self.enforcement = ""
        self.missing_layers: tuple[str, ...] = ()

    def await_ready(self) -> None:
        """Wait until the warden has set up the sandbox for its commands."""
        if not self.poller.poll(START_SECONDS * 1000):
            raise ContainmentError(f"a warden was not ready after {START_SECONDS:g} seconds")
        message, descriptors = protocol.receive(self.sock)
        if len(descriptors) == 1:
            self._namespace.append(FileIO(descriptors[0]))
        else:
            protocol.close_all(descriptors)
        self.backend, self.enforcement, self.missing_layers = protocol.unpack_ready(message)

    @property
    def namespace(self) -> int:
        """A descriptor of its mount namespace, or -1."""
        return self._namespace[0].fileno() if self._namespace else -1

    def receive(self) -> tuple[bytes, tuple[int, ...]]:
        """Return the next message with its descriptors, or an empty one when none comes."""
        try:
            return protocol.receive(self.sock) if self.poller.poll(START_SECONDS * 1000) else (b"", ())
        except (OSError, protocol.ProtocolError):
            return b"", ()

    def reserve_descriptors(self) -> None:
        """Reserve two descriptor numbers for the command's pipes; OSError if none are left."""
        if len(self._reserved) < 2:
            # One call into C: a KeyboardInterrupt between two calls would leak a descriptor.
            self._reserved.extend(map(FileIO, map(os.dup, (self.pidfd,) * (2 - len(self._reserved)))))

    def try_to_reserve(self) -> None:
        """Reserve the descriptors again if that is possible now."""
        try:
            self.reserve_descriptors()
        except OSError:
            # The next command that needs them gets the error.
            return

    def free_reserved(self) -> None:
        """Close the reserved descriptors."""
        for file in self._reserved:
            file.close()
        self._reserved.clear()

    @property
    def owns_pids(self) -> bool:
        """True if the warden is the init process of a pid namespace, so that its death kills all processes in it."""
        return self.backend != "none" and "pid" not in self.missing_layers

    def kill(self) -> None:
        """Kill the warden itself. Its keeper then kills the command."""
        self._signal(SIGKILL)

    def say(self, kind: int, nonce: bytes, number: int) -> None:
        """Send a control message about the running command."""
        # Not blocking: a warden that is taken over need not read, and would hold up this thread for ever.
        self.sock.send(protocol.CONTROL.pack(kind, nonce, number), MSG_NOSIGNAL | MSG_DONTWAIT)
        pidfd_send_signal(self.pidfd, SIGUSR1)

    def close(self) -> None:
        """End the warden and its command, and close the connection."""
        if self.pidfd >= 0:
            self.hang_up()
            self.forget()

    def hang_up(self) -> None:
        """End the warden and its command. The connection stays open. Any thread may call this."""
        self._signal(SIGKILL if self.owns_pids else SIGTERM)

    def await_end(self) -> None:
        """Wait until the warden and its command are gone, also if another thread closes the connection meanwhile."""
        with self._closing:
            if self.pidfd < 0:
                return
            copy = os.dup(self.pidfd)
        try:
            poller = select.poll()
            poller.register(copy, select.POLLIN)
            # The init process of a pid namespace exits after all others in it.
            poller.poll(END_SECONDS * 1000)
        finally:
            os.close(copy)

    def forget(self) -> None:
        """Close the connection without signalling the warden, as a fork of the host must."""
        with self._closing:
            pidfd, self.pidfd = self.pidfd, -1
            if pidfd >= 0:
                self.sock.close()
                self.free_reserved()
                for file in self._namespace:
                    file.close()
                self._namespace.clear()
                os.close(pidfd)

    def forget_after_fork(self) -> None:
        """Do as `forget`, after fork(): a thread of the parent may have held the lock."""
        self._closing = RLock()
        self.forget()

    def __del__(self) -> None:
        # A KeyboardInterrupt may drop a warden on its way to the pool.
        self.close()

    def _signal(self, number: int) -> None:
        with self._closing:
            try:
                pidfd_send_signal(self.pidfd, number)
            except OSError:
                # The warden is dead already.
                return


class KeeperClient:
    """The host's connection to the keeper."""

    def __init__(self) -> None:
        self.pid = 0
        self.pidfd = -1
        self.errors = os.memfd_create("corral-keeper-errors", os.MFD_CLOEXEC)
        self.host = -1
        try:
            self.host = os.pidfd_open(os.getpid())
            self.ctl, self.theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        except OSError:
            protocol.close_all([descriptor for descriptor in (self.errors, self.host) if descriptor >= 0])
            raise
        self.ctl.settimeout(START_SECONDS)
        self.backend = self.enforcement = ""

    def start(
        self,
        plan: Callable[[], bytes],
        lend: Callable[[], Sequence[int]] | None = None,
        probes: Callable[[], Probes | None] = lambda: None,
    ) -> None:
        """Start the keeper and wait until it is ready. The descriptors from `lend` are sent with the plan and closed here."""
        try:
            self.pid = _start(self.theirs.fileno(), self.host, self.errors)
            self.pidfd = os.pidfd_open(self.pid)
            self._close_theirs()
            # The plan is made while the keeper's interpreter starts.
            self._send_plan(plan(), () if lend is None else lend())
            self.backend, self.enforcement, self.missing_layers = self._await_ready()
            self._receive_facts(probes())
        except (OSError, protocol.ProtocolError) as error:
            why = self.last_error() or ("it exited at once" if isinstance(error, ConnectionError) else "")
            self.end()
            what = "the keeper, which runs all commands, did not start"
            if not why and isinstance(error, OSError):
                raise explained(error, what) from error
            raise ContainmentError(f"{what}: {why or error}") from error
        except BaseException:
            self.end()
            raise

    def last_error(self) -> str:
        """Return the last line that the keeper or a warden wrote to stderr."""
        if self.errors < 0:
            return ""
        return os.pread(self.errors, 1 << 16, 0).decode("utf-8", "replace").strip().rpartition("\n")[2]

    def ask(self, message: bytes, descriptors: Sequence[int] = ()) -> tuple[int, tuple[int, ...]]:
        """Send a request and return the number and the descriptors of the answer."""
        protocol.send(self.ctl, message, descriptors)
        if not self._becomes_readable(self.ctl.fileno(), START_SECONDS):
            raise TimeoutError("the keeper was stopped, or does not answer")
        run_program, descriptors = protocol.receive(self.ctl)
        try:
            return protocol.unpack_count(run_program, message[0]), descriptors
        except protocol.ProtocolError:
            protocol.close_all(descriptors)
            raise

    def _send_plan(self, plan: bytes, lent: Sequence[int]) -> None:
        descriptors = [*lent]
        try:
            # As a file: the plan of a project with many repositories is too large for a packet.
            descriptors.insert(0, protocol.sealed("plan", plan))
            protocol.send(self.ctl, b"plan", descriptors)
        finally:
            protocol.close_all(descriptors)

    def _await_ready(self) -> tuple[str, str, tuple[str, ...]]:
        message = self.ctl.recv(protocol.MAX_PACKET_BYTES)
        if message[:1] == bytes((protocol.MAP,)):
            protocol.send(self.ctl, protocol.COUNT.pack(protocol.MAP, _map_all_ids(self.pid)))
            message = self.ctl.recv(protocol.MAX_PACKET_BYTES)
        if not message:
            raise ConnectionResetError
        return protocol.unpack_ready(message)

    def _receive_facts(self, probes: Probes | None) -> None:
        """Receive what the keeper has found by trying. No command has run yet, so it can be trusted."""
        message = self.ctl.recv(protocol.MAX_PACKET_BYTES)
        if message[:1] != bytes((protocol.FACTS,)):
            raise protocol.ProtocolError("the keeper did not say which layers it has tried")
        if probes is not None:
            probes.keep(*protocol.unpack(message[1:]))

    def _close_theirs(self) -> None:
        self.theirs.close()
        if self.host >= 0:
            os.close(self.host)
            self.host = -1

    def close(self) -> None:
        """Close the connection without ending the keeper, as a fork of the host must."""
        self._close_theirs()
        self.ctl.close()
        for descriptor in (self.errors, self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.errors = self.pidfd = -1

    def end(self) -> None:
        """End the keeper and wait until it and all its processes are gone."""
        try:
            # shutdown(), because a fork that bypassed Python may still hold a copy of the socket.
            self.ctl.shutdown(SHUT_RDWR)
        except OSError:
            # Codex's own sandbox forbids shutdown(); closing our copy is all that is left.
            self.ctl.close()
        if self.pidfd >= 0:
            if not self._becomes_readable(self.pidfd, END_SECONDS):
                self._kill_all()
            _reap(self.pid)
        self.close()

    def _becomes_readable(self, descriptor: int, seconds: float) -> bool:
        """Wait for a descriptor of the keeper. Returns false after `seconds`, or when the keeper was stopped by a signal."""
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        give_up_at = monotonic() + seconds
        while not poller.poll(LOOK_SECONDS * 1000):
            if monotonic() >= give_up_at or process_tree.is_stopped(self.pid):
                return False
        return True

    def _kill_all(self) -> None:
        # Orphans of a dead warden are children of the keeper. After its death nothing could find them, so they go first.
        give_up_at = monotonic() + FORCE_SECONDS
        while process_tree.kill_descendants_of(self.pid) and monotonic() < give_up_at:
            sleep(process_tree.PASS_SECONDS)
        pidfd_send_signal(self.pidfd, SIGKILL)


def _map_all_ids(pid: int) -> int:
    """Map all ids of this user namespace into the keeper's. Returns the errno of a failure, or 0."""
    try:
        namespaces.map_all_ids(pid)
    except OSError as error:
        return error.errno or 1
    return 0


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        # The host program reaps all children itself, or ignores SIGCHLD.
        return


def _start(ctl: int, host: int, errors: int) -> int:
    command = keeper_command()
    # Above the target numbers: if the host has closed its 0, 1 or 2, one of these descriptors may have that number.
    high = _duplicate_high((ctl, host, errors))
    try:
        return os.posix_spawn(
            command[0],
            command,
            {},
            file_actions=(
                (os.POSIX_SPAWN_DUP2, high[2], 2),
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_RDWR, 0),
            ),
            setsid=True,
            setsigmask=(),
            # exec() keeps ignored signals ignored, and with SIGCHLD ignored the keeper could not wait for its children.
            setsigdef=valid_signals() - {SIGKILL, SIGSTOP},
        )
    finally:
        protocol.close_all(high)


def _duplicate_high(descriptors: Sequence[int]) -> list[int]:
    """Duplicate descriptors to numbers above those that a child gets. If one fails, close the others."""
    made: list[int] = []
    try:
        made += (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR) for each in descriptors)
    except OSError:
        protocol.close_all(made)
        raise
    return made


def run_program(argv: list[str], data: bytes, environ: Mapping[str, str], seconds: float) -> tuple[int, bytes, bytes]:
    """Run a trusted program outside the sandbox, as an agent runs a hook. Returns its exit code, stdout and stderr.

    OSError if it cannot be started, TimeoutError if it does not exit in time.
    """
    # Files, not pipes: the program never blocks on a full pipe.
    streams: list[int] = []
    try:
        streams += (os.memfd_create(f"corral-{name}", os.MFD_CLOEXEC) for name in ("stdin", "stdout", "stderr"))
        os.pwrite(streams[0], data, 0)
        high = _duplicate_high(streams)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)]
            pid = os.posix_spawn(argv[0], argv, environ, file_actions=actions, setsid=True, setsigmask=())
        finally:
            protocol.close_all(high)
        status = os.waitstatus_to_exitcode(_wait_or_kill(pid, seconds))
        out, err = (os.pread(fd, READ_BYTES, 0) for fd in streams[1:])
        return status, out, err
    finally:
        protocol.close_all(streams)


def _wait_or_kill(pid: int, seconds: float) -> int:
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        in_time = poller.poll(seconds * 1000)
        if not in_time:
            # The pid and the process group cannot be reused until the program is reaped.
            os.killpg(pid, SIGKILL)
        status = os.waitpid(pid, 0)[1]
    finally:
        os.close(pidfd)
    if not in_time:
        raise TimeoutError(f"it did not exit within {seconds:g} seconds")
    return status

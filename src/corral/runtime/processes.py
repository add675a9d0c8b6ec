"""The only module of the host that starts processes: one keeper per sandbox, which makes the wardens.

Both are ended by pidfd, never by number alone; what they say is not believed unless it has the form of a message.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
from _io import FileIO
from _socket import AF_UNIX, SHUT_RDWR, SO_RCVTIMEO, SOCK_SEQPACKET, SOL_SOCKET, socket, socketpair
from _struct import pack
from _thread import RLock
from signal import SIGKILL, SIGSTOP, SIGTERM, SIGUSR1, pidfd_send_signal, valid_signals
from time import monotonic, sleep

from corral.containment import protocol
from corral.containment.kernel import namespaces, process_tree
from corral.model.errors import ContainmentError
from corral.runtime.streams import READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from corral.runtime.streams import Streams

START_SECONDS = 30.0  # against a keeper or warden that never says it is ready; a loaded machine may take seconds
END_SECONDS = 5.0  # against a keeper that does not end; it has 2 seconds for what no signal ends
FORCE_SECONDS = 2.0  # against what no signal ends, where the keeper is past doing it
LONGEST_WAIT_SECONDS = 5.0  # for an answer, so that a kill from another thread is followed up although this one waits
LOOK_SECONDS = 0.1  # between two looks whether a keeper that does not answer was stopped
_FIRST_FREE_DESCRIPTOR = 10  # above those the keeper gets by number
# At the end of the path: a package beside corral must not stand in for a module of the standard library.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from corral.containment.processes.keeper import main; main()"


class WardenClient:
    """The host's end of one warden."""

    __slots__ = (
        "__weakref__",
        "_closing",
        "_room",
        "backend",
        "buffer",
        "descriptor",
        "enforcement",
        "generation",
        "idle_since",
        "inbox",
        "missing_layers",
        "pid",
        "pidfd",
        "poller",
        "sock",
        "streams",
    )

    def __init__(self, sock: socket, pid: int, pidfd: int) -> None:
        self.sock = sock
        self._closing = RLock()  # another thread may end it, and must not signal or close what is another's by then
        # The kernel's own timeout, for who waits for nothing else.
        sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, pack("@ll", int(LONGEST_WAIT_SECONDS), 0))
        self.pid = pid
        self.descriptor = sock.fileno()
        self.pidfd = pidfd
        self.poller = select.poll()
        self.poller.register(self.descriptor, select.POLLIN)
        self.streams: Streams | None = None  # of the command at hand, for a fork of the host to close
        self.idle_since = 0.0
        self.generation = 0  # of the credentials that it masks, as the pool counts them
        # A message at hand is one whose first byte is not 0.
        self.inbox = bytearray(protocol.MAX_ANSWER_BYTES + 1)
        # Held so that two descriptors of the command's can be taken, whatever the host opens; closed twice, it does no harm.
        self._room: list[FileIO] = []
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.backend = self.enforcement = ""
        self.missing_layers: tuple[str, ...] = ()

    def await_ready(self) -> None:
        """Wait until the warden has put on what will hold its commands."""
        if not self.poller.poll(START_SECONDS * 1000):
            raise ContainmentError(f"a warden was not ready after {START_SECONDS:g} seconds")
        self.backend, self.enforcement, self.missing_layers = protocol.unpack_ready(
            self.sock.recv(protocol.MAX_PACKET_BYTES)
        )

    def receive(self) -> tuple[bytes, tuple[int, ...]]:
        """Wait for a message that comes at once, and return it with its descriptors; empty when there is none."""
        try:
            return protocol.receive(self.sock) if self.poller.poll(START_SECONDS * 1000) else (b"", ())
        except (OSError, protocol.ProtocolError):
            return b"", ()

    def make_room(self) -> None:
        """See to it that two descriptors can be taken later; OSError if they cannot."""
        if len(self._room) < 2:
            # In one step: an interrupt loses none.
            self._room.extend(map(FileIO, map(os.dup, (self.pidfd,) * (2 - len(self._room)))))

    def restore_room(self) -> None:
        """Make it again where it was taken, if that can be now."""
        try:
            self.make_room()
        except OSError:
            # The next command that needs it is told.
            return

    def use_room(self) -> None:
        """Take them now."""
        for one in self._room:
            one.close()
        self._room.clear()

    @property
    def owns_pids(self) -> bool:
        """Whether the warden is the first process of a pid namespace, with which all of it ends."""
        return self.backend != "none" and "pid" not in self.missing_layers

    def kill(self) -> None:
        """End the warden itself; its keeper ends what is below."""
        self._signal(SIGKILL)

    def say(self, kind: int, nonce: bytes, number: int) -> None:
        """Tell the warden something about the command that it runs."""
        protocol.send(self.sock, protocol.CONTROL.pack(kind, nonce, number))
        pidfd_send_signal(self.pidfd, SIGUSR1)

    def close(self) -> None:
        """Hang up: the warden ends its command and itself."""
        if self.pidfd >= 0:
            self.hang_up()
            self.forget()

    def hang_up(self) -> None:
        """Have the warden end its command and itself, from any thread."""
        self._signal(SIGKILL if self.owns_pids else SIGTERM)

    def await_end(self) -> None:
        """Wait until the warden and its command are gone, whoever closes it meanwhile."""
        with self._closing:
            if self.pidfd < 0:
                return
            copy = os.dup(self.pidfd)
        try:
            poller = select.poll()
            poller.register(copy, select.POLLIN)
            # The first process of a pid namespace ends after all others in it.
            poller.poll(END_SECONDS * 1000)
        finally:
            os.close(copy)

    def forget(self) -> None:
        """Close what is held of the warden without a word, as a fork of the host must."""
        with self._closing:
            pidfd, self.pidfd = self.pidfd, -1
            if pidfd >= 0:
                self.sock.close()
                self.use_room()
                os.close(pidfd)

    def forget_after_fork(self) -> None:
        """As `forget`, where a thread that is not here may have held the lock."""
        self._closing = RLock()
        self.forget()

    def __del__(self) -> None:
        # Dropped on the way by an interrupt.
        self.close()

    def _signal(self, number: int) -> None:
        with self._closing:
            try:
                pidfd_send_signal(self.pidfd, number)
            except OSError:
                # It is dead already.
                return


class KeeperClient:
    """The host's end of the keeper."""

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

    def start(self, plan: Callable[[], bytes], lend: Callable[[], Sequence[int]] | None = None) -> None:
        """Start the program, and wait until it is ready to make wardens. What is lent goes with the plan, and is closed here."""
        try:
            self.pid = _start(self.theirs.fileno(), self.host, self.errors)
            self.pidfd = os.pidfd_open(self.pid)
            self._close_theirs()
            # Made while the interpreter starts.
            self._brief(plan(), () if lend is None else lend())
            self.backend, self.enforcement, self.missing_layers = self._await_ready()
        except (OSError, protocol.ProtocolError) as error:
            why = "it ended at once" if isinstance(error, ConnectionError) else str(error)
            told = self.told()
            self.end()
            raise ContainmentError(f"the keeper, which runs all commands, did not start: {told or why}") from error
        except BaseException:
            self.end()
            raise

    def told(self) -> str:
        """Return the last line that the keeper or a warden left on its standard error."""
        if self.errors < 0:
            return ""
        return os.pread(self.errors, 1 << 16, 0).decode("utf-8", "replace").strip().rpartition("\n")[2]

    def ask(self, message: bytes) -> tuple[int, tuple[int, ...]]:
        """Ask something, and return the number and the descriptors of the answer."""
        protocol.send(self.ctl, message)
        self._await_word()
        run_program, descriptors = protocol.receive(self.ctl)
        try:
            return protocol.unpack_count(run_program, message[0]), descriptors
        except protocol.ProtocolError:
            protocol.close_all(descriptors)
            raise

    def _await_word(self) -> None:
        poller = select.poll()
        poller.register(self.ctl.fileno(), select.POLLIN)
        give_up_at = monotonic() + START_SECONDS
        while not poller.poll(LOOK_SECONDS * 1000):
            if monotonic() >= give_up_at or process_tree.is_stopped(self.pid):
                raise TimeoutError("the keeper was stopped, or does not answer")

    def _brief(self, plan: bytes, lent: Sequence[int]) -> None:
        # By descriptor: a project of many repositories has a plan too large for a packet.
        descriptor = protocol.sealed("plan", plan)
        try:
            protocol.send(self.ctl, b"plan", (descriptor, *lent))
        finally:
            protocol.close_all((descriptor, *lent))

    def _await_ready(self) -> tuple[str, str, tuple[str, ...]]:
        message = self.ctl.recv(protocol.MAX_PACKET_BYTES)
        if message[:1] == bytes((protocol.MAP,)):
            protocol.send(self.ctl, protocol.COUNT.pack(protocol.MAP, _map_all_ids(self.pid)))
            message = self.ctl.recv(protocol.MAX_PACKET_BYTES)
        if not message:
            raise ConnectionResetError
        return protocol.unpack_ready(message)

    def _close_theirs(self) -> None:
        self.theirs.close()
        if self.host >= 0:
            os.close(self.host)
            self.host = -1

    def close(self) -> None:
        """Forget the keeper without a word, as a fork of the host must."""
        self._close_theirs()
        self.ctl.close()
        for descriptor in (self.errors, self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.errors = self.pidfd = -1

    def end(self) -> None:
        """Hang up and wait until the keeper and all below are gone."""
        try:
            # Not only closed: a fork of the host below Python may hold it too.
            self.ctl.shutdown(SHUT_RDWR)
        except OSError:
            # Codex's own sandbox around us does not let anybody; then hanging up is all there is.
            self.ctl.close()
        if self.pidfd >= 0:
            if not self._ends_by_itself():
                self._end_by_force()
            _reap(self.pid)
        self.close()

    def _ends_by_itself(self) -> bool:
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        give_up_at = monotonic() + END_SECONDS
        while not poller.poll(LOOK_SECONDS * 1000):
            if monotonic() >= give_up_at or process_tree.is_stopped(self.pid):
                return False
        return True

    def _end_by_force(self) -> None:
        # What a dead warden left behind is the keeper's child, and would be nobody's when the keeper is killed.
        give_up_at = monotonic() + FORCE_SECONDS
        while process_tree.kill_descendants_of(self.pid) and monotonic() < give_up_at:
            sleep(process_tree.PASS_SECONDS)
        pidfd_send_signal(self.pidfd, SIGKILL)


def _map_all_ids(pid: int) -> int:
    """Give the keeper's user namespace all ids of this one; return the error that prevents it, or 0."""
    try:
        namespaces.map_all_ids(pid)
    except OSError as error:
        return error.errno or 1
    return 0


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        # The host program waits for all its children itself, or ignores SIGCHLD.
        return


def _start(ctl: int, host: int, errors: int) -> int:
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # there since 3.3
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # Above the numbers they will have: the host may have closed its own 0, 1 or 2.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR) for fd in (ctl, host, errors)]
    try:
        return os.posix_spawn(
            python,
            (python, "-I", "-S", "-c", _PROGRAM, package_parent),
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
            # An ignored SIGCHLD would be handed on, and then no exit could be waited for.
            setsigdef=valid_signals() - {SIGKILL, SIGSTOP},
        )
    finally:
        protocol.close_all(high)


def run_program(argv: list[str], data: bytes, environ: Mapping[str, str], seconds: float) -> tuple[int, bytes, bytes]:
    """Run a program of the owner's to its end, as a host runs a hook; return its status and what it said.

    OSError where it cannot be started, TimeoutError where it does not end.
    """
    # Files, not pipes: nobody waits for a reader.
    streams = [os.memfd_create(f"corral-{name}", os.MFD_CLOEXEC) for name in ("stdin", "stdout", "stderr")]
    try:
        os.pwrite(streams[0], data, 0)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR) for fd in streams]
        try:
            actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)]
            pid = os.posix_spawn(argv[0], argv, environ, file_actions=actions, setsid=True, setsigmask=())
        finally:
            protocol.close_all(high)
        status = os.waitstatus_to_exitcode(_ended(pid, seconds))
        out, err = (os.pread(fd, READ_BYTES, 0) for fd in streams[1:])
        return status, out, err
    finally:
        protocol.close_all(streams)


def _ended(pid: int, seconds: float) -> int:
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        in_time = poller.poll(seconds * 1000)
        if not in_time:
            # Its number is its own until it is reaped, and so is its group's.
            os.killpg(pid, SIGKILL)
        status = os.waitpid(pid, 0)[1]
    finally:
        os.close(pidfd)
    if not in_time:
        raise TimeoutError(f"it did not end within {seconds:g} seconds")
    return status

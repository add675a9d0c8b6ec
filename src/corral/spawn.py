"""The only module of the host that starts processes: one keeper per sandbox, and through it a pool of wardens.

A fork of the host has a pool of its own; what it inherited it closes and never speaks to.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair
from _thread import allocate_lock
from _weakrefset import WeakSet
from signal import SIGKILL, SIGSTOP, SIGTERM, SIGUSR1, pidfd_send_signal, valid_signals
from time import monotonic

from corral.containment import namespaces, wire
from corral.errors import ContainmentError
from corral.streams import READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.model import Violation
    from corral.streams import Streams

    Inspect = Callable[[bytes, str, tuple[str, ...]], tuple[Violation, ...]]

START_SECONDS = 30.0  # against a keeper or warden that never says it is ready; a loaded machine may take seconds
END_SECONDS = 5.0  # against a keeper that does not end; it has 2 seconds for what no signal ends
MAX_IDLE_WARDENS = 16  # a burst of runs leaves at most these, about 2 MB each
IDLE_SECONDS = 30.0  # a warden that was not needed for so long is let go, except the last
MAX_STARTS = 3  # of keepers in a row, against one that dies as soon as it starts
_FIRST_FREE_DESCRIPTOR = 10  # above those the keeper gets by number
# At the end of the path: a package beside corral must not stand in for a module of the standard library.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from corral.containment.keeper import main; main()"


class Warden:
    """The host's end of one warden."""

    __slots__ = (
        "__weakref__",
        "backend",
        "buffer",
        "descriptor",
        "enforcement",
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
        self.pid = pid
        self.descriptor = sock.fileno()
        self.pidfd = pidfd
        self.poller = select.poll()
        self.poller.register(self.descriptor, select.POLLIN)
        self.streams: Streams | None = None  # of the command at hand, for a fork of the host to close
        self.idle_since = 0.0
        self.inbox = bytearray(wire.OUTCOME.size + 1)  # a message at hand is one whose first byte is not 0
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.backend = self.enforcement = ""
        self.missing_layers: tuple[str, ...] = ()

    def await_ready(self) -> None:
        """Wait until the warden has put on what will hold its commands."""
        if not self.poller.poll(START_SECONDS * 1000):
            raise ContainmentError(f"a warden was not ready after {START_SECONDS:g} seconds")
        self.backend, self.enforcement, self.missing_layers = wire.unpack_ready(self.sock.recv(wire.MAX_PACKET_BYTES))

    @property
    def owns_pids(self) -> bool:
        """Whether the warden is the first process of a pid namespace, with which all of it ends."""
        return self.backend == "warden" and "pid" not in self.missing_layers

    def kill(self) -> None:
        """End the warden itself; its keeper ends what is below."""
        self._signal(SIGKILL)

    def say(self, kind: int, nonce: bytes, number: int) -> None:
        """Tell the warden something about the command that it runs."""
        wire.send(self.sock, wire.CONTROL.pack(kind, nonce, number))
        pidfd_send_signal(self.pidfd, SIGUSR1)

    def close(self) -> None:
        """Hang up: the warden ends its command and itself."""
        if self.pidfd >= 0:
            self._signal(SIGKILL if self.owns_pids else SIGTERM)
            self.forget()

    def forget(self) -> None:
        """Close what is held of the warden without a word, as a fork of the host must."""
        if self.pidfd >= 0:
            self.sock.close()
            os.close(self.pidfd)
            self.pidfd = -1

    def _signal(self, number: int) -> None:
        try:
            pidfd_send_signal(self.pidfd, number)
        except OSError:
            # It is dead already.
            return


class _Keeper:
    """The host's end of the keeper."""

    def __init__(self, plan: Callable[[], bytes]) -> None:
        self.ctl, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.errors = os.memfd_create("corral-keeper-errors", os.MFD_CLOEXEC)
        self.pidfd = -1
        host = os.pidfd_open(os.getpid())
        try:
            self.pid = _start(theirs.fileno(), host, self.errors)
            self.pidfd = os.pidfd_open(self.pid)
            self.ctl.settimeout(START_SECONDS)
            theirs.close()
            # Made while the interpreter starts.
            self._brief(plan())
            self.backend, self.enforcement, self.missing_layers = self._await_ready()
        except (OSError, wire.WireError) as error:
            why = "it ended at once" if isinstance(error, ConnectionError) else str(error)
            told = self.told()
            self.end()
            raise ContainmentError(f"the keeper, which runs all commands, did not start: {told or why}") from error
        except BaseException:
            self.end()
            raise
        finally:
            theirs.close()
            os.close(host)

    def told(self) -> str:
        """Return the last line that the keeper or a warden left on its standard error."""
        return os.pread(self.errors, 1 << 16, 0).decode("utf-8", "replace").strip().rpartition("\n")[2]

    def _brief(self, plan: bytes) -> None:
        # By descriptor: a project of many repositories has a plan too large for a packet.
        descriptor = wire.sealed("plan", plan)
        try:
            wire.send(self.ctl, b"plan", (descriptor,))
        finally:
            os.close(descriptor)

    def _await_ready(self) -> tuple[str, str, tuple[str, ...]]:
        message = self.ctl.recv(wire.MAX_PACKET_BYTES)
        if message[:1] == bytes((wire.MAP,)):
            wire.send(self.ctl, wire.COUNT.pack(wire.MAP, _map_all_ids(self.pid)))
            message = self.ctl.recv(wire.MAX_PACKET_BYTES)
        if not message:
            raise ConnectionResetError
        return wire.unpack_ready(message)

    def close(self) -> None:
        """Forget the keeper without a word, as a fork of the host must."""
        self.ctl.close()
        os.close(self.errors)
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def end(self) -> None:
        """Hang up and wait until the keeper and all below are gone."""
        self.ctl.close()
        if self.pidfd >= 0:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            if not poller.poll(END_SECONDS * 1000):
                pidfd_send_signal(self.pidfd, SIGKILL)
            _reap(self.pid)
        self.close()


def _map_all_ids(pid: int) -> int:
    """Give the keeper's user namespace all ids of this one; return the error that prevents it, or 0."""
    try:
        namespaces.write_all_ids(pid)
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
    package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
        wire.close_all(high)


class Pool:
    """The wardens of one sandbox. Any thread may acquire; each warden runs one command at a time."""

    def __init__(self, plan: Callable[[], bytes], inspect: Inspect | None = None) -> None:
        self._plan = plan
        self.inspect = inspect  # asked after each command what it did, by its errors, directory and missing layers
        self._lock = allocate_lock()
        self._keeper: _Keeper | None = None
        self._idle: list[Warden] = []
        self._wardens: WeakSet[Warden] = WeakSet()
        self._closed = False
        _POOLS.add(self)

    def prepare(self) -> None:
        """See to it that a warden is there."""
        if not self._idle:
            self._idle.append(self._make())

    def status(self) -> tuple[str, str, tuple[str, ...]]:
        """Return backend, enforcement and missing layers; the keeper is started to know them."""
        with self._lock:
            keeper = self._started_keeper()
            return keeper.backend, keeper.enforcement, keeper.missing_layers

    def dispatch(self, message: bytes, descriptors: Sequence[int]) -> Warden:
        """Hand a request to a warden and return it; one that died while it was idle is replaced."""
        for _ in range(MAX_IDLE_WARDENS + MAX_STARTS):
            warden = self._acquire()
            try:
                wire.send(warden.sock, message, descriptors)
            except (BrokenPipeError, ConnectionResetError):
                warden.close()
                continue
            except BaseException:
                self.release(warden)
                raise
            return warden
        raise ContainmentError("every warden ends before it takes a command")

    def _acquire(self) -> Warden:
        try:
            # Atomic without the lock, and the last one used: its memory is warm.
            return self._idle.pop()
        except IndexError:
            return self._make()

    def release(self, warden: Warden) -> None:
        """Take a warden back that has ended its command."""
        if self._closed:
            warden.close()
            return
        warden.idle_since = now = monotonic()
        self._idle.append(warden)
        if len(self._idle) > 1:
            self._trim(now)

    def sweep(self, lost: Warden) -> int:
        """End a warden that is lost and what it leaves behind; return how many processes were killed."""
        with self._lock:
            if self._keeper is None:
                return 0
            try:
                wire.send(self._keeper.ctl, wire.COUNT.pack(wire.SWEEP, lost.pid))
                count = wire.unpack_count(self._keeper.ctl.recv(wire.MAX_PACKET_BYTES), wire.SWEEP)
            except (OSError, wire.WireError):
                self._drop_keeper()
                return 0
            return count

    def retire(self) -> None:
        """End the keeper and all below; the next command starts another."""
        with self._lock:
            self._drop_keeper()

    def close(self) -> None:
        """End all commands, wardens and the keeper, and wait until they are gone."""
        with self._lock:
            self._closed = True
            self._drop_keeper()

    def _make(self) -> Warden:
        told = ""
        for _ in range(MAX_STARTS):
            with self._lock:
                keeper = self._started_keeper()
                try:
                    wire.send(keeper.ctl, bytes((wire.NEW,)))
                    message, descriptors = wire.receive(keeper.ctl)
                except (OSError, wire.WireError):
                    message, descriptors = b"", ()
                if not message:
                    # The keeper was killed from outside; the next turn starts another.
                    self._drop_keeper()
                    continue
                number = wire.unpack_count(message, wire.NEW)
                if not descriptors:
                    raise ContainmentError(f"a warden could not be made: {os.strerror(number)}")
                warden = Warden(socket(fileno=descriptors[0]), number, descriptors[1])
                self._wardens.add(warden)
            try:
                warden.await_ready()
            except (OSError, wire.WireError):
                warden.close()
                told = keeper.told() if keeper.pidfd >= 0 else ""
                continue
            return warden
        raise ContainmentError(f"what runs all commands ends as soon as it starts: {told or 'it was killed'}")

    def _started_keeper(self) -> _Keeper:
        if self._closed:
            raise ContainmentError("the sandbox is closed; make a new one")
        if self._keeper is None:
            self._keeper = _Keeper(self._plan)
        return self._keeper

    def _trim(self, now: float) -> None:
        try:
            oldest = self._idle[0]
            if len(self._idle) <= MAX_IDLE_WARDENS and now - oldest.idle_since < IDLE_SECONDS:
                return
            self._idle.remove(oldest)
        except (IndexError, ValueError):
            # Another thread has just acquired it.
            return
        oldest.close()

    def _drop_keeper(self) -> None:
        idle, self._idle = self._idle, []
        for warden in idle:
            warden.close()
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def _forget_after_fork(self) -> None:
        self._lock = allocate_lock()
        for warden in list(self._wardens):
            warden.forget()
            if warden.streams is not None:
                warden.streams.close()
        self._idle = []
        self._wardens = WeakSet()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def __del__(self) -> None:
        self.close()


_POOLS: WeakSet[Pool] = WeakSet()


def _forget_after_fork() -> None:
    for pool in list(_POOLS):
        pool._forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)

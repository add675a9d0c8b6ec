"""The wardens of one sandbox: reused when idle, made when needed, replaced when they or their keeper have died.

A short-lived thread makes them, so that a KeyboardInterrupt of the caller cannot interrupt it and an event loop is not blocked.
After fork() the child closes the inherited descriptors and starts a keeper of its own.
"""

from __future__ import annotations

import os
from _socket import socket
from _thread import allocate_lock, start_new_thread
from _weakrefset import WeakSet
from collections import deque
from errno import EIO
from time import monotonic

from corral.containment import protocol
from corral.containment.system_limits import explained
from corral.model.errors import ContainmentError
from corral.runtime.processes import KeeperClient, WardenClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Sequence

    from corral._lib.fork_lock import ProcessOwner
    from corral.runtime.processes import Probes


MAX_IDLE_WARDENS = 16  # kept after a burst of commands; each takes about 2 MB
IDLE_SECONDS = 30.0  # after this time an idle warden exits, except the first one
MAX_STARTS = 3  # keepers in a row, against a keeper that dies as soon as it starts
MAX_MAKERS = 2  # threads: while one warden sets up its sandbox, the keeper can fork the next one


class _Request:
    """A request for a warden. `notify` is called when `warden` or `error` is set."""

    __slots__ = ("error", "is_cancelled", "notify", "warden")

    def __init__(self, notify: Callable[[], object]) -> None:
        self.notify = notify
        self.warden: WardenClient | None = None
        self.error: BaseException | None = None
        self.is_cancelled = False

    def take(self) -> WardenClient:
        """Return the warden, or raise the error."""
        if self.error is not None:
            raise self.error
        warden, self.warden = self.warden, None
        assert warden is not None  # noqa: S101  `notify` is called when one of the two is set
        return warden


class Pool:
    """The wardens of one sandbox. Any thread may acquire one. A warden runs one command at a time."""

    def __init__(
        self,
        plan: Callable[[], bytes],
        *,
        lend: Callable[[], Sequence[int]] | None = None,
        generation: Callable[[], int] | None = None,
        added_masks: Callable[[], Sequence[str]] = tuple,
        settle: Callable[[], object] | None = None,
        probes: Callable[[], Probes | None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._probes = probes  # returns what the last plan says about the layers of this machine
        self.admission: ProcessOwner | None = (
            None  # set once the sandbox has checked the layers of a warden of this process
        )
        self._status: tuple[str, str, tuple[str, ...]] | None = None  # of the first warden since the pool was retired
        self._generation = generation  # increases when a credential file appears that running wardens do not hide
        self._added_masks = added_masks  # returns the credential files that the plan does not name
        self._settle = settle  # waits until nothing is done any more that is only done while commands run
        self._lend = lend  # returns the proxy's descriptors, which a new keeper gets with its plan
        self._lock = allocate_lock()  # for the requests and the set of wardens
        self._keeper_lock = allocate_lock()  # held while the keeper is asked, which may take long
        self._keeper: KeeperClient | None = None
        self._requests: deque[_Request] = deque()
        self._makers = 0
        self._idle: list[WardenClient] = []
        self._wardens: WeakSet[WardenClient] = WeakSet()
        self._closed = False
        _POOLS.add(self)

    def acquire(self) -> WardenClient:
        """Return a ready warden: the one used last, whose memory is warm, or a new one."""
        if (warden := self._pop_idle()) is not None:
            return warden
        ready = allocate_lock()
        ready.acquire()
        request = _Request(ready.release)
        try:
            self._submit(request)
            ready.acquire()
            return request.take()
        except BaseException:
            self._cancel(request)
            raise

    async def acquire_in_loop(self) -> WardenClient:
        """Return a ready warden without blocking the running event loop."""
        from asyncio import get_running_loop  # noqa: PLC0415  a program without an event loop does not load asyncio

        if (warden := self._pop_idle()) is not None:
            return warden
        loop = get_running_loop()
        ready = loop.create_future()
        request = _Request(lambda: loop.call_soon_threadsafe(_set, ready))
        try:
            self._submit(request)
            await ready
            return request.take()
        except BaseException:
            self._cancel(request)
            raise

    def dispatch(self, warden: WardenClient, message: bytes, descriptors: Sequence[int]) -> WardenClient:
        """Send a request to a warden. If it died while it was idle, send it to another. Returns the warden that got it."""
        for _ in range(MAX_IDLE_WARDENS + MAX_STARTS):
            try:
                protocol.send(warden.sock, message, descriptors)
            except (BrokenPipeError, ConnectionResetError, BlockingIOError):
                warden.close()
            except OSError:
                self.release(warden)
                raise
            except BaseException:
                # The warden may have received the request.
                warden.close()
                raise
            else:
                return warden
            warden = self.acquire()
            warden.reserve_descriptors()
        warden.close()
        raise ContainmentError("every warden exits before it accepts a command; run `corral doctor` for the cause")

    def hides_all(self, warden: WardenClient) -> bool:
        """Return whether a warden hides every credential file that is known by now."""
        return self._generation is None or warden.generation >= self._generation()

    def release(self, warden: WardenClient) -> None:
        """Return a warden whose command has ended to the pool."""
        if self._closed:
            warden.close()
            return
        warden.try_to_reserve()
        warden.idle_since = now = monotonic()
        self._idle.append(warden)
        if len(self._idle) > 1:
            self._trim(now)

    def settle(self) -> None:
        """Wait, before a result returns, until what is done in the background while commands run is done."""
        if self._settle is not None:
            self._settle()

    def sweep(self, lost: WardenClient) -> tuple[int, int]:
        """Kill the processes of a lost warden. Returns how many were killed, and the limit flags of its cgroup."""
        with self._keeper_lock:
            if self._keeper is None:
                return 0, 0
            try:
                killed, _ = self._keeper.ask(protocol.COUNT.pack(protocol.SWEEP, lost.pid))
                hits, _ = self._keeper.ask(protocol.COUNT.pack(protocol.LIMIT_HITS, lost.pid))
            except (OSError, protocol.ProtocolError):
                self._drop_keeper()
                return 0, 0
            return killed, hits

    def _pop_idle(self) -> WardenClient | None:
        generation = self._generation() if self._generation is not None else 0
        while True:
            try:
                # pop() is atomic. After a check of the length, another thread could empty the list.
                warden = self._idle.pop()
            except IndexError:
                return None
            warden.idle_since = 0.0
            if warden.generation == generation:
                return warden
            warden.close()

    def is_busy(self) -> bool:
        """Return whether a command runs or is about to start."""
        return any(warden.pidfd >= 0 and not warden.idle_since for warden in self._known())

    def _known(self) -> list[WardenClient]:
        # Iterating over a WeakSet fails when another thread adds to it.
        with self._lock:
            return list(self._wardens)

    def retire(self, then: Callable[[], object] | None = None) -> None:
        """End the keeper and all its wardens. `then` is called before the next keeper can start."""
        with self._keeper_lock:
            self._drop_keeper()
            self._status = None
            if then is not None:
                then()

    def close(self) -> None:
        """End all commands, all wardens and the keeper, and wait until they are gone."""
        self._closed = True
        with self._keeper_lock:
            self._drop_keeper()

    def _submit(self, request: _Request) -> None:
        self._requests.append(request)
        if self._makers < MAX_MAKERS:
            try:
                start_new_thread(self._serve_requests, ())
            except RuntimeError:
                # The system allows no more threads.
                self._serve_requests()

    def _cancel(self, request: _Request) -> None:
        with self._lock:
            request.is_cancelled = True
            warden, request.warden = request.warden, None
        if warden is not None:
            self.release(warden)

    def _serve_requests(self) -> None:
        with self._lock:
            self._makers += 1
        while (request := self._next_request()) is not None:
            warden = error = None
            try:
                warden = self._pop_idle() or self._make()
            except BaseException as failure:  # noqa: BLE001  raised in the thread that asked
                error = failure
                if isinstance(failure, OSError):
                    error = explained(failure, "a sandbox process cannot be started")
            with self._lock:
                is_cancelled = request.is_cancelled
                if not is_cancelled:
                    request.warden, request.error = warden, error
            try:
                if is_cancelled and warden is not None:
                    self.release(warden)
                request.notify()
            except RuntimeError:
                # The event loop was closed meanwhile.
                self._cancel(request)

    def _next_request(self) -> _Request | None:
        with self._lock:
            while self._requests:
                request = self._requests.popleft()
                if not request.is_cancelled:
                    return request
            self._makers -= 1
            return None

    def lay(self, place: str) -> int:
        """Have the keeper mount a transaction's overlay. Returns the errno of a failure, or 0."""
        with self._keeper_lock:
            keeper = self._started_keeper()
            if keeper.backend == "none" or "mount" in keeper.missing_layers:
                raise ContainmentError(
                    "a transaction needs the layer mount: without it, commands would write to the project itself"
                )
            try:
                return keeper.ask(bytes((protocol.MOUNT_OVERLAY,)) + os.fsencode(place))[0]
            except (OSError, protocol.ProtocolError):
                self._drop_keeper()
                return EIO

    def lift(self, place: str) -> None:
        """Have the keeper unmount a transaction's overlay. The written files stay."""
        with self._keeper_lock:
            if self._keeper is None:
                return
            try:
                self._keeper.ask(bytes((protocol.UNMOUNT_OVERLAY,)) + os.fsencode(place))
            except (OSError, protocol.ProtocolError):
                self._drop_keeper()

    def keeper_pid(self) -> int | None:
        """Return the pid of the keeper, if there is one that is ready: before, it is in the namespaces of the host."""
        keeper = self._keeper
        return None if keeper is None or not keeper.backend else keeper.pid

    def remount(self, paths: Sequence[str]) -> bool:
        """Make paths that were replaced outside read-only again for every running command. Returns false if that is not possible."""
        with self._keeper_lock:
            keeper = self._keeper
            if keeper is None:
                return False
            # New wardens mount what is at the paths now.
            self._close_idle()
            message = bytes((protocol.REMOUNT,)) + b"\0".join(map(os.fsencode, paths))
            for warden in self._known():
                if warden.pidfd < 0:
                    continue
                try:
                    if warden.namespace < 0 or keeper.ask(message, (warden.namespace,))[0]:
                        return False
                except (OSError, ValueError, protocol.ProtocolError):
                    return False
            return True

    def publish(self, port: int, listener: int, lives: int) -> int:
        """Have the keeper forward a listening socket to a port of the sandbox. Returns the errno of a failure, or 0."""
        with self._keeper_lock:
            keeper = self._started_keeper()
            try:
                return keeper.ask(protocol.COUNT.pack(protocol.PUBLISH, port), (listener, lives))[0]
            except (OSError, protocol.ProtocolError):
                self._drop_keeper()
                return EIO

    def _make(self, place: str = "") -> WardenClient:
        """Make a warden for the project, or for the workspace of a transaction."""
        error = ""
        for _ in range(MAX_STARTS):
            with self._keeper_lock:
                keeper = self._started_keeper()
                # Read first: the new warden hides at least the credential files of this generation.
                generation = self._generation() if self._generation is not None else 0
                try:
                    message = b"\0".join(map(os.fsencode, (place, *self._added_masks())))
                    number, descriptors = keeper.ask(bytes((protocol.NEW,)) + message)
                    sock = _warden_socket(descriptors)
                except (OSError, protocol.ProtocolError):
                    # The keeper was killed or stopped from outside; the next iteration starts another one.
                    self._drop_keeper()
                    continue
                if sock is None and self._tries_layers_again():
                    continue
                if sock is None:
                    raise explained(OSError(number, os.strerror(number)), "the keeper could not make a warden")
                warden = WardenClient(sock, number, descriptors[1])
                warden.generation = generation
                with self._lock:
                    self._wardens.add(warden)
            try:
                warden.await_ready()
            except (OSError, protocol.ProtocolError):
                warden.close()
                error = keeper.last_error()
                with self._keeper_lock:
                    self._tries_layers_again()
                continue
            self._check_status(warden)
            return warden
        why = error or "it was killed"
        raise ContainmentError(f"The sandbox process exited during start-up: {why}. Run `corral doctor` for the cause")

    def _check_status(self, warden: WardenClient) -> None:
        """Raise where a warden has other layers than the warden that was admitted, which a new keeper may cause."""
        status = warden.backend, warden.enforcement, warden.missing_layers
        if self._status not in (None, status):
            warden.close()
            self._status = self.admission = None
            raise ContainmentError(
                "the layers that contain commands changed while the sandbox was open, so the command did not run; run it again"
            )
        self._status = status

    def _started_keeper(self) -> KeeperClient:
        if self._closed:
            raise ContainmentError("the sandbox is closed; make a new one")
        if self._keeper is None:
            # Assigned before it starts: a fork meanwhile must close its descriptors.
            self._keeper = KeeperClient()
            try:
                self._keeper.start(self._plan, self._lend, self._probes)
            except BaseException as error:
                self._keeper = None
                if isinstance(error, ContainmentError) and self._tries_layers_again():
                    return self._started_keeper()
                raise
        return self._keeper

    def _tries_layers_again(self) -> bool:
        """Let the next keeper try all layers, if this one got the list of those that hold, and no warden of it ever began.

        The caller holds the keeper's lock.
        """
        probes = self._probes()
        if self._status is not None or probes is None or not probes.forget():
            return False
        self._drop_keeper()
        return True

    def _trim(self, now: float) -> None:
        try:
            oldest = self._idle[0]
            if len(self._idle) <= MAX_IDLE_WARDENS and now - oldest.idle_since < IDLE_SECONDS:
                return
            self._idle.remove(oldest)
        except (IndexError, ValueError):
            # Another thread acquired it meanwhile.
            return
        oldest.close()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for warden in idle:
            warden.close()

    def _drop_keeper(self) -> None:
        self._close_idle()
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def _forget_after_fork(self) -> None:
        self._lock = allocate_lock()
        self._keeper_lock = allocate_lock()
        self._status = None
        self._requests = deque()
        self._makers = 0
        for warden in list(self._wardens):
            warden.forget_after_fork()
            if warden.streams is not None:
                warden.streams.close()
        self._idle = []
        self._wardens = WeakSet()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def __del__(self) -> None:
        self.close()


def _warden_socket(descriptors: tuple[int, ...]) -> socket | None:
    """Return the socket of a new warden, or None if no warden was made. Raise where a keeper sent other descriptors."""
    if not descriptors:
        return None
    try:
        if len(descriptors) != 2:
            raise protocol.ProtocolError("the keeper sent other descriptors than those of a warden")
        return socket(fileno=descriptors[0])
    except (OSError, protocol.ProtocolError):
        protocol.close_all(descriptors)
        raise


def _set(ready: Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


_POOLS: WeakSet[Pool] = WeakSet()


def _forget_after_fork() -> None:
    for pool in list(_POOLS):
        pool._forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)

"""The wardens of one sandbox: taken when idle, made when there is none, replaced when they or their keeper are gone.

They are made by a thread that lives only as long as somebody waits for one: an interrupt of the caller cannot fall into the
middle, and an event loop runs on. A fork of the host has a pool of its own; what it inherited it closes and never speaks to.
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
from corral.model.errors import ContainmentError
from corral.runtime.processes import KeeperClient, WardenClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Sequence


MAX_IDLE_WARDENS = 16  # a burst of runs leaves at most these, about 2 MB each
IDLE_SECONDS = 30.0  # after which an idle warden ends, unless it is the first; what is held of it here then goes too
MAX_STARTS = 3  # of keepers in a row, against one that dies as soon as it starts
MAX_MAKERS = 2  # threads at a time: while one warden confines itself, the keeper can fork the next


class _Order:
    """A warden that somebody waits for, and how to tell them that it is there."""

    __slots__ = ("error", "is_given_up", "tell", "warden")

    def __init__(self, tell: Callable[[], object]) -> None:
        self.tell = tell
        self.warden: WardenClient | None = None
        self.error: BaseException | None = None
        self.is_given_up = False

    def taken(self) -> WardenClient:
        """Return the warden, or raise why there is none."""
        if self.error is not None:
            raise self.error
        warden, self.warden = self.warden, None
        assert warden is not None  # noqa: S101  told only when there is one of the two
        return warden


class Pool:
    """The wardens of one sandbox. Any thread may acquire; each warden runs one command at a time."""

    def __init__(
        self,
        plan: Callable[[], bytes],
        *,
        lend: Callable[[], Sequence[int]] | None = None,
        generation: Callable[[], int] | None = None,
    ) -> None:
        self._plan = plan
        self._generation = generation  # increases when a credential appears that running wardens do not mask
        self._lend = lend  # what a keeper gets besides the plan, for the network by name
        self._lock = allocate_lock()  # for the orders; never held for long
        self._talking = allocate_lock()  # with the keeper, which may take its time
        self._keeper: KeeperClient | None = None
        self._orders: deque[_Order] = deque()
        self._makers = 0
        self._idle: list[WardenClient] = []
        self._wardens: WeakSet[WardenClient] = WeakSet()
        self._closed = False
        _POOLS.add(self)

    def acquire(self) -> WardenClient:
        """Return a warden that is ready: the one used last, whose memory is warm, or a new one."""
        if (warden := self._idle_one()) is not None:
            return warden
        told = allocate_lock()
        told.acquire()
        order = _Order(told.release)
        try:
            self._place(order)
            told.acquire()
            return order.taken()
        except BaseException:
            self._give_up(order)
            raise

    async def acquire_in_loop(self) -> WardenClient:
        """Return a warden that is ready, and let the running event loop run on while one is made."""
        from asyncio import get_running_loop  # noqa: PLC0415  for those who have it loaded already

        if (warden := self._idle_one()) is not None:
            return warden
        loop = get_running_loop()
        ready = loop.create_future()
        order = _Order(lambda: loop.call_soon_threadsafe(_set, ready))
        try:
            self._place(order)
            await ready
            return order.taken()
        except BaseException:
            self._give_up(order)
            raise

    def dispatch(self, warden: WardenClient, message: bytes, descriptors: Sequence[int]) -> WardenClient:
        """Hand a request to a warden and return it; one that died while it was idle is replaced."""
        for _ in range(MAX_IDLE_WARDENS + MAX_STARTS):
            try:
                protocol.send(warden.sock, message, descriptors)
            except (BrokenPipeError, ConnectionResetError):
                warden.close()
            except OSError:
                self.release(warden)
                raise
            except BaseException:
                # It may have the request.
                warden.close()
                raise
            else:
                return warden
            warden = self.acquire()
            warden.make_room()
        warden.close()
        raise ContainmentError("every warden ends before it takes a command")

    def release(self, warden: WardenClient) -> None:
        """Take a warden back that has ended its command."""
        if self._closed:
            warden.close()
            return
        warden.restore_room()
        warden.idle_since = now = monotonic()
        self._idle.append(warden)
        if len(self._idle) > 1:
            self._trim(now)

    def sweep(self, lost: WardenClient) -> tuple[int, int]:
        """End a warden that is lost and what it leaves behind; return how many were killed, and the bounds its group had hit."""
        with self._talking:
            if self._keeper is None:
                return 0, 0
            try:
                killed, _ = self._keeper.ask(protocol.COUNT.pack(protocol.SWEEP, lost.pid))
                hits, _ = self._keeper.ask(protocol.COUNT.pack(protocol.LIMIT_HITS, lost.pid))
            except (OSError, protocol.ProtocolError):
                self._drop_keeper()
                return 0, 0
            return killed, hits

    def _idle_one(self) -> WardenClient | None:
        generation = self._generation() if self._generation is not None else 0
        while True:
            try:
                # Atomic without a lock. Asked for its length first, the list could be empty by then.
                warden = self._idle.pop()
            except IndexError:
                return None
            warden.idle_since = 0.0
            if warden.generation == generation:
                return warden
            warden.close()

    def is_busy(self) -> bool:
        """Say whether a command runs, or is about to."""
        return any(warden.pidfd >= 0 and not warden.idle_since for warden in self._known())

    def _known(self) -> list[WardenClient]:
        # A WeakSet that another thread adds to cannot be iterated.
        with self._lock:
            return list(self._wardens)

    def retire(self, then: Callable[[], object] | None = None) -> None:
        """End the keeper and all below, and do something before the next command starts another."""
        with self._talking:
            self._drop_keeper()
            if then is not None:
                then()

    def close(self) -> None:
        """End all commands, wardens and the keeper, and wait until they are gone."""
        self._closed = True
        with self._talking:
            self._drop_keeper()

    def _place(self, order: _Order) -> None:
        self._orders.append(order)
        if self._makers < MAX_MAKERS:
            try:
                start_new_thread(self._make_what_is_ordered, ())
            except RuntimeError:
                # No more threads are to be had.
                self._make_what_is_ordered()

    def _give_up(self, order: _Order) -> None:
        with self._lock:
            order.is_given_up = True
            warden, order.warden = order.warden, None
        if warden is not None:
            self.release(warden)

    def _make_what_is_ordered(self) -> None:
        with self._lock:
            self._makers += 1
        while (order := self._next_order()) is not None:
            warden = error = None
            try:
                warden = self._idle_one() or self._make()
            except BaseException as failure:  # noqa: BLE001  it is raised where the warden is waited for
                error = failure
            with self._lock:
                is_given_up = order.is_given_up
                if not is_given_up:
                    order.warden, order.error = warden, error
            try:
                if is_given_up and warden is not None:
                    self.release(warden)
                order.tell()
            except RuntimeError:
                # An event loop that was closed meanwhile.
                self._give_up(order)

    def _next_order(self) -> _Order | None:
        with self._lock:
            while self._orders:
                order = self._orders.popleft()
                if not order.is_given_up:
                    return order
            self._makers -= 1
            return None

    def lay(self, place: str) -> int:
        """Have the keeper lay a transaction's overlay; return the error that prevents it, or 0."""
        with self._talking:
            keeper = self._started_keeper()
            if keeper.backend == "none" or "mount" in keeper.missing_layers:
                raise ContainmentError(
                    "a transaction needs the layer mount: without it, commands write the project itself"
                )
            try:
                return keeper.ask(bytes((protocol.MOUNT_OVERLAY,)) + os.fsencode(place))[0]
            except (OSError, protocol.ProtocolError):
                self._drop_keeper()
                return EIO

    def lift(self, place: str) -> None:
        """Have the keeper forget a transaction's overlay. What was written to it stays."""
        with self._talking:
            if self._keeper is None:
                return
            try:
                self._keeper.ask(bytes((protocol.UNMOUNT_OVERLAY,)) + os.fsencode(place))
            except (OSError, protocol.ProtocolError):
                self._drop_keeper()

    def _make(self, place: str = "") -> WardenClient:
        """Make a warden: in a transaction's place, or in the project itself."""
        told = ""
        for _ in range(MAX_STARTS):
            with self._talking:
                keeper = self._started_keeper()
                # Before it is made, so that it hides at least what is there by now.
                generation = self._generation() if self._generation is not None else 0
                try:
                    number, descriptors = keeper.ask(bytes((protocol.NEW,)) + os.fsencode(place))
                except (OSError, protocol.ProtocolError):
                    # The keeper was killed or stopped from outside; the next turn starts another.
                    self._drop_keeper()
                    continue
                if not descriptors:
                    raise ContainmentError(f"a warden could not be made: {os.strerror(number)}")
                warden = WardenClient(socket(fileno=descriptors[0]), number, descriptors[1])
                warden.generation = generation
                with self._lock:
                    self._wardens.add(warden)
            try:
                warden.await_ready()
            except (OSError, protocol.ProtocolError):
                warden.close()
                told = keeper.told()
                continue
            return warden
        raise ContainmentError(f"what runs all commands ends as soon as it starts: {told or 'it was killed'}")

    def _started_keeper(self) -> KeeperClient:
        if self._closed:
            raise ContainmentError("the sandbox is closed; make a new one")
        if self._keeper is None:
            # Known before it starts, so that a fork in the meantime closes what it has.
            self._keeper = KeeperClient()
            try:
                self._keeper.start(self._plan, self._lend)
            except BaseException:
                self._keeper = None
                raise
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
        self._talking = allocate_lock()
        self._orders = deque()
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


def _set(ready: Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


_POOLS: WeakSet[Pool] = WeakSet()


def _forget_after_fork() -> None:
    for pool in list(_POOLS):
        pool._forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)

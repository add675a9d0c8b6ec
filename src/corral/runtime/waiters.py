"""Wakes the threads, coroutines and iterations that wait for one command, and delivers its output to each of them once.

One waiter drives the command at a time. After each turn it wakes the others, which then look at the state again.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident
from _weakref import ref
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType, RLock
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Collection

    from corral.runtime.streams import Chunk

    OnOutput = Callable[[str, bytes], object]


class Waiters:
    """Everything that waits for one command."""

    __slots__ = ("_locks", "_loops", "_queues", "on_output")

    def __init__(self, on_output: OnOutput | None = None) -> None:
        self.on_output = on_output
        self._queues: list[ref[deque[Chunk]]] = []
        self._locks: list[LockType] = []  # one per waiting thread, released to wake it
        self._loops: dict[AbstractEventLoop, LoopWaiters] = {}

    def subscribe(self) -> deque[Chunk]:
        """Return a queue that receives all output from now on, until the caller drops it."""
        queue: deque[Chunk] = deque()
        self._queues.append(ref(queue))
        return queue

    def deliver(self, chunks: list[Chunk]) -> None:
        """Pass output to all queues and to `on_output`."""
        for held in self._queues[:]:
            queue = held()
            if queue is None:
                self._queues.remove(held)
            else:
                queue.extend(chunks)
        for name, data in chunks:
            # Read for each chunk: the callback itself may close the handle, which removes it.
            if self.on_output is not None:
                self.on_output(name, data)

    def wait_for(self, driving: RLock, seconds: float) -> None:
        """Wait until the driving thread has finished a turn, at most `seconds`."""
        lock = allocate_lock()
        lock.acquire()
        self._locks.append(lock)
        if driving.acquire(False):
            # The driver stopped before it could see this thread's lock.
            driving.release()
            self.wake()
            return
        lock.acquire(True, seconds)
        try:
            self._locks.remove(lock)
        except ValueError:
            # `wake` has removed it.
            return

    def wake(self) -> None:
        """Wake all threads and event loops that wait for another thread to drive."""
        while self._locks:
            try:
                self._locks.pop().release()
            except IndexError:
                # Another thread emptied the list meanwhile.
                break
        for waiters in list(self._loops.values()):
            waiters.wake_from_thread()

    def waiters_in_loop(self, loop: AbstractEventLoop) -> LoopWaiters:
        """Return the waiters of one event loop."""
        waiters = self._loops.get(loop)
        if waiters is None:
            waiters = self._loops[loop] = LoopWaiters(loop)
        return waiters


class LoopWaiters:
    """The coroutines of one event loop that wait for one command. They wake together: a loop has one reader per descriptor."""

    __slots__ = ("_loop", "_reading", "_thread", "_waiting", "_writing", "wakeups")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self.wakeups = 0  # how often another thread has called `wake_from_thread`
        self._waiting: list[Future[None]] = []
        # The loop watches duplicates: a driving thread may close the originals at any time.
        self._reading: dict[int, int] = {}
        self._writing: dict[int, int] = {}

    def watch(self, reading: Collection[int], writing: Collection[int]) -> None:
        """Wake when one of these descriptors is ready. The caller holds the driving lock, so they stay open meanwhile."""
        self._change(reading, self._reading, self._loop.add_reader, self._loop.remove_reader)
        self._change(writing, self._writing, self._loop.add_writer, self._loop.remove_writer)

    async def wait(self, seconds: float, wakeups: int) -> None:
        """Wait until a descriptor is ready, `wakeups` is out of date, or `seconds` have passed."""
        ready = self._loop.create_future()
        self._waiting.append(ready)
        if self.wakeups != wakeups:
            self._wake()
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await ready
        finally:
            timer.cancel()
            if ready in self._waiting:
                self._waiting.remove(ready)
            if not self._waiting:
                self.watch((), ())

    def wake_from_thread(self) -> None:
        """Wake all coroutines, called from another thread than the loop's."""
        if get_ident() == self._thread:
            return
        # Counted first: a coroutine that is about to wait compares the count after it has added itself to the list.
        self.wakeups += 1
        if self._waiting:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                # The loop is closed.
                return

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for ready in waiting:
            if not ready.done():
                ready.set_result(None)

    def _change(
        self,
        wanted: Collection[int],
        copies: dict[int, int],
        add: Callable[[int, Callable[[], None]], None],
        remove: Callable[[int], object],
    ) -> None:
        for descriptor in [known for known in copies if known not in wanted]:
            copy = copies.pop(descriptor)
            remove(copy)
            os.close(copy)
        for descriptor in wanted:
            if descriptor not in copies:
                copy = copies[descriptor] = os.dup(descriptor)
                add(copy, self._wake)

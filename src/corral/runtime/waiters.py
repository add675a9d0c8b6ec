"""Those who wait for one command: threads, coroutines, iterations, a callback. What is printed reaches each of them once.

One of them drives at a time; when it has, all look again.
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
    """All who wait for one command."""

    __slots__ = ("_bells", "_crowds", "_queues", "on_output")

    def __init__(self, on_output: OnOutput | None = None) -> None:
        self.on_output = on_output
        self._queues: list[ref[deque[Chunk]]] = []
        self._bells: list[LockType] = []  # of threads that wait while another drives
        self._crowds: dict[AbstractEventLoop, LoopWaiters] = {}

    def subscribe(self) -> deque[Chunk]:
        """Return a queue that gets everything printed from now on, as long as somebody holds it."""
        queue: deque[Chunk] = deque()
        self._queues.append(ref(queue))
        return queue

    def tell(self, chunks: list[Chunk]) -> None:
        """Hand on what was printed."""
        for held in self._queues[:]:
            queue = held()
            if queue is None:
                self._queues.remove(held)
            else:
                queue.extend(chunks)
        for name, data in chunks:
            # Looked at each time: it may be dismissed by itself.
            if self.on_output is not None:
                self.on_output(name, data)

    def wait_for(self, driving: RLock, seconds: float) -> None:
        """Wait until who drives has done something, or for so long."""
        bell = allocate_lock()
        bell.acquire()
        self._bells.append(bell)
        if driving.acquire(False):
            # Let go between the caller's look and the bell.
            driving.release()
            self.ring()
            return
        bell.acquire(True, seconds)
        try:
            self._bells.remove(bell)
        except ValueError:
            # It was rung.
            return

    def ring(self) -> None:
        """Wake all who wait for another to drive."""
        while self._bells:
            try:
                self._bells.pop().release()
            except IndexError:
                # Another thread rings too.
                break
        for crowd in list(self._crowds.values()):
            crowd.call()

    def waiters_in_loop(self, loop: AbstractEventLoop) -> LoopWaiters:
        """Return those who wait in an event loop."""
        crowd = self._crowds.get(loop)
        if crowd is None:
            crowd = self._crowds[loop] = LoopWaiters(loop)
        return crowd


class LoopWaiters:
    """The coroutines of one event loop that wait for one command. They wake together: a loop has one reader a descriptor."""

    __slots__ = ("_copies", "_loop", "_thread", "_waiting", "_writing", "called")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self.called = 0  # how often, by other threads
        self._waiting: list[Future[None]] = []
        # Copies: who drives in another thread may close a descriptor while the loop still watches it.
        self._copies: dict[int, int] = {}
        self._writing: dict[int, int] = {}

    def watch(self, reading: Collection[int], writing: Collection[int]) -> None:
        """Wake when one of these is ready; who calls sees to it that nobody closes them meanwhile."""
        self._change(reading, self._copies, self._loop.add_reader, self._loop.remove_reader)
        self._change(writing, self._writing, self._loop.add_writer, self._loop.remove_writer)

    async def wait(self, seconds: float, called: int) -> None:
        """Wait until something is ready, another thread has driven since `called` was so many, or for so long."""
        ready = self._loop.create_future()
        self._waiting.append(ready)
        if self.called != called:
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

    def call(self) -> None:
        """Wake all, from another thread."""
        if get_ident() == self._thread:
            return
        # First: who is about to wait looks after they are among those who do.
        self.called += 1
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

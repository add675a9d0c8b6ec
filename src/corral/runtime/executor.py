"""Many items through several workers, in order or as they are done. Where the workers are is the executor's business.

At most a window of items is taken and not yet handed out, whatever the source holds and however slow the reader is.
"""

from __future__ import annotations

import os
from _queue import Empty, SimpleQueue
from collections import deque
from importlib import import_module
from threading import Condition, Lock, Thread

from corral.model.errors import CorralError
from corral.runtime.item_source import Fed, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Protocol, Self

    class Worker(Protocol):
        """Does items, one after the other. `cancel` may come from any thread, and ends what runs; `close` comes last.

        `ready` waits until it can work, and comes first; one that is lost with its items raises WorkerLost, and is asked again.
        """

        chunk: int  # how many items it would like at a time; it may change
        most: int  # the most it ever likes

        def do_all(self, items: list[Any]) -> list[Any]: ...
        def cancel(self) -> None: ...
        def close(self) -> None: ...
        def ready(self) -> None: ...

    class Work(Protocol):
        """What is to be done with each item: begun once by every worker. Elsewhere it arrives by pickle.

        Where a worker is lost with its items, those that may be repeated are, and `lost` is the result of the others.
        """

        def begin(self) -> Worker: ...
        def may_repeat(self, item: Any) -> bool: ...
        def lost(self, item: Any, why: str) -> Any: ...

    class Executor(Protocol):
        """Where work is done."""

        def hire(self, work: Work, count: int | None) -> Sequence[Worker]: ...


EXECUTORS = {"local": "corral.runtime.executor:ThreadExecutor", "ray": "corral.integrations.ray:Ray"}
MAX_TRIES = 3  # of an item whose worker is lost each time: it may be the item that does it
# After which the reader looks by itself: to wake it for each of many short items takes a tenth of their time.
LOOK_SECONDS = 0.002
ENOUGH = 8  # results for which it is woken sooner
WINDOW_PER_WORKER = 32  # items; so that one slow item holds up no other worker for a while


class WorkerLost(CorralError):
    """A worker died with the items it had; the message says how."""


def executor_named(engine: str | Executor) -> Executor:
    """Return the executor of a name, or the one that was given."""
    if not isinstance(engine, str):
        return engine
    if engine not in EXECUTORS:
        raise CorralError(f"there is no engine {engine!r}; choose one of {', '.join(EXECUTORS)}")
    module, _, name = EXECUTORS[engine].partition(":")
    # By name, because the core imports no integration.
    made: Executor = getattr(import_module(module), name)()
    return made


class ThreadExecutor:
    """Workers in this process, each in a thread of its own."""

    def hire(self, work: Work, count: int | None) -> list[Worker]:
        """Begin the work as often as asked, or once for each core."""
        return [work.begin() for _ in range(count or len(os.sched_getaffinity(0)))]


class _Raised:
    """Stands where a result would: what prevented it, for the reader."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _source(items: Iterable[object], workers: Sequence[Worker]) -> Source:
    most = max(worker.most for worker in workers)
    return Source(items) if most == 1 else Fed(items, most)


class _Line:
    """What the workers and the reader share."""

    def __init__(self, work: Work, source: Source, window: int, *, ordered: bool) -> None:
        self.work = work
        self.source = source
        self.ordered = ordered
        # A token for each that may be taken: a semaphore of `threading` is Python, and takes ten times as long.
        self.room: SimpleQueue[None] = SimpleQueue()
        self.make_room(window)
        self.taking = Lock()
        self.taken = self.given = 0
        self.is_over = False  # nothing more is taken
        self.done: dict[int, object] = {}
        self.queue: deque[tuple[int, object]] = deque()  # instead of `done`, where the order does not matter
        self.again: deque[tuple[int, object]] = deque()  # what was lost with a worker, and may be repeated
        self.tries: dict[int, int] = {}
        self.bell = Lock()  # released when there may be something for the reader
        self.is_awaited = False  # the reader has looked by itself, and now waits for the next one, however long
        self.bell.acquire()
        self.state = Condition()
        self.busy = self.waiting = 0
        self.is_closed = False
        self.failure: BaseException | None = None

    def make_room(self, count: int) -> None:
        """Let so many more be taken."""
        for _ in range(count):
            self.room.put(None)

    def take(self, most: int) -> tuple[int, list[object]]:
        """Return the next items, with the number of the first; none when there are no more, and none can be lost any more."""
        while True:
            self.room.get()
            first, items = self._take_again() or self._take_new(most)
            with self.state:
                if self.is_closed:
                    return first, []
                if items:
                    self.busy += 1
                    return first, items
                self.waiting += 1
                self.state.wait_for(lambda: self.is_closed or self.again or not self.busy)
                self.waiting -= 1
                if not self.again:
                    return first, []

    def _take_again(self) -> tuple[int, list[object]] | None:
        if not self.again:
            return None
        try:
            first, item = self.again.popleft()
        except IndexError:
            # Another was quicker.
            return None
        return first, [item]

    def _take_new(self, most: int) -> tuple[int, list[object]]:
        """Take from the source; there is room for one."""
        spare = 1
        items: list[object] = []
        with self.taking:
            first = self.taken
            while not self.is_over and len(items) < most and (spare or self._has_another()):
                spare = 0
                try:
                    items.append(self.source.take())
                except StopIteration:
                    self.is_over = True
                    spare = 1
                except BaseException as error:  # noqa: BLE001  the source is the reader's own code, and so is its error
                    self.put(self.taken, [_Raised(error)])
                    self.taken += 1
                    self.is_over = True
                else:
                    self.taken += 1
        if self.is_over:
            self.ring()
        if spare:
            # For the next who waits for room, and must see that it is over.
            self.make_room(1)
        return first, items

    def _has_another(self) -> bool:
        if not self.source.has_ready():
            return False
        try:
            self.room.get_nowait()
        except Empty:
            return False
        return True

    def put(self, first: int, values: list[object]) -> None:
        """Leave results for the reader."""
        if self.ordered:
            self.done.update(enumerate(values, first))
        else:
            self.queue.extend(enumerate(values, first))
        if self.ordered and self.given not in self.done:
            return
        if self.is_awaited or self.is_over or len(self.done) + len(self.queue) >= ENOUGH:
            self.ring()

    def get(self) -> tuple[int, object] | None:
        """Return what the reader is to have next, if it is there."""
        number = self.given
        if not self.ordered:
            if not self.queue:
                return None
            number, value = self.queue.popleft()
        elif number in self.done:
            value = self.done.pop(number)
        else:
            return None
        self.given += 1
        self.room.put(None)
        return number, value

    def step(self, worker: Worker) -> bool:
        """Let a worker do the next items; false when there are none. What it raises is left for the reader."""
        first, items = self.take(worker.chunk)
        if not items:
            return False
        is_lost = False
        try:
            self.put(first, worker.do_all(items))
        except WorkerLost as error:
            is_lost = True
            self._give_back(first, items, str(error))
        except BaseException as error:  # noqa: BLE001  as above
            self.is_over = True
            self.put(first, [_Raised(error)])
        finally:
            with self.state:
                self.busy -= 1
                if self.waiting or self.is_closed:
                    self.state.notify_all()
        if is_lost and not self.is_closed:
            # Without items: whoever has room meanwhile does them.
            worker.ready()
        return True

    def _give_back(self, first: int, items: list[object], why: str) -> None:
        for number, item in enumerate(items, first):
            self.tries[number] = self.tries.get(number, 0) + 1
            if self.tries[number] < MAX_TRIES and self.work.may_repeat(item):
                self.again.append((number, item))
                # It has its room already: this is for somebody to come and take it.
                self.make_room(1)
            else:
                self.put(number, [self.work.lost(item, why)])

    def ring(self) -> None:
        """Wake the reader."""
        try:
            self.bell.release()
        except RuntimeError:
            # It rings already.
            return


def stream_results(
    work: Work, workers: Sequence[Worker], items: Iterable[object], *, ordered: bool = True
) -> ResultStream:
    """Return the results of all items, as an iterator that ends what runs when it is closed."""
    return (
        SequentialResults(work, workers[0], items)
        if len(workers) == 1
        else ThreadedResults(work, workers, items, ordered=ordered)
    )


class ResultStream:
    """The results, each with the number of its item. One that nobody holds closes itself."""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        raise NotImplementedError

    def close(self) -> None:
        """End everything that runs, and wait until it is gone; what was not handed out is lost."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class SequentialResults(ResultStream):
    """One worker, in the reader's own thread, whenever the reader wants more: two threads would only take turns."""

    def __init__(self, work: Work, worker: Worker, items: Iterable[object]) -> None:
        self._work = work
        self._worker: Worker | None = worker
        self._source = _source(items, [worker])
        self._ready: deque[object] = deque()
        self._given = -1

    def __next__(self) -> tuple[int, Any]:
        if not self._ready:
            if self._worker is None:
                raise StopIteration
            try:
                if self._given < 0:
                    self._worker.ready()
                self._ready.extend(self._do(self._worker, self._take(self._worker.chunk)))
            except BaseException:
                self.close()
                raise
        self._given += 1
        return self._given, self._ready.popleft()

    def _do(self, worker: Worker, items: list[object]) -> list[object]:
        try:
            return worker.do_all(items)
        except WorkerLost as error:
            why = str(error)
        results = [result for item in items for result in self._do_again(worker, item, why)]
        worker.ready()
        return results

    def _do_again(self, worker: Worker, item: object, why: str) -> list[object]:
        for _ in range(MAX_TRIES - 1 if self._work.may_repeat(item) else 0):
            worker.ready()
            try:
                return worker.do_all([item])
            except WorkerLost as error:
                why = str(error)
        return [self._work.lost(item, why)]

    def _take(self, most: int) -> list[object]:
        items = [self._source.take()]
        while len(items) < most and self._source.has_ready():
            items.append(self._source.take())
        return items

    def close(self) -> None:
        """Let the worker go. Nothing runs while the reader does something else."""
        worker, self._worker = self._worker, None
        self._source.close()
        self._ready.clear()
        if worker is not None:
            worker.cancel()
            worker.close()


class ThreadedResults(ResultStream):
    """Several workers, each in a thread of its own. The items are taken by these threads, one at a time."""

    def __init__(self, work: Work, workers: Sequence[Worker], items: Iterable[object], *, ordered: bool = True) -> None:
        self._workers = workers
        self._line = _Line(work, _source(items, workers), len(workers) * WINDOW_PER_WORKER, ordered=ordered)
        for worker in workers:
            Thread(target=_work, args=(self._line, worker), name="corral-worker", daemon=True).start()

    def __next__(self) -> tuple[int, Any]:
        try:
            number, value = self._next()
            if isinstance(value, _Raised):
                raise value.error
        except BaseException:
            self.close()
            raise
        return number, value

    def _next(self) -> tuple[int, object]:
        line = self._line
        while not line.is_closed:
            if line.failure is not None:
                raise line.failure
            is_over = line.is_over
            ready = line.get()
            if ready is not None:
                return ready
            if is_over and line.given == line.taken:
                break
            if line.is_awaited:
                line.bell.acquire()
                line.is_awaited = False
            else:
                # Said first, and looked again then: what is left meanwhile is seen, or rung for.
                line.is_awaited = not line.bell.acquire(timeout=LOOK_SECONDS)
        raise StopIteration

    def close(self) -> None:
        """End everything that runs, and wait until it is gone; what was not handed out is lost."""
        line = self._line
        with line.state:
            if line.is_closed:
                return
            line.is_closed = line.is_over = True
            line.state.notify_all()
        line.source.close()
        for worker in self._workers:
            worker.cancel()
        line.make_room(len(self._workers))
        with line.state:
            # Not for those who wait for the source: nobody can interrupt it, and they do nothing once it gives something.
            while line.busy:
                line.state.wait()
        for worker in self._workers:
            worker.close()


def _work(line: _Line, worker: Worker) -> None:
    try:
        worker.ready()
        while line.step(worker):
            pass
    except BaseException as error:  # noqa: BLE001  one that cannot work at all; the reader hears of it at once
        line.failure = error
        line.ring()

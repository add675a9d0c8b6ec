"""Passes many items through several workers and yields the results, in order or as they are done. An executor places the workers.

The number of items that were taken and not yet returned is bounded, whatever the size of the source and the speed of the reader.
"""

from __future__ import annotations

import os
from _queue import Empty, SimpleQueue
from collections import deque
from importlib import import_module
from threading import Condition, Lock, Thread

from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Protocol, Self

    class Worker(Protocol):
        """Processes items. `ready` is called first and waits until the worker can work. `close` is called last.

        Any thread may call `cancel`, which ends the running item. A worker that dies raises WorkerLost; `ready` then replaces it.
        """

        chunk: int  # preferred number of items per call; may change
        most: int  # upper bound of `chunk`

        def do_all(self, items: list[Any]) -> list[Any]: ...
        def cancel(self) -> None: ...
        def close(self) -> None: ...
        def ready(self) -> None: ...

    class Work(Protocol):
        """Creates workers. It is pickled to run on another machine.

        When a worker dies, items for which `may_repeat` is true are repeated. `lost` returns the result of the others.
        """

        def begin(self) -> Worker: ...
        def may_repeat(self, item: Any) -> bool: ...
        def lost(self, item: Any, why: str) -> Any: ...

    class Executor(Protocol):
        """Creates workers in threads, in processes or on other machines."""

        def hire(self, work: Work, count: int | None) -> Sequence[Worker]: ...


EXECUTORS = {"local": "corral.runtime.executor:ThreadExecutor", "ray": "corral.integrations.ray:Ray"}
MAX_TRIES = 3  # of an item whose worker dies each time: the item may be the cause
# The reader polls at this interval: waking it for each of many short items would take a tenth of their time.
LOOK_SECONDS = 0.002
ENOUGH = 8  # results that wake the reader at once
WINDOW_PER_WORKER = 32  # items in flight, so that one slow item does not soon block the other workers


class WorkerLost(CorralError):
    """A worker died with its items. The message says how."""


def executor_named(engine: str | Executor) -> Executor:
    """Return the executor with this name. An executor is returned as it is."""
    if not isinstance(engine, str):
        return engine
    if engine not in EXECUTORS:
        raise CorralError(f"there is no engine {engine!r}; choose one of {', '.join(EXECUTORS)}")
    module, _, name = EXECUTORS[engine].partition(":")
    # By name: the core imports no integration.
    made: Executor = getattr(import_module(module), name)()
    return made


class ThreadExecutor:
    """Runs each worker in a thread of this process."""

    def hire(self, work: Work, count: int | None) -> list[Worker]:
        """Create `count` workers, or one for each core."""
        return [work.begin() for _ in range(count or len(os.sched_getaffinity(0)))]


class _Raised:
    """An exception in place of a result. The reader raises it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Source:
    """Items of an iterator, taken one at a time."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = iter(items)

    def take(self) -> object:
        """Return the next item; StopIteration after the last."""
        return next(self._items)

    def has_ready(self) -> bool:
        """Return whether an item can be taken without waiting. A plain iterator cannot tell."""
        return False

    def close(self) -> None:
        """Stop reading the iterator."""


class _PrefetchingSource(_Source):
    """A source whose thread reads a few items ahead, so that a worker can take all items that are ready.

    No result waits for the next item of a slow iterator.
    """

    def __init__(self, items: Iterable[object], most: int) -> None:
        super().__init__(items)
        self._most = most
        self._ready: deque[object] = deque()
        self._state = Condition()
        self._end: BaseException | None = None
        self._is_closed = False
        Thread(target=self._feed, name="corral-source", daemon=True).start()

    def _feed(self) -> None:
        end: BaseException | None = None
        while end is None and not self._is_closed:
            try:
                item = next(self._items)
            except BaseException as error:  # noqa: BLE001  the caller's source raised it, so the reader gets it
                end = error
            with self._state:
                if end is None:
                    self._state.wait_for(lambda: self._is_closed or len(self._ready) < self._most)
                    self._ready.append(item)
                self._end = end
                self._state.notify_all()

    def take(self) -> object:
        """Return the next item. After the last one, raises the exception that ended the iterator."""
        with self._state:
            self._state.wait_for(lambda: self._ready or self._end is not None or self._is_closed)
            if self._ready:
                self._state.notify_all()
                return self._ready.popleft()
        raise StopIteration if self._end is None else self._end

    def has_ready(self) -> bool:
        """Return whether an item can be taken without waiting."""
        return bool(self._ready)

    def close(self) -> None:
        """Stop reading the iterator after the item that it is waiting for."""
        with self._state:
            self._is_closed = True
            self._ready.clear()
            self._state.notify_all()


def _source(items: Iterable[object], workers: Sequence[Worker]) -> _Source:
    most = max(worker.most for worker in workers)
    return _Source(items) if most == 1 else _PrefetchingSource(items, most)


class _Queues:
    """State that the workers and the reader share."""

    def __init__(self, work: Work, source: _Source, window: int, *, ordered: bool) -> None:
        self.work = work
        self.source = source
        self.ordered = ordered
        # One token per item that may be taken. threading.Semaphore is written in Python and takes ten times as long.
        self.room: SimpleQueue[None] = SimpleQueue()
        self.make_room(window)
        self.taking = Lock()
        self.taken = self.given = 0
        self.is_over = False  # no more items are taken
        self.done: dict[int, object] = {}
        self.queue: deque[tuple[int, object]] = deque()  # used instead of `done` when the order does not matter
        self.again: deque[tuple[int, object]] = deque()  # items to repeat, because their worker died
        self.tries: dict[int, int] = {}
        self.reader_lock = Lock()  # released to wake the reader
        self.is_awaited = False  # the reader waits without a timeout and must be woken
        self.reader_lock.acquire()
        self.state = Condition()
        self.busy = self.waiting = 0
        self.is_closed = False
        self.failure: BaseException | None = None

    def make_room(self, count: int) -> None:
        """Allow `count` more items to be taken."""
        for _ in range(count):
            self.room.put(None)

    def take(self, most: int) -> tuple[int, list[object]]:
        """Return the number of the first of the next items, and the items. No items means that the work is done."""
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
            # Another thread took it.
            return None
        return first, [item]

    def _take_new(self, most: int) -> tuple[int, list[object]]:
        """Take items from the source. The caller holds one token."""
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
                except BaseException as error:  # noqa: BLE001  the caller's source raised it, so the reader gets it
                    self.put(self.taken, [_Raised(error)])
                    self.taken += 1
                    self.is_over = True
                else:
                    self.taken += 1
        if self.is_over:
            self.wake_reader()
        if spare:
            # The next thread that waits for a token must see that the source is exhausted.
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
        """Store results for the reader."""
        if self.ordered:
            self.done.update(enumerate(values, first))
        else:
            self.queue.extend(enumerate(values, first))
        if self.ordered and self.given not in self.done:
            return
        if self.is_awaited or self.is_over or len(self.done) + len(self.queue) >= ENOUGH:
            self.wake_reader()

    def get(self) -> tuple[int, object] | None:
        """Return the next result for the reader, or None."""
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
        """Process the next items with a worker. Returns false when there are none. The reader gets the worker's exceptions."""
        first, items = self.take(worker.chunk)
        if not items:
            return False
        is_lost = False
        try:
            self.put(first, worker.do_all(items))
        except WorkerLost as error:
            is_lost = True
            self._give_back(first, items, str(error))
        except BaseException as error:  # noqa: BLE001  the reader raises it
            self.is_over = True
            self.put(first, [_Raised(error)])
        finally:
            with self.state:
                self.busy -= 1
                if self.waiting or self.is_closed:
                    self.state.notify_all()
        if is_lost and not self.is_closed:
            # The worker holds no items now: other workers may repeat them meanwhile.
            worker.ready()
        return True

    def _give_back(self, first: int, items: list[object], why: str) -> None:
        for number, item in enumerate(items, first):
            self.tries[number] = self.tries.get(number, 0) + 1
            if self.tries[number] < MAX_TRIES and self.work.may_repeat(item):
                self.again.append((number, item))
                # The item has its token already. This one makes a worker take it.
                self.make_room(1)
            else:
                self.put(number, [self.work.lost(item, why)])

    def wake_reader(self) -> None:
        """Wake the reader."""
        try:
            self.reader_lock.release()
        except RuntimeError:
            # It was woken already.
            return


def stream_results(
    work: Work, workers: Sequence[Worker], items: Iterable[object], *, ordered: bool = True
) -> ResultStream:
    """Return an iterator over the results of all items. Closing it ends the running items."""
    return (
        SequentialResults(work, workers[0], items)
        if len(workers) == 1
        else ThreadedResults(work, workers, items, ordered=ordered)
    )


class ResultStream:
    """Iterates over results, each with the number of its item. Dropping it closes it."""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        raise NotImplementedError

    def close(self) -> None:
        """End all running items and wait until they are gone. Their results are lost."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class SequentialResults(ResultStream):
    """Uses one worker in the reader's own thread: with two threads, one would always wait for the other."""

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
        """Close the worker. Nothing runs between two calls of `next`."""
        worker, self._worker = self._worker, None
        self._source.close()
        self._ready.clear()
        if worker is not None:
            worker.cancel()
            worker.close()


class ThreadedResults(ResultStream):
    """Uses several workers, each in its own thread. These threads take the items from the source."""

    def __init__(self, work: Work, workers: Sequence[Worker], items: Iterable[object], *, ordered: bool = True) -> None:
        self._workers = workers
        self._queues = _Queues(work, _source(items, workers), len(workers) * WINDOW_PER_WORKER, ordered=ordered)
        for worker in workers:
            Thread(target=_run_worker, args=(self._queues, worker), name="corral-worker", daemon=True).start()

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
        queues = self._queues
        while not queues.is_closed:
            if queues.failure is not None:
                raise queues.failure
            is_over = queues.is_over
            ready = queues.get()
            if ready is not None:
                return ready
            if is_over and queues.given == queues.taken:
                break
            if queues.is_awaited:
                queues.reader_lock.acquire()
                queues.is_awaited = False
            else:
                # Set first, then checked again: a result that arrives meanwhile is seen or wakes the reader.
                queues.is_awaited = not queues.reader_lock.acquire(timeout=LOOK_SECONDS)
        raise StopIteration

    def close(self) -> None:
        """End all running items and wait until they are gone. Their results are lost."""
        queues = self._queues
        with queues.state:
            if queues.is_closed:
                return
            queues.is_closed = queues.is_over = True
            queues.state.notify_all()
        queues.source.close()
        for worker in self._workers:
            worker.cancel()
        queues.make_room(len(self._workers))
        with queues.state:
            # Threads that wait for the source are not counted: the source cannot be interrupted, and they discard its item.
            while queues.busy:
                queues.state.wait()
        for worker in self._workers:
            worker.close()


def _run_worker(queues: _Queues, worker: Worker) -> None:
    try:
        worker.ready()
        while queues.step(worker):
            pass
    except BaseException as error:  # noqa: BLE001  the worker cannot work at all; the reader raises the error
        queues.failure = error
        queues.wake_reader()

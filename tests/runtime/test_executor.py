"""Items pass through several workers: order, bounds, cancellation and errors."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from observe import eventually

from corral.model.errors import CorralError
from corral.runtime.executor import (
    WINDOW_PER_WORKER,
    ThreadExecutor,
    WorkerLost,
    _PrefetchingSource,
    executor_named,
    stream_results,
)


class Worker:
    """A worker that calls each item when it is allowed to, and counts them."""

    def __init__(self, chunk: int = 1) -> None:
        self.chunk = self.most = chunk
        self.done: list[Any] = []
        self.cancelled = threading.Event()
        self.closed = self.readied = 0

    def do_all(self, items: list[Any]) -> list[Any]:
        self.done += items
        return [item(self) if callable(item) else item for item in items]

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed += 1

    def ready(self) -> None:
        self.readied += 1


class Work:
    """Work whose items may be repeated unless they forbid it."""

    def begin(self) -> Worker:
        return Worker()

    def may_repeat(self, item: Any) -> bool:
        return not getattr(item, "once", False)

    def lost(self, item: Any, why: str) -> str:
        return f"lost: {why}"


@pytest.mark.parametrize("count", [1, 2, 5], ids=lambda count: f"{count} workers")
@pytest.mark.parametrize("chunk", [1, 7], ids=lambda chunk: f"chunks of {chunk}")
@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "as done"])
def test_every_item_is_processed_once_and_numbered(count: int, chunk: int, ordered: bool) -> None:
    workers = [Worker(chunk) for _ in range(count)]
    results = list(stream_results(Work(), workers, (f"item {n}" for n in range(500)), ordered=ordered))
    assert sorted(results) == [(n, f"item {n}") for n in range(500)]
    assert not ordered or results == sorted(results)
    assert sorted(item for worker in workers for item in worker.done) == sorted(f"item {n}" for n in range(500))
    assert [worker.closed for worker in workers] == [1] * count


def test_no_items_give_no_results() -> None:
    assert list(stream_results(Work(), [Worker(), Worker()], ())) == []
    assert list(stream_results(Work(), [Worker()], ())) == []


def test_unordered_stream_yields_the_first_to_finish() -> None:
    gate = threading.Event()
    items = [lambda _: gate.wait(20), lambda _: "quick"]
    results = stream_results(Work(), [Worker(), Worker()], items, ordered=False)
    assert next(results) == (1, "quick")
    gate.set()
    assert next(results) == (0, True)


def test_number_of_items_in_flight_is_bounded() -> None:
    taken: list[int] = []
    gate = threading.Event()

    def source() -> Iterator[Any]:
        yield lambda _: gate.wait(20)
        for number in range(1000):
            taken.append(number)
            yield number

    workers = [Worker(), Worker()]
    room = len(workers) * WINDOW_PER_WORKER
    results = stream_results(Work(), workers, source())
    eventually(lambda: len(taken) == room - 1)
    gate.set()
    assert next(results) == (0, True)
    eventually(lambda: len(taken) == room)
    assert [value for _, value in results] == list(range(1000))


def test_closing_cancels_running_items_and_waits() -> None:
    worker, other = Worker(), Worker()
    results = stream_results(Work(), [worker, other], [lambda self: self.cancelled.wait(20)] * 10)
    eventually(lambda: len(worker.done) == len(other.done) == 1)
    results.close()
    assert (len(worker.done), len(other.done), worker.closed, other.closed) == (1, 1, 1, 1)
    assert list(results) == []


def test_dropped_stream_closes_itself() -> None:
    worker, other = Worker(), Worker()
    results = stream_results(Work(), [worker, other], [lambda self: self.cancelled.wait(20)] * 10)
    eventually(lambda: len(worker.done) == len(other.done) == 1)
    del results
    gc.collect()
    assert (worker.closed, other.closed) == (1, 1)


def test_closing_does_not_wait_for_a_blocked_source() -> None:
    gate = threading.Event()

    def source() -> Iterator[Any]:
        yield "first"
        gate.wait(20)
        yield "late"

    worker, other = Worker(), Worker()
    results = stream_results(Work(), [worker, other], source())
    assert next(results) == (0, "first")
    results.close()
    gate.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "corral-worker"])
    assert worker.done + other.done == ["first"]


@pytest.mark.parametrize("count", [1, 3], ids=lambda count: f"{count} workers")
@pytest.mark.parametrize("chunk", [1, 4], ids=lambda chunk: f"chunks of {chunk}")
def test_results_before_a_source_error_are_returned(count: int, chunk: int) -> None:
    def source() -> Iterator[int]:
        yield from range(30)
        raise LookupError("the source broke")

    workers = [Worker(chunk) for _ in range(count)]
    results = stream_results(Work(), workers, source())
    assert [value for _, value in (next(results) for _ in range(30))] == list(range(30))
    with pytest.raises(LookupError, match="the source broke"):
        next(results)
    assert list(results) == []
    assert [worker.closed for worker in workers] == [1] * count


@pytest.mark.parametrize("count", [1, 3], ids=lambda count: f"{count} workers")
def test_worker_exception_is_raised_at_its_position(count: int) -> None:
    def fall(_: Worker) -> None:
        raise CorralError("it fell")

    results = stream_results(Work(), [Worker() for _ in range(count)], [1, 2, fall, 3])
    assert [next(results), next(results)] == [(0, 1), (1, 2)]
    with pytest.raises(CorralError, match="it fell"):
        next(results)
    assert list(results) == []


def test_engine_is_found_by_name() -> None:
    assert isinstance(executor_named("local"), ThreadExecutor)
    mine = ThreadExecutor()
    assert executor_named(mine) is mine
    with pytest.raises(CorralError, match="there is no engine 'fog'; choose one of local"):
        executor_named("fog")


@pytest.mark.parametrize("count", [1, 2, 3], ids=lambda count: f"{count} workers")
@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "as done"])
@pytest.mark.parametrize("chunk", [1, 5], ids=lambda chunk: f"chunks of {chunk}")
def test_items_of_a_dead_worker_are_repeated_and_no_others(count: int, ordered: bool, chunk: int) -> None:
    fallen = threading.Lock()

    def fall_once(worker: Worker) -> str:
        if fallen.acquire(blocking=False):
            raise WorkerLost("its node died")
        return "done after all"

    items: list[Any] = [*range(40), fall_once, *range(41, 80)]
    workers = [Worker(chunk) for _ in range(count)]
    results = sorted(stream_results(Work(), workers, items, ordered=ordered), key=lambda pair: pair[0])
    assert results == [(n, "done after all" if n == 40 else n) for n in range(80)]
    assert sum(worker.readied for worker in workers) > count


@pytest.mark.parametrize("count", [1, 3], ids=lambda count: f"{count} workers")
def test_unrepeatable_items_of_a_dead_worker_give_lost_results(count: int) -> None:
    tried: list[str] = []

    def always(_: Worker) -> None:
        tried.append("always")
        raise WorkerLost("it fell")

    def once(_: Worker) -> None:
        tried.append("once")
        raise WorkerLost("it fell")

    once.once = True  # type: ignore[attr-defined]
    results = list(stream_results(Work(), [Worker() for _ in range(count)], [1, always, once, 2]))
    assert results == [(0, 1), (1, "lost: it fell"), (2, "lost: it fell"), (3, 2)]
    assert (tried.count("always"), tried.count("once")) == (3, 1)


def test_hanging_worker_does_not_block_the_others() -> None:
    class Gone(Worker):
        def do_all(self, items: list[Any]) -> list[Any]:
            self.done += items
            raise WorkerLost("its node died")

        def ready(self) -> None:
            if self.done:
                self.cancelled.wait(20)

    gone, other = Gone(4), Worker()
    # More items than the window: the reader waits for the first lost item.
    results = list(stream_results(Work(), [gone, other], range(500)))
    assert results == [(n, n) for n in range(500)]
    assert (gone.closed, other.closed) == (1, 1)


@pytest.mark.parametrize("count", [1, 3], ids=lambda count: f"{count} workers")
def test_broken_worker_is_reported_at_once(count: int) -> None:
    class Unfit(Worker):
        def ready(self) -> None:
            raise CorralError("no room")

    workers = [Unfit(), *(Worker() for _ in range(count - 1))]
    gate = threading.Event()
    with pytest.raises(CorralError, match="no room"):
        list(stream_results(Work(), workers, [lambda self: self.cancelled.wait(20) or gate.is_set()] * 5))
    assert [worker.closed for worker in workers] == [1] * count


@pytest.mark.parametrize("count", [1, 3], ids=lambda count: f"{count} workers")
def test_result_does_not_wait_for_the_next_item(count: int) -> None:
    gate = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for number in range(100):
            gate.acquire()
            yield number

    with stream_results(Work(), [Worker(8) for _ in range(count)], items()) as results:
        for number in range(10):
            gate.release()
            assert next(results) == (number, number)
        gate.release(90)
        assert [number for number, _ in results] == [*range(10, 100)]


def test_prefetching_source_reads_a_bounded_number_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    source = _PrefetchingSource(items(), 8)
    eventually(lambda: len(taken) == 9)
    assert [source.take() for _ in range(1000)] == [*range(1000)]
    with pytest.raises(StopIteration):
        source.take()

"""Measures calls per second of `Sandbox.map`, locally and on Ray, beside a thread pool with `subprocess.run` and as many workers."""

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Semaphore
from typing import Self

from bench import _ray
from bench._place import make_project, workplace
from bench._rows import Goal, Row, Section, at_least
from bench._turns import Options, Timing, in_turns
from corral import Sandbox, SandboxConfig

AS_USER = True
COMMAND = ["/bin/true"]
WORKERS = (1, 2, 4)
CALLS = 60  # calls in one turn


def measure(options: Options) -> Section:
    """Return calls per second."""
    rounds = max(options.rounds // 6, 1)
    notes = [f"{' '.join(COMMAND)}, {rounds} turns of {CALLS} calls each; more than 1x is faster than bare"]
    with workplace() as folder:
        project = make_project(folder / "project")
        with Sandbox(SandboxConfig(project)) as box:
            rows = [_row(box, workers, rounds, "local") for workers in WORKERS]
            with ExitStack() as stack:
                try:
                    stack.enter_context(_ray.cluster(nodes=1, room=max(WORKERS)))
                    rows += [_row(box, workers, rounds, "ray") for workers in WORKERS]
                except _ray.Missing as why:
                    notes.append(str(why))
    return Section("many calls, calls a second", tuple(rows), tuple(notes))


def _row(box: Sandbox, workers: int, rounds: int, engine: str) -> Row:
    with ThreadPoolExecutor(workers) as pool, ExitStack() as stack:
        goal = None
        ours: Callable[[], None] = partial(_mapped, box, workers)
        if engine == "local":
            goal = at_least(0.9)
        else:
            ours = stack.enter_context(Feed(box, workers, engine)).turn
        times = in_turns({"ours": ours, "bare": partial(_pooled, pool)}, rounds)
    return _compared(f"{workers} worker{'s' * (workers > 1)}, {engine}", times, goal)


def _mapped(box: Sandbox, workers: int) -> None:
    if sum(result.ok for result in box.map([COMMAND] * CALLS, workers=workers)) != CALLS:
        raise RuntimeError("a call failed")


def _compared(what: str, times: dict[str, Timing], goal: Goal | None) -> Row:
    (ours, quiet), (bare, bare_quiet) = _speeds(times["ours"]), _speeds(times["bare"])
    return Row(what, ours, "calls/s", bare, times["ours"].spread, goal, quiet / bare_quiet)


def _speeds(time: Timing) -> tuple[float, float]:
    return CALLS / time.ms * 1000, CALLS / time.quiet_ms * 1000


class Feed:
    """One `map` over calls that arrive in turns, so that a turn does not include the start of the cluster."""

    def __init__(self, box: Sandbox, workers: int, engine: str) -> None:
        self._gate = Semaphore(0)
        self._results = box.map(self._calls(), workers=workers, engine=engine)

    def _calls(self) -> Iterator[list[str]]:
        while True:
            self._gate.acquire()
            yield COMMAND

    def turn(self) -> None:
        """Run the calls of one turn."""
        self._gate.release(CALLS)
        if sum(next(self._results).ok for _ in range(CALLS)) != CALLS:
            raise RuntimeError("a call failed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._results.close()
        # Wake the threads that wait for the next call.
        self._gate.release(len(WORKERS) * CALLS)


def _pooled(pool: ThreadPoolExecutor) -> None:
    list(pool.map(_bare, range(CALLS)))


def _bare(_: int) -> None:
    subprocess.run(COMMAND, capture_output=True, check=True)

"""Calls a second through `Sandbox.map`, by so many workers, next to a bare thread pool of as many with `subprocess.run`."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench._place import make_project, workplace
from bench._rows import Row, Section, at_least
from bench._turns import Options, Timing, in_turns
from corral import Sandbox, SandboxConfig

AS_USER = True
COMMAND = ["/bin/true"]
WORKERS = (1, 2, 4)
CALLS = 60  # in one turn


def measure(options: Options) -> Section:
    """Return calls a second."""
    rounds = max(options.rounds // 6, 1)
    with workplace() as folder:
        project = make_project(folder / "project")
        with Sandbox(SandboxConfig(project)) as box:
            rows = [_row(box, workers, rounds) for workers in WORKERS]
    notes = (f"{' '.join(COMMAND)}, {rounds} turns of {CALLS} calls each; more than 1x is faster than bare",)
    return Section("many calls, calls a second", tuple(rows), notes)


def _row(box: Sandbox, workers: int, rounds: int) -> Row:
    with ThreadPoolExecutor(workers) as pool:
        bare = partial(_pooled, pool)
        times = in_turns({"ours": partial(_mapped, box, workers), "bare": bare}, rounds)
    our, their = _speeds(times["ours"]), _speeds(times["bare"])
    return Row(
        f"{workers} worker{'s' * (workers > 1)}",
        our[0],
        "calls/s",
        their[0],
        times["ours"].spread,
        at_least(0.9),
        our[1] / their[1],
    )


def _speeds(time: Timing) -> tuple[float, float]:
    return CALLS / time.ms * 1000, CALLS / time.quiet_ms * 1000


def _mapped(box: Sandbox, workers: int) -> None:
    if sum(result.ok for result in box.map([COMMAND] * CALLS, workers=workers)) != CALLS:
        raise RuntimeError("a call failed")


def _pooled(pool: ThreadPoolExecutor) -> None:
    list(pool.map(_bare, range(CALLS)))


def _bare(_: int) -> None:
    subprocess.run(COMMAND, capture_output=True, check=True)

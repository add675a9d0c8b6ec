"""Measures calls per second with two commands at a time in each sandbox, beside two threads with `subprocess.run`."""

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from time import monotonic

from bench._field import field
from bench._peers import Missing
from bench._place import make_project, workplace
from bench._rows import Row, Section
from bench._running import Running
from bench._turns import ROUNDS, Options
from corral import Sandbox, SandboxConfig

AS_USER = False
AT_A_TIME = 2
SECONDS = 6.0  # for each candidate, at 300 rounds
TURNS = 3
WHAT = "two at a time"
BARE = "subprocess.run"
COMMAND = ["/bin/true"]
Way = Callable[[], object]


def measure(options: Options) -> Section:
    """Return calls per second."""
    seconds = SECONDS * min(options.rounds, ROUNDS) / ROUNDS / TURNS
    notes = [f"{' '.join(COMMAND)}, {AT_A_TIME} threads; the best of {TURNS} turns of {seconds:.1f} s; more is better"]
    with workplace() as folder, ExitStack() as stack:
        project = make_project(folder / "project")
        box = stack.enter_context(Sandbox(SandboxConfig(project)))
        bare = partial(subprocess.run, COMMAND, capture_output=True, check=True, cwd=project)
        sides: dict[str, list[Way]] = {BARE: [bare] * AT_A_TIME, "corral": [partial(box.run, COMMAND)] * AT_A_TIME}
        for peer in stack.enter_context(field(folder, options.peers, notes)):
            sides[peer.name] = _ways(peer, stack)
        speeds = _speeds(sides, seconds, notes)
    unit = speeds[BARE]
    rows = [Row(f"{WHAT}: {name}", speed, "calls/s", None if name == BARE else unit) for name, speed in speeds.items()]
    return Section(f"{WHAT}, calls a second", tuple(rows), tuple(notes))


def _ways(peer: Running, stack: ExitStack) -> list[Way]:
    """Return the candidates. A library gets a process for each thread, because a worker runs one command at a time."""
    if peer.peer.command is not None:
        return [partial(peer.run, COMMAND)] * AT_A_TIME
    workers = [peer.worker() for _ in range(AT_A_TIME)]
    for worker in workers:
        stack.callback(worker.close)
    return [partial(worker.ask, COMMAND) for worker in workers]


def _speeds(sides: dict[str, list[Way]], seconds: float, notes: list[str]) -> dict[str, float]:
    speeds = dict.fromkeys(sides, 0.0)
    for _ in range(TURNS):
        for name in [*speeds]:
            try:
                speeds[name] = max(speeds[name], _speed(sides[name], seconds))
            except (Missing, OSError) as why:
                notes.append(f"{name} is not compared: {why}")
                del speeds[name]
    return speeds


def _speed(ways: list[Way], seconds: float) -> float:
    begun = monotonic()
    with ThreadPoolExecutor(len(ways)) as pool:
        done = sum(pool.map(partial(_repeated, begun + seconds), ways))
    return done / (monotonic() - begun)


def _repeated(deadline: float, way: Way) -> int:
    done = 0
    while not done or monotonic() < deadline:
        way()
        done += 1
    return done

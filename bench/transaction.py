"""Measures a command in its own transaction, which is begun before and discarded after it, against the same command without one."""

import os
import subprocess
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any

from bench._peers import Missing, site_packages
from bench._place import make_project, workplace
from bench._rows import Row, Section, at_most
from bench._running import Worker
from bench._turns import ROUNDS, Options, compared, in_turns
from corral import Sandbox, SandboxConfig

if TYPE_CHECKING:
    from collections.abc import Callable

AS_USER = True
FILES = 10_000
MANY_FILES = 100_000
SPARE_SECONDS = 5.0  # for a spare transaction to be ready on a busy machine
PEER_SECONDS = 8.0  # for the peer and each command, at 300 rounds
COMMANDS = {
    "/bin/true": (["/bin/true"], 3.0),
    "a C compile": (["/usr/bin/gcc", "-pipe", "-c", "hello.c", "-o", "hello.o"], 1.15),
    f"find over {FILES} files": (["/usr/bin/find", "many", "-type", "f"], 1.15),
    # Without a goal: a new overlay has to look up the status of every file again.
    f"find that asks each of {FILES} files for its time": (["/usr/bin/find", "many", "-newer", "hello.c"], 0.0),
}
COUNTED = 10  # transactions begun over the large project


def measure(options: Options) -> Section:
    """Return the time of a command with and without a transaction."""
    notes: list[str] = []
    with workplace() as folder:
        project = make_project(folder / "project")
        _fill(Path(project) / "many", FILES)
        rows: list[Row] = []
        with Sandbox(SandboxConfig(project, profile="workspace")) as box:
            notes.append(f"enforcement is {box.run(['/bin/true']).enforcement}; a transaction is {_way(box)}")
            for what, (argv, bound) in COMMANDS.items():
                ways: dict[str, Callable[[], object]] = {
                    "a transaction": partial(_in_transaction, box, argv),
                    "a run": partial(box.run, argv),
                }
                if what == "/bin/true":
                    ways["a transaction, back to back"] = partial(_at_once, box, argv)
                ways["bare"] = partial(subprocess.run, argv, capture_output=True, check=False, cwd=project)
                times = in_turns(ways, options.rounds)
                unit, bare = times.pop("a run"), times.pop("bare")
                rows.append(compared(f"{what}: a transaction, beside the command alone", times["a transaction"], bare))
                for name, time in times.items():
                    goal = at_most(bound) if bound and name == "a transaction" else None
                    rows.append(compared(f"{what}: {name}", time, unit, goal))
        rows += _theirs(folder, options, notes)
        rows += _large(folder)
    notes.append("the wait for a spare before each transaction is not timed, except for transactions back to back")
    return Section("what a transaction costs", tuple(rows), tuple(notes))


def _fill(root: Path, number: int) -> None:
    for folder in range(number // 100):
        (root / str(folder)).mkdir(parents=True)
        for name in range(100):
            (root / str(folder) / str(name)).touch()


def _way(box: Sandbox) -> str:
    with box.transaction() as tx:
        return tx.how


def _in_transaction(box: Sandbox, argv: list[str]) -> int:
    workshop: Any = box._state.spares
    give_up_at = monotonic() + SPARE_SECONDS
    while workshop is not None and workshop._spare is None and monotonic() < give_up_at:
        sleep(0.001)
    begun = perf_counter_ns()
    _at_once(box, argv)
    return perf_counter_ns() - begun


def _at_once(box: Sandbox, argv: list[str]) -> None:
    with box.transaction() as tx:
        if not tx.run(argv).ok:
            raise RuntimeError(f"{argv} failed in a transaction")


def _theirs(folder: Path, options: Options, notes: list[str]) -> list[Row]:
    """Return the same for sandlock, with a copy-on-write branch that is begun and aborted."""
    packages = site_packages(options.peers) if options.peers else ""
    if not os.path.isdir(f"{packages}/sandlock"):
        notes.append("sandlock is not compared: it is not installed; make bench-peers")
        return []
    project = make_project(folder / "sandlock")
    _fill(Path(project) / "many", FILES)
    worker = Worker("sandlock-copying", project, {**os.environ, "PYTHONPATH": packages, "HOME": project})
    rows = []
    try:
        if worker.ask(["/usr/bin/touch", "made"]) and os.path.exists(f"{project}/made"):
            raise RuntimeError("sandlock's copy-on-write changed the project")
        for what, (argv, _) in COMMANDS.items():
            bare = partial(subprocess.run, argv, capture_output=True, check=False, cwd=project)
            ways: dict[str, Callable[[], object]] = {"sandlock": partial(_asked, worker, argv), "bare": bare}
            times = in_turns(ways, options.rounds, seconds_each=PEER_SECONDS * options.rounds / ROUNDS)
            named = f"{what}: sandlock's copy-on-write, beside the command alone"
            rows.append(compared(named, times["sandlock"], times["bare"]))
    except Missing as missing:
        notes.append(f"sandlock is not compared: {missing}")
    finally:
        worker.close()
    return rows


def _asked(worker: Worker, argv: list[str]) -> int:
    return int(worker.ask(argv)["ns"])


def _large(folder: Path) -> list[Row]:
    """Return the time to begin a transaction over a large project, beside the time of a walk through it."""
    project = make_project(folder / "large")
    _fill(Path(project) / "many", MANY_FILES)
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        box.run(["/bin/true"])
        ways: dict[str, Callable[[], object]] = {
            "begin": partial(_at_once, box, ["/bin/true"]),
            "walk": partial(subprocess.run, ["/usr/bin/find", f"{project}/many"], capture_output=True, check=True),
        }
        times = in_turns(ways, COUNTED)
    return [compared(f"begin over {MANY_FILES} files: a transaction, beside find", times["begin"], times["walk"])]

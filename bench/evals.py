"""Measures `corral eval` over 1,000 tasks, locally and on Ray: overhead of a task, memory growth, and tasks lost to a kill half-way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from bench import _ray
from bench._memory import peak_mib
from bench._place import workplace
from bench._rows import Goal, Row, Section
from bench._turns import ROUNDS, Options
from corral.apps.evals.journal import Journal, place
from corral.apps.evals.run_suite import evaluate
from corral.apps.evals.task_loader import load

AS_USER = False
TASKS = 1000
WORKERS = 2
BARE = 100  # bare runs before, between and after the measured runs
LOOK_SECONDS = 0.05
MORE_MEMORY = "more memory after all than after a tenth"
MOST_MIB = 8.0  # the summary keeps the outcomes, a kilobyte each


def measure(options: Options) -> Section:
    """Return the overhead of a task, the memory growth, and how many tasks a kill lost or repeated."""
    count = max(TASKS * min(options.rounds, ROUNDS) // ROUNDS, 20)
    notes = [
        f"{count} tasks with a file, a call and an expectation, {WORKERS} workers; bare: the file, the call, the end"
    ]
    with workplace() as folder:
        (folder / "tasks.jsonl").write_text("".join(json.dumps(_task(number)) + "\n" for number in range(count)))
        rows = _here(folder, count, notes)
        try:
            rows += _on_ray(folder, count)
        except _ray.Missing as why:
            notes.append(str(why))
        finally:
            # Journals are in the user's state directory, beside those of real runs.
            for name in ("out", "ray"):
                Path(place(str(folder / name), os.environ)).unlink(missing_ok=True)
    return Section("tasks of an eval", tuple(rows), tuple(notes))


def _task(number: int) -> dict[str, Any]:
    expect = {"stdout": f"{number}\n"}
    return {"id": f"t{number}", "files": {"notes.txt": f"{number}\n"}, "argv": ["cat", "notes.txt"], "expect": expect}


def _here(folder: Path, count: int, notes: list[str]) -> list[Row]:
    bare = [_bare_ms()]
    bare_used = _bare_used_ms()
    first = Run(folder, count)
    first.until(count // 10)
    early = peak_mib(first.process.pid)
    first.until(count // 2)
    first.kill()
    done = first.journalled()
    bare.append(_bare_ms())
    second = Run(folder, count)
    late = second.to_its_end()
    bare.append(_bare_ms())
    ids = [*done, *second.journalled()[len(done) :]]
    notes.append(f"peak memory was {late:.0f} MiB")
    notes.append(f"killed after {len(done)} tasks, and resumed: {len(ids) - len(done)} ran")
    wrong = abs(count - len(ids)) + len(ids) - len({*ids})
    return [
        Row("processor time of a task", second.used_ms / (len(ids) - len(done)), "ms", bare_used),
        Row("a task", (first.seconds + second.seconds) * 1000 / count, "ms", sorted(bare)[1]),
        Row(MORE_MEMORY, max(late - early, 0.0), "MiB", goal=Goal(MOST_MIB, of_value=True)),
        Row("tasks lost or repeated, killed half-way", wrong, "tasks", goal=Goal(0, of_value=True)),
    ]


class Run:
    """One `corral eval` process."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._journal = Path(place(str(folder / "out"), os.environ))
        self._count = count
        self._begun = perf_counter()
        self._used_ms = _children_ms()
        self.seconds = self.used_ms = 0.0
        words = ["eval", "tasks.jsonl", "--out", "out", "--workers", str(WORKERS), "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corral", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def journalled(self) -> list[str]:
        """Return the tasks in the journal, in order."""
        if not self._journal.exists():
            return []
        lines = self._journal.read_bytes().splitlines(keepends=True)
        entries = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}\n")]
        return [entry["id"] for entry in entries if entry["event"] == "task"]

    def until(self, number: int) -> None:
        """Wait until the journal has this many tasks."""
        while len(self.journalled()) < number:
            if self.process.poll() is not None:
                raise RuntimeError("the run ended too soon")
            sleep(LOOK_SECONDS)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.seconds = perf_counter() - self._begun

    def to_its_end(self) -> float:
        """Wait for the end of the process, and return its peak memory."""
        peak = 0.0
        while self.process.poll() is None:
            peak = max(peak, peak_mib(self.process.pid))
            sleep(LOOK_SECONDS)
        self.seconds = perf_counter() - self._begun
        self.used_ms = _children_ms() - self._used_ms
        if self.process.returncode != 0:
            raise RuntimeError(f"the run ended with {self.process.returncode}")
        return peak


def _children_ms() -> float:
    """Return the CPU time of all ended child processes, in milliseconds."""
    times = os.times()
    return (times.children_user + times.children_system) * 1000


def _bare_used_ms() -> float:
    before = sum(os.times()[:4])
    _bare_ms()
    return (sum(os.times()[:4]) - before) * 1000 / BARE


def _bare_ms() -> float:
    begun = perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(_bare, range(BARE)))
    return (perf_counter() - begun) * 1000 / BARE


def _bare(number: int) -> None:
    folder = tempfile.mkdtemp()
    Path(folder, "notes.txt").write_text(f"{number}\n")
    done = subprocess.run(["cat", "notes.txt"], cwd=folder, capture_output=True, check=True)
    shutil.rmtree(folder)
    if done.stdout != f"{number}\n".encode():
        raise RuntimeError("a bare run failed")


def _on_ray(folder: Path, count: int) -> list[Row]:
    tasks = load([str(folder / "tasks.jsonl")])
    with _ray.cluster(nodes=3, room=1) as nodes, Journal(str(folder / "ray")) as journal:
        begun = perf_counter()
        early = 0.0
        done: list[str] = []
        for outcome in evaluate(tasks, journal, engine="ray"):
            done.append(outcome.id)
            if outcome.status != "passed":
                raise RuntimeError(f"{outcome.id}: {outcome.said}")
            if len(done) == count // 10:
                early = peak_mib(os.getpid())
            if len(done) == count // 2:
                nodes.kill_one()
        took = perf_counter() - begun
    wrong = abs(count - len(done)) + len(done) - len({*done})
    late = peak_mib(os.getpid())
    return [
        Row("a task, on Ray", took * 1000 / count, "ms", _bare_ms()),
        Row(f"{MORE_MEMORY}, on Ray", late - early, "MiB", goal=Goal(MOST_MIB, of_value=True)),
        Row("tasks lost or repeated, a node killed half-way, on Ray", wrong, "tasks", goal=Goal(0, of_value=True)),
    ]

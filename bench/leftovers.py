"""Counts the processes that outlive a time limit. The command starts ten daemons, each in a session of its own.

A sandbox that is a program is killed by SIGKILL, as `subprocess.run(timeout=)` does. If processes are left, a second row shows SIGTERM and then
SIGKILL to its process group. A library enforces its own limit. This benchmark ends the processes that are left.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM
from time import monotonic

from bench._field import field
from bench._peers import HERE, Missing
from bench._place import make_project, workplace
from bench._rows import Row, Section
from bench._running import Running, Worker
from bench._turns import Options, timing

AS_USER = False
DAEMONS = 10
LIMIT_SECONDS = 2.0
PATIENCE_SECONDS = 2.0  # after the call has returned, for processes that still end
ROUNDS = 3
SCRIPT = """
import os, subprocess, sys, time
count, marker = int(sys.argv[1]), sys.argv[2]
none = subprocess.DEVNULL
for _ in range(count):
    subprocess.Popen(["sleep", marker], start_new_session=True, stdin=none, stdout=none, stderr=none)
open("started-" + marker, "w").close()
time.sleep(600)
"""
WORKER = str(HERE / "_worker.py")
End = Callable[[list[str]], object]


def measure(options: Options) -> Section:
    """Return how many processes are left, and how long after the limit the last one ended."""
    notes = [
        f"{DAEMONS} daemons, a limit of {LIMIT_SECONDS:g} s; looked at for {PATIENCE_SECONDS:g} s after the call returned"
    ]
    rows: list[Row] = []
    with workplace() as folder:
        project = make_project(folder / "project")
        rows += _measured("subprocess.run", project, partial(_ended, project, None), notes)
        rows += _by_library("corral", Worker("corral", project), project, notes)
        with field(folder, options.peers, notes) as peers:
            for peer in peers:
                rows += _of_peer(peer, notes)
    return Section("after a time limit", tuple(rows), tuple(notes))


def _of_peer(peer: Running, notes: list[str]) -> list[Row]:
    if peer.peer.command is None:
        return _by_library(peer.name, peer.worker(), peer.project, notes)
    ended = partial(_ended, peer.project, peer.env)
    rows = _measured(peer.name, peer.project, lambda argv: ended(peer.command(argv)), notes)
    if len(rows) == 1:
        rows += _measured(
            f"{peer.name}, its group, SIGTERM first",
            peer.project,
            lambda argv: ended(peer.command(argv), carefully=True),
            notes,
        )
    return rows


def _by_library(name: str, worker: Worker, project: str, notes: list[str]) -> list[Row]:
    try:
        worker.ask(["/bin/true"])
        return _measured(name, project, partial(worker.ask, timeout_seconds=LIMIT_SECONDS), notes)
    finally:
        worker.close()


def _ended(project: str, env: dict[str, str] | None, argv: list[str], *, carefully: bool = False) -> None:
    # No pipes: with pipes the call would wait for the daemons.
    none = subprocess.DEVNULL
    process = subprocess.Popen(
        argv, cwd=project, env=env, stdin=none, stdout=none, stderr=none, start_new_session=carefully
    )
    with suppress(subprocess.TimeoutExpired):
        process.wait(LIMIT_SECONDS)
    if carefully:
        with suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, SIGTERM)
            process.wait(PATIENCE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, SIGKILL)
    process.kill()
    process.wait()


def _measured(name: str, project: str, end: End, notes: list[str]) -> list[Row]:
    """Return two rows for one way to end a command. If its daemons do not start, add a note and return no rows."""
    Path(project, "daemons.py").write_text(SCRIPT)
    left, late = 0, []
    for _ in range(ROUNDS):
        marker = f"7{os.getpid()}.{int.from_bytes(os.urandom(3), 'big')}"
        begun = monotonic()
        try:
            end(["/usr/bin/python3", "daemons.py", str(DAEMONS), marker])
            if not Path(project, f"started-{marker}").exists():
                raise Missing("its daemons did not start in time")
        except (Missing, OSError) as error:
            notes.append(f"{name} is not compared: {error}")
            return []
        finally:
            alive = _wait(project, marker)
            late.append(int((monotonic() - begun - LIMIT_SECONDS) * 1e9))
            _end_all(alive)
        left = len(alive)
        if left:
            break
    rows = [Row(f"processes left: {name}", left, "processes")]
    return rows if left else [*rows, Row(f"the last has gone after: {name}", timing(late).ms, "ms")]


def _wait(project: str, marker: str) -> list[int]:
    deadline = monotonic() + PATIENCE_SECONDS
    while alive := _alive(project, marker):
        if monotonic() > deadline:
            break
    return alive


def _alive(project: str, marker: str) -> list[int]:
    """Return the processes that have the marker as an argument, or the project in one: gVisor shows only its own process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if WORKER not in words and any(word == marker or project in word for word in words):
            found.append(int(path.parent.name))
    return found


def _end_all(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)

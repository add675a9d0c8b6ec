"""Measures the time from a timeout to the result, when every process that the command started has ended."""

import os
from pathlib import Path

from bench._place import make_project, workplace
from bench._rows import Row, Section
from bench._turns import Options, timing
from corral import Sandbox, SandboxConfig

AS_USER = True
TREES = {"1 process": 0, "10 processes": 9, "100 processes": 99}
TIMEOUT_SECONDS = 1.0
ROUNDS = 10
# Each child has a session of its own, as a daemon has. The program prints their number when all have started.
SCRIPT = """
import os, subprocess, sys, time
children = [subprocess.Popen(["sleep", sys.argv[2]], start_new_session=True) for _ in range(int(sys.argv[1]))]
print(len(children), flush=True)
time.sleep(600)
"""


def measure(options: Options) -> Section:
    """Return the milliseconds from the deadline to the result."""
    rounds = min(ROUNDS, max(options.rounds // 30, 3))
    rows = []
    with workplace() as folder:
        project = make_project(folder / "project")
        (folder / "project" / "tree.py").write_text(SCRIPT)
        with Sandbox(SandboxConfig(project)) as box:
            for what, children in TREES.items():
                late = timing([_late_ns(box, children) for _ in range(rounds)])
                rows.append(Row(f"a tree of {what}", late.ms, "ms", spread=late.spread))
    note = f"from the deadline, {TIMEOUT_SECONDS:g} s after the start, to the result; then nothing of the tree is alive"
    return Section("the end of a tree after a timeout", tuple(rows), (note,))


def _late_ns(box: Sandbox, children: int) -> int:
    marker = f"6{os.getpid()}.{int.from_bytes(os.urandom(3), 'big')}"
    result = box.run(["/usr/bin/python3", "tree.py", str(children), marker], timeout_seconds=TIMEOUT_SECONDS)
    left = _alive(marker)
    if left or not result.timed_out or result.stdout_text != f"{children}\n":
        raise RuntimeError(f"{left} processes of the tree are alive after a timeout: {result}")
    return int((result.duration_ms - TIMEOUT_SECONDS * 1000) * 1e6)


def _alive(marker: str) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += marker.encode() in path.read_bytes().split(b"\0")
        except OSError:
            continue
    return count

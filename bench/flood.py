"""Measures speed and memory of reading two gigabytes of output, against a read loop and subprocess.run."""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench._place import workplace
from bench._rows import Goal, Row, Section, at_least
from bench._turns import Options

AS_USER = False
BYTES = 2_000_000_000
ROUNDS = 3
FEW_ROUNDS = 30  # with fewer rounds, one sample is enough
NEEDED_BYTES = 3 * BYTES  # subprocess.run keeps the output twice while it joins the pieces
SIDES = ("a read loop", "subprocess.run", "corral")
PROGRAM = """
import json, os, subprocess, sys, time
from corral import Sandbox, SandboxConfig

root, argv, who = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]

def loop():
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, bufsize=0) as process:
        descriptor, total = process.stdout.fileno(), 0
        while data := os.read(descriptor, 1 << 16):
            total += len(data)
    return total

def captured():
    return len(subprocess.run(argv, cwd=root, capture_output=True).stdout)

def peak_mib():
    # Not ru_maxrss: that of a new process begins with what its parent held.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

def ours():
    return box.run(argv, timeout_seconds=600).stdout_bytes

with Sandbox(SandboxConfig(root)) as box:
    box.run(["true"])
    before = peak_mib()
    begun = time.perf_counter()
    total = {"a read loop": loop, "subprocess.run": captured, "corral": ours}[who]()
    seconds = time.perf_counter() - begun
    grown = peak_mib() - before
print(json.dumps({"total": total, "seconds": seconds, "grown_mib": grown}))
"""


def measure(options: Options) -> Section:
    """Return the best throughput and the smallest growth of the resident set, for large and for small writes."""
    rounds = ROUNDS if options.rounds >= FEW_ROUNDS else 1
    rows: list[Row] = []
    notes = [f"best of {rounds}; memory is the growth of the resident set's peak, the largest of {rounds}"]
    sides = [side for side in SIDES if side != "subprocess.run" or _available_bytes() > NEEDED_BYTES]
    if len(sides) < len(SIDES):
        notes.append("subprocess.run was left out: it needs 6 GB of free memory")
    with workplace() as folder:
        with (folder / "zero").open("wb") as sparse:
            sparse.truncate(BYTES)
        for what, argv in (("128 kB writes", ["cat", "zero"]), ("8 kB writes", ["head", "-c", str(BYTES), "zero"])):
            speed, grown = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0.0)
            for _ in range(rounds):
                for side in sides:
                    report = _report(str(folder), argv, side)
                    speed[side] = max(speed[side], BYTES / 1e9 / report["seconds"])
                    grown[side] = max(grown[side], report["grown_mib"])
            rows.append(_row(f"{what}: corral against a read loop", speed, "a read loop", 0.8))
            if "subprocess.run" in sides:
                rows.append(_row(f"{what}: corral against subprocess.run", speed, "subprocess.run", 4))
            bare = grown.get("subprocess.run")
            goal = Goal(16, of_value=True)
            rows.append(Row(f"{what}: memory, beside subprocess.run's", grown["corral"], "MiB", bare, goal=goal))
    return Section("2 GB of output", tuple(rows), tuple(notes))


def _row(what: str, speed: dict[str, float], bare: str, bound: float) -> Row:
    return Row(what, speed["corral"], "GB/s", speed[bare], goal=at_least(bound))


def _report(root: str, argv: list[str], side: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, root, json.dumps(argv), side], capture_output=True, text=True, check=True
    )
    report: dict[str, float] = json.loads(done.stdout)
    if report["total"] != BYTES:
        raise RuntimeError(f"{side} saw {report['total']} bytes of {BYTES}")
    return report


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""A command that prints two gigabytes: how fast they are taken in against a bare read loop, and what memory that costs."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

BYTES = 2_000_000_000
ROUNDS = 3
PROGRAM = """
import json, os, resource, subprocess, sys, time
from corral import Sandbox, SandboxConfig

root, argv, rounds, who = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def bare():
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, bufsize=0) as process:
        descriptor, total = process.stdout.fileno(), 0
        while data := os.read(descriptor, 1 << 16):
            total += len(data)
    return total

def ours():
    return box.run(argv, timeout_seconds=600).stdout_bytes

with Sandbox(SandboxConfig(root)) as box:
    box.run(["true"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = 1e9
    for _ in range(rounds):
        begun = time.perf_counter()
        total = {"bare": bare, "ours": ours}[who]()
        best = min(best, time.perf_counter() - begun)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"total": total, "seconds": best, "grown_kib": grown}))
"""


def measured(root: str, argv: list[str], who: str) -> dict[str, float]:
    """Return total, best seconds and growth of one side, measured in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, root, json.dumps(argv), str(ROUNDS), who]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, float] = json.loads(done.stdout)
    assert report["total"] == BYTES, report
    return report


def measure() -> list[dict[str, object]]:
    """Return throughput in GB/s and growth of the resident set in MB."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as root:
        with (Path(root) / "zero").open("wb") as sparse:
            sparse.truncate(BYTES)
        for what, argv in (("128 kB writes", ["cat", "zero"]), ("8 kB writes", ["head", "-c", str(BYTES), "zero"])):
            bare, ours = measured(root, argv, "bare"), measured(root, argv, "ours")
            speed, bare_speed = BYTES / 1e9 / ours["seconds"], BYTES / 1e9 / bare["seconds"]
            rows += [
                {
                    "what": f"flood of 2 GB, {what}",
                    "value": speed,
                    "unit": "GB/s",
                    "bare": bare_speed,
                    "ratio": speed / bare_speed,
                    "goal": ">= 0.8",
                },
                {"what": f"memory for it, {what}", "value": ours["grown_kib"] / 1024, "unit": "MB", "goal": "<= 8"},
            ]
    return rows

"""Measures a run in a host process with a gigabyte of memory against a run in a small host process, in turns."""

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import IO

from bench._place import make_project, workplace
from bench._rows import Section, at_most
from bench._turns import Options, compared, timing

AS_USER = False
BLOCK = 10  # runs in one turn: in both processes the first run of a turn finds cold caches
LARGE_BYTES = 1 << 30
PROGRAM = """
import json, subprocess, sys
from time import perf_counter_ns
from corral import Sandbox, SandboxConfig

project, size = sys.argv[1], int(sys.argv[2])
held = bytearray(size)
held[::4096] = b"x" * len(held[::4096])

def timed(function):
    begun = perf_counter_ns()
    function()
    return perf_counter_ns() - begun

with Sandbox(SandboxConfig(project)) as box:
    ways = {
        "corral": lambda: box.run(["/bin/true"]),
        "subprocess.run": lambda: subprocess.run(["/bin/true"], capture_output=True, cwd=project),
        "subprocess.run with a preexec_fn": lambda: subprocess.run(["/bin/true"], preexec_fn=int, cwd=project),
    }
    for line in sys.stdin:
        print(json.dumps({name: [timed(way) for _ in range(int(line))] for name, way in ways.items()}), flush=True)
"""


def measure(options: Options) -> Section:
    """Return the large host against the small one, for corral and for two kinds of subprocess."""
    samples: dict[str, dict[str, list[int]]] = {"small": {}, "large": {}}
    with workplace() as folder, ExitStack() as stack:
        hosts = {}
        for name, size in (("small", 1), ("large", LARGE_BYTES)):
            command = [sys.executable, "-c", PROGRAM, make_project(folder / name), str(size)]
            hosts[name] = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for turn in range(-1, max(options.rounds // BLOCK, 3)):
            for name in sorted(hosts, reverse=bool(turn % 2)):
                for way, times in _ask(hosts[name]).items():
                    if turn >= 0:
                        samples[name].setdefault(way, []).extend(times)
    rows = []
    for way, times in samples["large"].items():
        large, small = timing(times), timing(samples["small"][way])
        rows.append(compared(way, large, small, at_most(1.05) if way == "corral" else None))
    return Section("/bin/true from a host of 1 GB resident, against a small host", tuple(rows))


def _ask(host: subprocess.Popen[str]) -> dict[str, list[int]]:
    print(BLOCK, file=_open(host.stdin), flush=True)
    answer: dict[str, list[int]] = json.loads(_open(host.stdout).readline())
    return answer


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream

"""Measures memory growth and calls per second of `corral batch` over 10,000 calls that print 20 kB each."""

import json
import subprocess
import sys
from threading import Thread
from time import perf_counter
from typing import IO

from bench._memory import peak_mib
from bench._place import make_project, workplace
from bench._rows import Goal, Row, Section
from bench._turns import ROUNDS, Options

AS_USER = False
CALLS = 10_000
PRINTED_BYTES = 20_000


def measure(options: Options) -> Section:
    """Return peak memory after a tenth of the calls and after all calls."""
    count = max(CALLS * min(options.rounds, ROUNDS) // ROUNDS, 100)
    with workplace() as folder:
        command = [sys.executable, "-m", "corral", "batch", "--root", make_project(folder / "project")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            Thread(target=_feed, args=(process.stdin, count), daemon=True).start()
            begun = perf_counter()
            early = _answered(process, count // 10)
            late = _answered(process, count - count // 10)
            took = perf_counter() - begun
    printed = count * PRINTED_BYTES / 1e6
    return Section(
        f"{count:,} calls through corral batch",
        (
            Row("more memory after all than after a tenth", late - early, "MiB", goal=Goal(4, of_value=True)),
            Row("calls", count / took, "calls/s"),
        ),
        (f"{printed:,.0f} MB were printed by the calls, and read as results; peak memory was {late:.0f} MiB",),
    )


def _feed(stdin: IO[bytes] | None, count: int) -> None:
    assert stdin is not None
    with stdin:
        for number in range(count):
            line = {"id": number, "argv": ["head", "-c", str(PRINTED_BYTES), "/dev/zero"]}
            stdin.write(json.dumps(line).encode() + b"\n")


def _answered(process: subprocess.Popen[bytes], count: int) -> float:
    assert process.stdout is not None
    for _ in range(count):
        result = json.loads(process.stdout.readline())["result"]
        if result["exit_code"] != 0 or result["stdout_bytes"] != PRINTED_BYTES:
            raise RuntimeError(f"a call failed: {result}")
    return peak_mib(process.pid)

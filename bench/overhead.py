"""`run()` against bare `subprocess.run`, one after the other in one process, so that the machine's mood hits both."""

import subprocess
import tempfile
from collections.abc import Callable
from time import perf_counter

from corral import Sandbox, SandboxConfig

ROUNDS = 600
WARM_UP = 30


def median(samples: list[float]) -> float:
    """Return the middle sample."""
    return sorted(samples)[len(samples) // 2]


def interleaved(ours: Callable[[], object], bare: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the median milliseconds of both, measured in turns."""
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + WARM_UP):
        for kept, function in zip(samples, (ours, bare), strict=True):
            begun = perf_counter()
            function()
            if turn >= WARM_UP:
                kept.append((perf_counter() - begun) * 1000)
    return median(samples[0]), median(samples[1])


def row(what: str, ours: float, bare: float, goal: str) -> dict[str, object]:
    """Return one line of the table."""
    return {"what": what, "value": ours, "unit": "ms", "bare": bare, "ratio": ours / bare, "goal": goal}


def measure() -> list[dict[str, object]]:
    """Return what a run costs beyond the process itself."""
    cases = {
        "run /bin/true": (["/bin/true"], "<= 1.15"),
        "run echo": (["echo", "hello"], "<= 1.15"),
        "run git --version": (["git", "--version"], "<= 1.15"),
    }
    rows = []
    with tempfile.TemporaryDirectory() as root, Sandbox(SandboxConfig(root)) as box:
        for what, (argv, goal) in cases.items():
            assert box.run(argv).ok, argv
            ours, bare = interleaved(
                lambda argv=argv: box.run(argv),
                lambda argv=argv: subprocess.run(argv, capture_output=True, check=False, cwd=root),
            )
            rows.append(row(what, ours, bare, goal))
        text = "echo one; echo two | cat"
        assert box.run(text, shell=True).ok
        bash = ["bash", "--noprofile", "--norc", "-c", "--", text]
        ours, bare = interleaved(
            lambda: box.run(text, shell=True),
            lambda: subprocess.run(bash, capture_output=True, check=False, cwd=root),
            ROUNDS // 3,
        )
        rows.append(row("run a pipeline, shell=True", ours, bare, "<= 1.15"))
        begun = perf_counter()
        with Sandbox(SandboxConfig(root)) as fresh:
            fresh.run(["/bin/true"])
            first = (perf_counter() - begun) * 1000
        rows.append({"what": "first run of a sandbox, keeper included", "value": first, "unit": "ms"})
    return rows

"""`run()` against bare `subprocess.run`, one after the other in one process, so that the machine's mood hits both."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import perf_counter

from corral import Containment, Sandbox, SandboxConfig

ROUNDS = 600
COLD_ROUNDS = 30
WARM_UP = 10


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
    """Return what a run costs beyond the process itself, contained and not."""
    rows: list[dict[str, object]] = []
    for backend, goal in (("warden", "<= 1.10"), ("none", "<= 1.15")):
        with tempfile.TemporaryDirectory() as root:
            containment = Containment(backend=backend)
            with Sandbox(SandboxConfig(root, containment=containment)) as box:
                rows += costs(box, root, f"{backend}: ", goal)
            rows += first_runs(root, containment, f"{backend}: ")
    return rows


def costs(box: Sandbox, root: str, head: str, goal: str) -> list[dict[str, object]]:
    """Return what each kind of command costs in a sandbox that is warm."""
    with open(f"{root}/hello.c", "w") as source, open(f"{root}/hello.py", "w") as script:
        source.write("int main(void) { return 0; }\n")
        script.write("print(1)\n")
    subprocess.run(["git", "init", "-q", root], check=True)
    cases = {
        "/bin/true": (["/bin/true"], ROUNDS),
        "echo": (["echo", "hello"], ROUNDS),
        "git status": (["git", "status", "--short"], ROUNDS // 2),
        "a Python script": (["/usr/bin/python3", "hello.py"], ROUNDS // 6),
        "a C compile": (["gcc", "-c", "hello.c", "-o", "hello.o"], ROUNDS // 10),
    }
    rows = []
    for what, (argv, rounds) in cases.items():
        assert box.run(argv).ok, argv
        ours, bare = interleaved(
            lambda argv=argv: box.run(argv),
            lambda argv=argv: subprocess.run(argv, capture_output=True, check=False, cwd=root),
            rounds,
        )
        rows.append(row(head + what, ours, bare, goal))
    text = "echo one; echo two | cat"
    bash = ["bash", "--noprofile", "--norc", "-c", "--", text]
    ours, bare = interleaved(
        lambda: box.run(text, shell=True),
        lambda: subprocess.run(bash, capture_output=True, check=False, cwd=root),
        ROUNDS // 3,
    )
    rows.append(row(head + "a pipeline, shell=True", ours, bare, goal))
    return rows


def first_runs(root: str, containment: Containment, head: str) -> list[dict[str, object]]:
    """Return what the first run of a sandbox costs, and one more warden, in the unit of a bare interpreter."""

    def cold() -> None:
        with Sandbox(SandboxConfig(root, containment=containment)) as fresh:
            fresh.run(["/bin/true"])

    python = [sys._base_executable, "-I", "-S", "-c", "pass"]
    ours, bare = interleaved(cold, lambda: subprocess.run(python, check=True), COLD_ROUNDS)
    rows = [row(head + "first run of a sandbox and its end", ours, bare, "<= 6")]
    with Sandbox(SandboxConfig(root, containment=containment)) as box:
        box.run(["/bin/true"])
        samples = []
        for _ in range(COLD_ROUNDS):
            begun = perf_counter()
            warden = box._pool._make()
            samples.append((perf_counter() - begun) * 1000)
            warden.close()
    return [*rows, {"what": head + "one more warden", "value": median(samples), "unit": "ms"}]

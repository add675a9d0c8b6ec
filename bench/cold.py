"""What a sandbox costs before its first result, in the unit of a bare interpreter: `python -I -S -c pass`."""

import subprocess
import sys
from time import perf_counter_ns

from bench._place import make_project, workplace
from bench._rows import Section, at_most
from bench._turns import Options, Timing, compared, in_turns, timing
from corral import Sandbox, SandboxConfig

AS_USER = True
PYTHON = [sys._base_executable, "-I", "-S", "-c", "pass"]  # type: ignore[attr-defined]  # there since 3.3


def measure(options: Options) -> Section:
    """Return the cold start, the end, and what one more warden costs."""
    rounds = max(options.rounds // 6, 5)
    endings: list[int] = []
    with workplace() as folder:
        project = make_project(folder / "project")

        def cold() -> int:
            begun = perf_counter_ns()
            with Sandbox(SandboxConfig(project)) as box:
                if not box.run(["/bin/true"]).ok:
                    raise RuntimeError("/bin/true failed in a new sandbox")
                ended = perf_counter_ns()
            endings.append(perf_counter_ns() - ended)
            return ended - begun

        times = in_turns({"cold": cold, "bare": lambda: subprocess.run(PYTHON, check=True)}, rounds)
        further = _further_warden(project, rounds)
    bare = times["bare"]
    return Section(
        "the cold start of a sandbox, against python -I -S -c pass",
        (
            compared("Sandbox() to its first result", times["cold"], bare, at_most(6)),
            compared("its end", timing(endings), bare),
            compared("one more warden", further, bare),
        ),
    )


def _further_warden(project: str, rounds: int) -> Timing:
    samples = []
    with Sandbox(SandboxConfig(project)) as box:
        box.run(["/bin/true"])
        for _ in range(rounds):
            begun = perf_counter_ns()
            warden = box._pool._make()
            samples.append(perf_counter_ns() - begun)
            warden.close()
    return timing(samples)

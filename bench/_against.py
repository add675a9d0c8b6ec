"""Compares a warm command of this build with that of another commit, in turns: python -m bench._against COMMIT [--rounds N].

It prints the ratio of the medians, with its 95% interval from resampling, and the same of the lower quartiles, which other load on the
machine disturbs less.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from bench._git_place import made_repository
from bench._place import workplace

HERE = Path(__file__).parent
FILES = 200
RESAMPLES = 1000
WORKER = """
import sys
from time import perf_counter_ns
from corral import Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[1], profile="workspace")) as box:
    for line in sys.stdin:
        begun = perf_counter_ns()
        result = box.run(["/bin/true"])
        spent = perf_counter_ns() - begun
        print(spent if result.ok else result.hint, flush=True)
"""


class Build:
    """A process that runs one command for each line, with the source of one build."""

    def __init__(self, source: Path, project: Path) -> None:
        words = [sys.executable, "-B", "-c", WORKER, str(project)]
        self._process = subprocess.Popen(
            words, env={"PYTHONPATH": str(source), "HOME": str(project.parent)}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def nanoseconds(self) -> int:
        """Run the command once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def lower_quartile(nanoseconds: list[int]) -> float:
    """Return the time that a quarter of the rounds took at most."""
    return sorted(nanoseconds)[len(nanoseconds) // 4]


def interval(of: Callable[[list[int]], float], ours: list[int], theirs: list[int]) -> tuple[float, float]:
    """Return the 95% interval of the ratio of two medians or quartiles."""
    order = Random(0)
    ratios = sorted(
        of(order.choices(ours, k=len(ours))) / of(order.choices(theirs, k=len(theirs))) for _ in range(RESAMPLES)
    )
    return ratios[int(RESAMPLES * 0.025)], ratios[int(RESAMPLES * 0.975)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench._against", description=__doc__)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    with workplace() as folder, TemporaryDirectory() as other:
        archive = ["git", "-C", str(HERE.parent), "archive", arguments.commit, "src"]
        subprocess.run(["tar", "-x", "-C", other], input=subprocess.check_output(archive), check=True)
        compiler = [sys.executable, "-m", "corral.guard.rules.compiler"]
        subprocess.run(compiler, env={"PYTHONPATH": f"{other}/src"}, check=True)
        sources = {"this": HERE.parent / "src", arguments.commit: Path(other) / "src"}
        builds = {name: Build(path, made_repository(folder / name, FILES)) for name, path in sources.items()}
        times: dict[str, list[int]] = {name: [] for name in builds}
        order, names = Random(0), list(builds)
        for turn in range(arguments.rounds + 20):
            order.shuffle(names)
            for name in names:
                spent = builds[name].nanoseconds()
                if turn >= 20:
                    times[name].append(spent)
        for build in builds.values():
            build.close()
    ours, theirs = times.values()
    print(f"{len(ours)} rounds each")
    for name, of in (("median", median), ("lower quartile", lower_quartile)):
        low, high = interval(of, ours, theirs)
        print(f"{name}: this build {of(ours) / 1e6:.3f} ms, {arguments.commit} {of(theirs) / 1e6:.3f} ms, ")
        print(f"    ratio {of(ours) / of(theirs):.3f}x, 95% interval {low:.3f}x to {high:.3f}x")


if __name__ == "__main__":
    main()

"""Measures git commands in a warm sandbox against the same commands without one, in turns, on a small and on a large repository."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from bench._git_place import made_repository
from bench._place import workplace
from bench._rows import Goal, Row, Section, at_most
from bench._turns import ROUNDS, Options, Timing, compared, in_turns
from corral import Sandbox, SandboxConfig

AS_USER = True
SMALL, LARGE = 200, 50_000
# The steps that are not timed take longer than those that are. With these two the benchmark takes about a minute.
SHARE_OF_ROUNDS = 3
SECONDS_EACH = 2.0  # for one way and command, at 300 rounds
CHANGED = "0/0"
# The goals: a ratio, or added milliseconds.
STATUS = at_most(1.3)
ADDED_MS = Goal(20.0, of_value=True)
GOALS: dict[tuple[str, int], Goal] = {
    ("git status", SMALL): STATUS,
    ("git status", LARGE): STATUS,
    ("git add", SMALL): ADDED_MS,
    ("git commit", SMALL): ADDED_MS,
    ("git add", LARGE): at_most(2.5),
    ("git commit", LARGE): at_most(2.0),
}
TRUE = ["/bin/true"]
GIT_STATUS = ["/usr/bin/git", "status", "--short"]
GIT_ADD = ["/usr/bin/git", "add", CHANGED]
GIT_COMMIT = ["/usr/bin/git", "commit", "-q", "-m", "changed"]
# A command, and the commands that run before it without being timed. With the last field, a file is changed before both.
COMMANDS: dict[str, tuple[list[str], tuple[list[str], ...], bool]] = {
    "true": (TRUE, (), False),
    "git status": (GIT_STATUS, (), False),
    "git add": (GIT_ADD, (), True),
    "git commit": (GIT_COMMIT, (GIT_ADD,), True),
}
Run = Callable[[list[str]], object]


def measure(options: Options) -> Section:
    """Return the time of each git command with and without a sandbox, for both repositories."""
    rows: list[Row] = []
    notes: list[str] = []
    rounds = -(-options.rounds // SHARE_OF_ROUNDS)
    seconds = SECONDS_EACH * options.rounds / ROUNDS
    with workplace() as folder:
        for files in (SMALL, LARGE):
            ours, theirs = (made_repository(folder / f"{name}-{files}", files) for name in ("contained", "bare"))
            with Sandbox(SandboxConfig(str(ours), profile="workspace")) as box:
                notes.append(f"{files} files: enforcement is {box.run(TRUE).enforcement}")
                for name in COMMANDS:
                    ways = {
                        "corral": _way(name, partial(_contained, box), ours),
                        "bare": _way(name, partial(_bare, theirs), theirs),
                    }
                    times = in_turns(ways, rounds, seconds_each=seconds)
                    rows += _rows(name, files, times["corral"], times["bare"])
    notes.append(
        "each way has a repository of its own with the same history, so that neither sees the changes of the other"
    )
    notes.append("the change of the file before `git add`, and the `git add` before `git commit`, are not timed")
    return Section("what a git command costs", tuple(rows), tuple(notes))


def _rows(name: str, files: int, ours: Timing, bare: Timing) -> list[Row]:
    """Return a row with the ratio and a row with the difference. One of them has the goal."""
    goal = GOALS.get((name, files))
    by_value = goal is not None and goal.of_value
    what = f"{name} in {files} files"
    added = Row(f"{what}: added by corral", ours.ms - bare.ms, "ms", goal=goal if by_value else None)
    return [compared(f"{what}: corral", ours, bare, None if by_value else goal), added]


def _way(name: str, run: Run, project: Path) -> Callable[[], int]:
    """Return a function that prepares a command, runs it, and returns the nanoseconds of the command alone."""
    argv, before, changes = COMMANDS[name]

    def way() -> int:
        if changes:
            with (project / CHANGED).open("a") as file:
                file.write("changed\n")
        for words in before:
            run(words)
        begun = perf_counter_ns()
        run(argv)
        return perf_counter_ns() - begun

    return way


def _contained(box: Sandbox, argv: list[str]) -> None:
    result = box.run(argv)
    if not result.ok or result.violations:
        raise RuntimeError(f"{argv} ended with {result.exit_code}: {result.hint} {result.stderr_text}")


def _bare(project: Path, argv: list[str]) -> None:
    subprocess.run(argv, capture_output=True, check=True, cwd=project)

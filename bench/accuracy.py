"""Compares the answers of corral and other guards on the benign and dangerous commands in bench/cases.toml.

An answer is right if it allows a benign command, or refuses or asks about a dangerous one. None of the commands is run.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench._guards import Place, guards
from bench._place import workplace
from bench._rows import Row, Section
from bench._turns import Options
from corral._lib.records import Record, frozen

AS_USER = False
CASES = Path(__file__).parent / "cases.toml"
CHECK_SECONDS = 60
AT_A_TIME = 2
CONTAINED = "corral workspace"
UNCONTAINED = "corral workspace, not contained"
STRICT = "corral strict"
ANSWERS = {
    "benign": {"allow": "allowed", "ask": "asked", "deny": "refused"},
    "dangerous": {"deny": "refused", "ask": "asked", "allow": "let through"},
}


@frozen
class Case(Record):
    """A command, its kind (benign or dangerous), and its sort."""

    kind: str
    sort: str
    command: str

    def is_right(self, decision: str) -> bool:
        """Return True if a guard's answer is right for the kind of command."""
        return (decision == "allow") == (self.kind == "benign")


def cases() -> list[Case]:
    """Return the cases in bench/cases.toml."""
    read = tomllib.loads(CASES.read_text())
    return [
        Case(kind, sort, command)
        for kind, sorts in read.items()
        for sort, commands in sorts.items()
        for command in commands
    ]


def measure(options: Options) -> Section:
    """Return the answers of every guard to every case."""
    asked = cases()
    with workplace() as folder:
        place = Place(folder)
        found, notes = guards(options.peers, place)
        answers = _ours(asked, place)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for name, hook in found.items():
                said = pool.map(partial(place.decision, hook), [case.command for case in asked])
                answers[name] = list(said)
    rows = [row for name, said in answers.items() for row in _totals(asked, name, said)]
    rows += [row for name, said in answers.items() for row in _by_sort(asked, name, said)]
    notes += [f"{CONTAINED} {text}" for text in _mistakes(asked, answers[CONTAINED])]
    return Section("guards on commands of our own", tuple(rows), tuple(notes))


def _ours(asked: list[Case], place: Place) -> dict[str, list[str]]:
    workspace, strict = (_checked(asked, place, profile) for profile in ("workspace", "strict"))
    # The answer of the hook in a host that cannot rewrite the command: it asks about commands that only the sandbox makes safe.
    alone = ["ask" if (w, s != "allow") == ("allow", True) else w for w, s in zip(workspace, strict, strict=True)]
    return {CONTAINED: workspace, UNCONTAINED: alone, STRICT: strict}


def _checked(asked: list[Case], place: Place, profile: str) -> list[str]:
    lines = "".join(json.dumps({"id": str(i), "shell": case.command}) + "\n" for i, case in enumerate(asked))
    command = [sys.executable, "-m", "corral", "check", "--profile", profile, "--root", place.project, "--jsonl"]
    done = subprocess.run(
        command,
        input=lines,
        env=place.env,
        cwd=place.project,
        capture_output=True,
        text=True,
        check=True,
        timeout=CHECK_SECONDS,
    )
    said = [str(json.loads(line)["decision"]) for line in done.stdout.splitlines()]
    if len(said) != len(asked):
        raise RuntimeError(f"{len(said)} answers to {len(asked)} commands")
    return said


def _totals(asked: list[Case], name: str, said: list[str]) -> Iterator[Row]:
    for kind, words in ANSWERS.items():
        given = [answer for case, answer in zip(asked, said, strict=True) if case.kind == kind]
        for decision, word in words.items():
            yield Row(f"{kind}, {word}: {name}", given.count(decision), f"of {len(given)}")


def _by_sort(asked: list[Case], name: str, said: list[str]) -> Iterator[Row]:
    for kind, sort in dict.fromkeys((case.kind, case.sort) for case in asked):
        of_sort = [pair for pair in zip(asked, said, strict=True) if (pair[0].kind, pair[0].sort) == (kind, sort)]
        right = sum(case.is_right(answer) for case, answer in of_sort)
        yield Row(f"right on {kind}, {sort}: {name}", right, f"of {len(of_sort)}")


def _mistakes(asked: list[Case], said: list[str]) -> Iterator[str]:
    for case, answer in zip(asked, said, strict=True):
        if not case.is_right(answer):
            yield f"{ANSWERS[case.kind][answer]} {json.dumps(case.command)} ({case.kind}, {case.sort})"

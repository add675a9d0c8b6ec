"""Shows that the fuzzer finds a hole that it would have to find: each mutation undoes one fix in a copy of the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import corral

PACKAGE = Path(corral.__file__).parent
TOOL = Path(__file__).parents[1] / "fuzz_bash.py"


def mutate(mutation: dict[str, Any], place: Path) -> str:
    """Copy the source to a place with one mutation; return a complaint if it does not fit."""
    copy = place / "corral"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"), copy_function=os.link)
    for edit in mutation["edits"]:
        path = copy / edit["file"]
        text = path.read_text()
        if text.count(edit["old"]) != 1:
            return f"{edit['file']} has its text {text.count(edit['old'])} times"
        path.unlink()  # the copy is a hard link
        path.write_text(text.replace(edit["old"], edit["new"]))
    return ""


def fuzz(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer on a copy of the source."""
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments], env=environment, capture_output=True, text=True, check=False
    )


def run_mutations(table: str, count: int, seed: int, names: list[str]) -> int:
    """Try every mutation of a table; print which of them the fuzzer finds within `count` scripts."""
    mutations = [m for m in tomllib.loads(Path(table).read_text())["mutation"] if not names or m["cause"] in names]
    amount = ["--count", str(count), "--seed", str(seed)]
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="corral-mutations-", dir="/var/tmp") as folder:
        verdicts = f"{folder}/verdicts"
        fuzz(PACKAGE.parent, *amount, "--write-verdicts", verdicts)
        for mutation in mutations:
            name = mutation["cause"]
            with tempfile.TemporaryDirectory(dir=folder) as place:
                problem = mutate(mutation, Path(place))
                if not problem:
                    done = fuzz(Path(place), *amount, "--max-holes", "1", "--refused-in", verdicts)
                    problem = "" if done.returncode == 1 else f"not found within {count} scripts"
                    if done.returncode > 2:
                        problem = f"the fuzzer failed: {done.stderr.strip().splitlines()[-1:]}"
            if problem:
                missed.append(name)
                print(f"{name:6} {problem}", flush=True)
            else:
                first = done.stdout.splitlines()[0].removeprefix("--- hole ")
                script = done.stdout.split("\n", 1)[1].split("\n---", 1)[0].rsplit("\n", 2)[0]
                print(f"{name:6} found: script {first}: {script!r}", flush=True)
    print(f"{len(mutations) - len(missed)} mutations found, {len(missed)} not: {' '.join(missed)}")
    return 1 if missed else 0

"""Runs benchmarks as an ordinary user, from copies that every user can read, with an interpreter that every user can start."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench._peers import PLACE

NOBODY = 65534
# setpriv looks the program up while it still has root's rights, so a shell does the lookup instead.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"]
GIT_CONFIGURATION = "[user]\n\tname = Nobody\n\temail = nobody@example.org\n"
PACKAGES = ("corral", "tree_sitter", "tree_sitter_bash", "bench")
VERSION = "import sys; print(sys.version_info[:2], sys.implementation.cache_tag)"


class Impossible(Exception):
    """Raised when no benchmark can run as an ordinary user here. The message says why."""


def python_for_all() -> str:
    """Return an interpreter of this version that every user can start."""
    for path in (sys._base_executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):  # type: ignore[attr-defined]  # there since 3.3
        done = subprocess.run([*AS_NOBODY, path, "-I", "-c", VERSION], capture_output=True, text=True, check=False)
        if done.stdout == f"{sys.version_info[:2]} {sys.implementation.cache_tag}\n":
            return str(path)
    raise Impossible(f"no python {sys.version_info[0]}.{sys.version_info[1]} that an ordinary user can start")


@contextmanager
def shelf() -> Iterator[Path]:
    """Yield a directory with copies of the packages and a home directory for an ordinary user."""
    if shutil.which("setpriv") is None:
        raise Impossible("setpriv is not installed")
    python = python_for_all()
    place = Path(tempfile.mkdtemp(prefix="corral-bench-shelf-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        for name in PACKAGES:
            _copy(name, place / "lib")
        # Compile now, as an installer does: the user cannot write the .pyc files, so every process would compile the sources again.
        subprocess.run([python, "-I", "-m", "compileall", "-q", str(place / "lib")], check=True)
        (place / "home").mkdir()
        # Like every user who commits. corral carries the user's name into the sandbox, so without this git would read one file more inside.
        (place / "home" / ".gitconfig").write_text(GIT_CONFIGURATION)
        os.chown(place / "home", NOBODY, NOBODY)
        yield place
    finally:
        shutil.rmtree(place)


def command_of_nobody(names: list[str], rounds: int, *, peers: bool, results: str) -> list[str]:
    """Return the command that runs benchmarks as an ordinary user."""
    words = [
        "--json",
        f"--rounds={rounds}",
        f"--results={results}",
        *([f"--peers={PLACE}"] if peers else ["--no-peers"]),
        *names,
    ]
    return [*AS_NOBODY, python_for_all(), "-m", "bench", *words]


def environment_of(place: Path) -> dict[str, str]:
    """Return the environment of the ordinary user."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place / "home"), "PYTHONPATH": str(place / "lib")}


def report_of_nobody(names: list[str], rounds: int, *, peers: bool) -> dict[str, Any]:
    """Run these benchmarks as an ordinary user, and return their report."""
    with shelf() as place:
        command = command_of_nobody(names, rounds, peers=peers, results=str(place / "home"))
        env = environment_of(place)
        done = subprocess.run(command, cwd=place / "home", env=env, stdout=subprocess.PIPE, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise Impossible(f"the benchmarks ended with {done.returncode} as an ordinary user") from None
    return report


def _copy(name: str, shelf: Path) -> None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise Impossible(f"{name} is not a package that can be copied")
    left_out = shutil.ignore_patterns("__pycache__", ".peers", "results")
    shutil.copytree(Path(spec.origin).parent, shelf / name, ignore=left_out)

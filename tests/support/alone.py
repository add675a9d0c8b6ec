"""Installs a copy of corral and its dependencies outside of any project, as an installer does, and runs it."""

import os
import pty
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import corral

PYTHON = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
PROMPT = b"[y/N] "
DEPENDENCIES = ("tree_sitter", "tree_sitter_bash")


@cache
def _place() -> tempfile.TemporaryDirectory[str]:
    # Not in /tmp: if another test makes /tmp a repository for a moment, everything below would count as its project.
    return tempfile.TemporaryDirectory(prefix="corral-alone-", dir="/var/tmp")


@cache
def lib() -> Path:
    """Return the directory with the package and its dependencies."""
    place = Path(os.path.realpath(_place().name)) / "lib"
    # With the compiled files, which stay valid.
    shutil.copytree(Path(corral.__file__).parent, place / "corral")
    for name in DEPENDENCIES:
        shutil.copytree(Path(sysconfig.get_paths()["platlib"]) / name, place / name)
    for path in (place, *place.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022 | 0o444)
    place.parent.chmod(0o755)
    return place


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a user who has just logged in."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "400", **more}


def command() -> list[str]:
    """Return the command that runs the copy."""
    return [PYTHON, "-I", "-S", str(lib() / "corral" / "__main__.py")]


def run(*words: str, home: Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the copy without a terminal."""
    return subprocess.run(
        [*command(), *words],
        cwd=cwd,
        env={**environment(home), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def at_terminal(*words: str, typed: bytes, home: Path, cwd: Path) -> tuple[int, str]:
    """Run the copy on a terminal, and type the answer when it asks. Return the exit status and the text on the terminal."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*command(), *words], cwd=cwd, env=environment(home), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:
                break
            if not data:
                break
            shown += data
            if typed and shown.endswith(PROMPT):
                os.write(ours, typed)
                typed = b""
        return process.wait(60), shown.decode().replace("\r\n", "\n")
    finally:
        os.close(ours)

"""Measures an agent's command from the hook's start to the command's end, in a session and without one.

Against `python -I -S -c pass`. A user policy is in force, and each judgement and result is written to the audit log.
"""

import json
import shlex
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import corral
from bench._guards import Place
from bench._place import workplace
from bench._rows import Section, at_most
from bench._turns import Options, compared, in_turns
from corral.sessions.queries import await_end, running_sessions

if TYPE_CHECKING:
    from collections.abc import Callable

AS_USER = False
COMMAND = "true"
PYTHON: str = sys._base_executable  # type: ignore[attr-defined]  # there since 3.3
PROGRAM = Path(corral.__file__).parent / "integrations" / "hooks" / "program.py"


def measure(options: Options) -> Section:
    """Return the time of a hook and of the command that it rewrote, measured in turns with the bare interpreter."""
    with workplace() as above:
        with_session, without = (above / name for name in ("with", "without"))
        for folder in (with_session, without):
            folder.mkdir()
        inside, alone = Place(with_session, "sessions = true\n"), Place(without, "sessions = false\n")
        try:
            _run(inside, _rewritten(inside))
            if not running_sessions(inside.env):
                raise RuntimeError("the hook started no session")
            functions: dict[str, Callable[[], object]] = {
                "in a session: the hook": partial(_rewritten, inside),
                "in a session: hook and command": partial(_hook_and_run, inside),
                "without: the hook": partial(_rewritten, alone),
                "without: hook and command": partial(_hook_and_run, alone),
                "bare": partial(subprocess.run, [PYTHON, "-I", "-S", "-c", "pass"], check=True),
            }
            times = in_turns(functions, max(options.rounds // 3, 5), seconds_each=10.0)
        finally:
            _end(inside)
    bare = times.pop("bare")
    goals = {"in a session: hook and command": at_most(2.8)}
    rows = [compared(what, time, bare, goals.get(what)) for what, time in times.items()]
    return Section("an agent's command, hook included, against python -I -S -c pass", tuple(rows))


def _rewritten(place: Place) -> list[str]:
    hook = [PYTHON, "-I", "-S", str(PROGRAM), "claude", *_dependencies()]
    command = json.loads(place.answer(hook, COMMAND))["hookSpecificOutput"]["updatedInput"]["command"]
    return shlex.split(command.partition("; . ")[0])


def _run(place: Place, words: list[str]) -> None:
    subprocess.run(words, env=place.env, cwd=place.project, check=True)


def _hook_and_run(place: Place) -> None:
    _run(place, _rewritten(place))


def _end(place: Place) -> None:
    for session in running_sessions(place.env):
        subprocess.run(["kill", str(session.pid)], check=True)
        await_end(session.pid)


def _dependencies() -> list[str]:
    spec = find_spec("tree_sitter")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parents[1]
    return [] if folder == PROGRAM.parents[3] else [str(folder)]

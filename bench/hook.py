"""Measures a hook process from start to end, against `python -I -S -c pass` and beside the hooks of other guards.

A user policy is in force, and every answer is written to the audit log.
"""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import corral
from bench._guards import Place, guards
from bench._place import workplace
from bench._rows import Section, at_most
from bench._turns import Options, compared, in_turns

AS_USER = False
COMMANDS = ("git status", "ls -la", "pytest -q")
POLICY = """\
[effects]
history = "deny"

[[rule]]
command = "terraform apply"
decision = "deny"
deny = ["terraform apply"]
"""
PYTHON: str = sys._base_executable  # type: ignore[attr-defined]  # there since 3.3
PROGRAM = Path(corral.__file__).parent / "integrations" / "hooks" / "program.py"


def measure(options: Options) -> Section:
    """Return the time of every hook, measured in turns with the bare interpreter."""
    with workplace() as folder:
        place = Place(folder, POLICY)
        ours = [PYTHON, "-I", "-S", str(PROGRAM), "claude", *_dependencies()]
        peers, notes = guards(options.peers, place)
        if '"allow"' not in place.answer(ours, COMMANDS[0]) or '"deny"' not in place.answer(ours, "terraform apply"):
            raise RuntimeError("the hook's answer does not follow the policy")
        functions = {f"{text}: corral": partial(place.answer, ours, text) for text in COMMANDS}
        functions |= {
            f"{COMMANDS[0]}: {name}": partial(place.answer, hook, COMMANDS[0]) for name, hook in peers.items()
        }
        functions["bare"] = partial(place.answer, [PYTHON, "-I", "-S", "-c", "pass"])
        times = in_turns(functions, max(options.rounds // 3, 5), seconds_each=10.0)
    bare = times.pop("bare")
    rows = [compared(what, time, bare, at_most(2.5) if "corral" in what else None) for what, time in times.items()]
    return Section("a hook, policy and audit line included, against python -I -S -c pass", tuple(rows), tuple(notes))


def _dependencies() -> list[str]:
    spec = find_spec("tree_sitter")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parents[1]
    return [] if folder == PROGRAM.parents[3] else [str(folder)]

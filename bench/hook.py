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
from bench._rows import Row, Section, at_most
from bench._turns import Options, compared, in_turns
from corral.model.grant import NETWORK, Grant
from corral.policy.answers.family_grants import store_family_grant
from corral.policy.loader import load

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
DOWNLOAD = "curl https://api.example/x"
MOST = at_most(1.05)  # a stored grant adds at most 1 ms
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
        granted = _granted(folder, ours, options)
    bare = times.pop("bare")
    rows = [compared(what, time, bare, at_most(2.5) if "corral" in what else None) for what, time in times.items()]
    rows.append(granted)
    return Section("a hook, policy and audit line included, against python -I -S -c pass", tuple(rows), tuple(notes))


def _granted(folder: Path, hook: list[str], options: Options) -> Row:
    """Return the time that a grant for a kind of command adds to a call that the posture allows without one."""
    places = {}
    for posture in ("open", "balanced"):
        above = folder / posture
        above.mkdir()
        places[posture] = Place(above, f'posture = "{posture}"\n')
    asked = places["balanced"]
    config = load(asked.project, asked.env).config
    store_family_grant("curl", [Grant(NETWORK, "api.example:443", "in the call")], config, asked.env, channel="bench")
    functions = {name: partial(place.answer, hook, DOWNLOAD) for name, place in places.items()}
    if not all('"allow"' in answer() for answer in functions.values()):
        raise RuntimeError("the hook does not allow the download")
    times = in_turns(functions, max(options.rounds // 3, 5))
    return compared(f"{DOWNLOAD}, by a stored grant beside by the posture", times["balanced"], times["open"], MOST)


def _dependencies() -> list[str]:
    spec = find_spec("tree_sitter")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parents[1]
    return [] if folder == PROGRAM.parents[3] else [str(folder)]

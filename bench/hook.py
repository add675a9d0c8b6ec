"""A hook from start to end, once for every command of an agent, against `python -I -S -c pass`, and beside other guards' hooks.

An owner's policy is in force and every answer is in the audit log. Who does not object to a hard reset is no guard.
"""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import corral
from bench._peers import NODE_PINS, PROCESSOR, PYTHON_PINS, node_modules
from bench._place import make_project, workplace
from bench._rows import Section, at_most
from bench._turns import Options, compared, in_turns

AS_USER = False
COMMANDS = ("git status", "ls -la", "pytest -q")
DANGER = "git reset --hard"
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
DIPPY = "Dippy is on no package registry, so it is not measured"


class Place:
    """An owner's home and a project, and hooks that are run there."""

    def __init__(self, folder: Path) -> None:
        self.project = make_project(folder / "project")
        config = folder / "home" / ".config" / "corral"
        config.mkdir(parents=True)
        (config / "policy.toml").write_text(POLICY)
        self._env = {"HOME": str(folder / "home"), "PATH": os.environ["PATH"], "CLAUDE_PROJECT_DIR": self.project}

    def answer(self, hook: list[str], command: str = "") -> str:
        """Run a hook to its end and return what it says to a command, or to nothing."""
        call = {"hook_event_name": "PreToolUse", "session_id": "b", "tool_use_id": "1", "transcript_path": "/dev/null"}
        payload = {**call, "cwd": self.project, "tool_name": "Bash", "tool_input": {"command": command}}
        data = json.dumps(payload) if command else ""
        return subprocess.run(
            hook, input=data, env=self._env, cwd=self.project, capture_output=True, text=True, check=False
        ).stdout


def measure(options: Options) -> Section:
    """Time every hook once a round, in turns with the bare interpreter."""
    with workplace() as folder:
        place = Place(folder)
        ours = [PYTHON, "-I", "-S", str(PROGRAM), "claude", *_dependencies()]
        peers, notes = _peers(options.peers, place)
        if '"allow"' not in place.answer(ours, COMMANDS[0]) or '"deny"' not in place.answer(ours, "terraform apply"):
            raise RuntimeError("the hook does not answer as the policy says")
        functions = {f"corral hook: {text}": partial(place.answer, ours, text) for text in COMMANDS}
        functions |= {name: partial(place.answer, hook, COMMANDS[0]) for name, hook in peers.items()}
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


def _peers(peers: str, place: Place) -> tuple[dict[str, list[str]], list[str]]:
    """Return the hooks of other guards that are installed and object to what all of them should object to."""
    node = f"{node_modules(peers)}/node-linux-{PROCESSOR}/bin/node"
    script = f"{node_modules(peers)}/cc-safety-net/dist/bin/cc-safety-net.js"
    known = {
        f"nah {PYTHON_PINS['nah']}: git status": [f"{peers}/bin/python", "-m", "nah.hook"],
        f"cc-safety-net {NODE_PINS['cc-safety-net']}: git status": [
            node if os.access(node, os.X_OK) else shutil.which("node") or node,
            script,
            "hook",
            "--claude-code",
        ],
    }
    found: dict[str, list[str]] = {}
    notes = [DIPPY]
    for name, hook in known.items():
        there = peers and all(os.path.exists(word) for word in hook if word.startswith("/"))
        said = place.answer(hook, DANGER) if there else ""
        if '"ask"' in said or '"deny"' in said:
            found[name] = hook
        else:
            notes.append(
                f"{name.partition(':')[0]} " + ("does not object" if there else "is not installed: make bench-peers")
            )
    return found, notes

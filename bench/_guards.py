"""Runs other guards as hooks of Claude Code. A guard that allows `git reset --hard` is not compared."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from bench._peers import NODE_PINS, PROCESSOR, PYTHON_PINS, node_modules, reason_for
from bench._place import make_project

DANGER = "git reset --hard"
HOOK_SECONDS = 30


class Place:
    """A home directory with a project, in which hooks are run."""

    def __init__(self, folder: Path, policy: str = "") -> None:
        home = folder / "home"
        home.mkdir()
        self.home = str(home)
        self.project = make_project(home / "project")
        if policy:
            config = home / ".config" / "corral"
            config.mkdir(parents=True)
            (config / "policy.toml").write_text(policy)
        # A home of its own: the user's settings for a guard must not change the comparison.
        self.env = {"HOME": self.home, "PATH": os.environ["PATH"], "CLAUDE_PROJECT_DIR": self.project}

    def answer(self, hook: list[str], command: str = "") -> str:
        """Run a hook on a command, or on empty input, and return what it prints."""
        return self._asked(hook, command).stdout

    def decision(self, hook: list[str], command: str) -> str:
        """Return allow, ask or deny: the way Claude Code reads the hook's answer."""
        done = self._asked(hook, command)
        if done.returncode == 2:
            return "deny"
        try:
            said = json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"]
        except (ValueError, KeyError, TypeError):
            # Claude Code runs the command if the hook prints nothing, or prints something that it cannot parse.
            return "allow"
        return said if said in {"ask", "deny"} else "allow"

    def _asked(self, hook: list[str], command: str) -> subprocess.CompletedProcess[str]:
        call = {"hook_event_name": "PreToolUse", "session_id": "b", "tool_use_id": "1", "transcript_path": "/dev/null"}
        payload = {**call, "cwd": self.project, "tool_name": "Bash", "tool_input": {"command": command}}
        return subprocess.run(
            hook,
            input=json.dumps(payload) if command else "",
            env=self.env,
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
            timeout=HOOK_SECONDS,
        )


def guards(peers: str, place: Place) -> tuple[dict[str, list[str]], list[str]]:
    """Return the hooks of the other guards that are installed and object to DANGER, and notes that say why the rest are left out."""
    node = f"{node_modules(peers)}/node-linux-{PROCESSOR}/bin/node"
    script = f"{node_modules(peers)}/cc-safety-net/dist/bin/cc-safety-net.js"
    program = node if os.access(node, os.X_OK) else shutil.which("node") or node
    known = {
        "nah": [f"{peers}/bin/python", "-m", "nah.hook"],
        "cc-safety-net": [program, script, "hook", "--claude-code"],
    }
    found: dict[str, list[str]] = {}
    notes = []
    for name, hook in known.items():
        there = peers and all(os.path.exists(word) for word in hook if word.startswith("/"))
        if there and place.decision(hook, DANGER) != "allow":
            found[f"{name} {({**PYTHON_PINS, **NODE_PINS})[name]}"] = hook
        elif there:
            notes.append(f"{name} is not compared: it does not object to {DANGER}")
        else:
            notes.append(
                f"{name} is not compared: {reason_for(peers, name) or 'it is not installed: make bench-peers'}"
            )
    return found, notes

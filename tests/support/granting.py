"""Plays the whole path of a grant: a host's hook refuses, the user answers in a terminal, the host runs the rewritten command."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosting import DEADLINE_SECONDS, PACKAGE, PYTHON, Owner, dependencies
from screen import OrphanScreen

from corral.integrations.hooks.registry import HOSTS

PUSH = "git add -A && git commit -qm x && git push"
END = b"[N]o > "
LINE = re.compile(r"corral allow ([0-9a-f]{4,})")
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")


class GrantingUser(Owner):
    """A user with a project whose remote is a path outside it, on the branch `fix`."""

    def __init__(self, above: Path) -> None:
        super().__init__(above)
        shutil.rmtree(self.root / ".git")
        self.remote = self.home / "remote.git"
        self.git("init", "-q", "--bare", str(self.remote))
        self.git("init", "-q", str(self.root))
        for words in (
            ("config", "user.name", "a"),
            ("config", "user.email", "a@example.com"),
            ("remote", "add", "origin", str(self.remote)),
            ("commit", "-qm", "first", "--allow-empty"),
            ("push", "-q", "-u", "origin", "main"),
            ("switch", "-qc", "fix"),
            ("config", "push.autoSetupRemote", "true"),
        ):
            self.git("-C", str(self.root), *words)
        (self.root / "work.txt").write_text("work\n")

    def git(self, *words: str) -> str:
        """Run the user's git and return its output."""
        environ = self.environ | {"GIT_CONFIG_NOSYSTEM": "1"}
        return subprocess.run([*GIT, *words], env=environ, check=True, capture_output=True, text=True).stdout

    def pushed(self, branch: str = "fix") -> bool:
        """Return whether the remote has the branch with the work."""
        found = subprocess.run(
            ["git", "-C", str(self.remote), "ls-tree", "--name-only", branch],
            capture_output=True,
            text=True,
            check=False,
        )
        return "work.txt" in found.stdout

    def call(self, host: str, text: str, **given: object) -> dict[str, Any]:
        """Return the payload of a shell call, in the mode in which the host's user answers where there is one."""
        record = HOSTS[host]
        return {**record.payload(record.event, {"command": text}, str(self.root)), **given}

    def ask(self, host: str, text: str, **given: object) -> "HookReply":
        """Send a shell call to the hook."""
        return HookReply(self.hook(host, json.dumps(self.call(host, text, **given)).encode()))

    def refused(self, text: str, host: str = "claude", **given: object) -> str:
        """Send a shell call that is refused with a line for the user; return the id in that line."""
        reply = self.ask(host, text, **given)
        found = LINE.search(reply.reason)
        assert (reply.decision, bool(found)) == ("deny", True), reply
        assert found is not None
        return found[1]

    def corral(self, *words: str) -> list[str]:
        """Return the command that runs corral."""
        return [
            PYTHON,
            "-I",
            "-S",
            str(PACKAGE / "__main__.py"),
            *(f"--path={each}" for each in dependencies()),
            *words,
        ]

    def corral_text(self, *words: str) -> str:
        """Return the same as shell text."""
        return shlex.join(self.corral(*words))

    @contextmanager
    def terminal(self, *words: str, columns: int = 80, **environ: str) -> Iterator[OrphanScreen]:
        """Run corral in a terminal of the user."""
        env = {**self.environ, "NO_COLOR": "1", "LANG": "C.UTF-8", **environ}
        # `env -i`, because the terminal of a test has the test's own directories for state and policy.
        command = ["env", "-i", "TERM=xterm", *(f"{name}={value}" for name, value in env.items()), *self.corral(*words)]
        shown = OrphanScreen(command, self.root, columns=columns)
        try:
            yield shown
        finally:
            shown.close()

    def allow(self, id_: str, keys: bytes = b"o\r") -> tuple[str, int]:
        """Answer a refusal in a terminal; return the question and the exit code."""
        with self.terminal("allow", id_) as shown:
            text = shown.until(END).decode().replace("\r\n", "\n")
            shown.type(keys)
            return text, shown.status()

    def run(self, command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a rewritten command as the host's shell does."""
        return subprocess.run(
            ["bash", "-c", command],
            env=self.environ | environ,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_SECONDS,
            start_new_session=True,
        )

    def run_as_user(self, text: str) -> None:
        """Run shell text outside the sandbox, as a child of no process of the developer's."""
        words = ["env", "-i", "TERM=xterm", *(f"{name}={value}" for name, value in self.environ.items())]
        shown = OrphanScreen([*words, "bash", "-c", text], self.root)
        try:
            shown.status()
        finally:
            shown.close()


class HookReply:
    """The parts of a hook's answer that every host has."""

    def __init__(self, done: "subprocess.CompletedProcess[bytes]") -> None:
        self.output = json.loads(done.stdout) if done.stdout.strip() else {}
        self.status = done.returncode
        inner = self.output.get("hookSpecificOutput", {})
        body = inner if "permissionDecision" in inner else self.output
        keys = ("permissionDecision", "decision", "permission")
        self.decision = next((body[key] for key in keys if key in body), "allow")
        reasons = ("permissionDecisionReason", "reason", "user_message", "userMessage")
        self.reason = str(next((body[key] for key in reasons if key in body), ""))
        places = (inner.get("updatedInput"), inner.get("tool_input"), body.get("modifiedArgs"), body.get("args"))
        found = next((each["command"] for each in places if isinstance(each, dict)), body.get("command", ""))
        self.command = str(found)

    def __repr__(self) -> str:
        return f"{self.decision} (exit {self.status}): {json.dumps(self.output)}"


@contextmanager
def granting_user(kind: type[GrantingUser] = GrantingUser) -> Iterator[GrantingUser]:
    """Make a user with a project. Not below /tmp, because every sandbox has its own /tmp."""
    with tempfile.TemporaryDirectory(prefix="corral-granting-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield kind(Path(os.path.realpath(folder)))

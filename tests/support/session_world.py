"""Plays an agent whose commands run in a session: the hook rewrites each command, and a shell runs what it became."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosting import DEADLINE_SECONDS, PACKAGE, PROGRAM, PYTHON, Owner, dependencies
from observe import eventually

from corral.sessions import protocol
from corral.sessions.client import connect


class Agent(Owner):
    """A user with sessions turned on, and an agent at work in the project."""

    def __init__(self, above: Path, policy: str = "sessions = true\n") -> None:
        super().__init__(above)
        self.policy(policy)
        self.program = PROGRAM
        self.sockets = self.state / "sessions"

    def install(self, folder: Path) -> None:
        """Copy corral, so that the hook runs another installation of it."""
        shutil.copytree(PACKAGE, folder / "corral", ignore=shutil.ignore_patterns("__pycache__"))
        self.program = folder / "corral" / PROGRAM.relative_to(PACKAGE)

    def answer(self, payload: dict[str, object]) -> "subprocess.CompletedProcess[bytes]":
        """Return the answer of the hook."""
        words = [PYTHON, "-I", "-S", str(self.program), "claude", *dependencies()]
        return subprocess.run(
            words,
            input=json.dumps(payload).encode(),
            env=self.environ,
            cwd=self.root,
            capture_output=True,
            check=False,
            timeout=DEADLINE_SECONDS,
        )

    def rewrite(self, text: str, session: str = "one", **given: object) -> str:
        """Return the line into which the hook rewrites a command."""
        call = {"hook_event_name": "PreToolUse", "session_id": session, "cwd": str(self.root), "tool_name": "Bash"}
        done = self.answer({**call, "tool_input": {"command": text, **given}})
        assert done.returncode == 0, done
        return str(json.loads(done.stdout)["hookSpecificOutput"]["updatedInput"]["command"])

    def start(self, line: str, **options: object) -> "subprocess.Popen[bytes]":
        """Start a line as the host does."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        keywords = {**streams, "env": self.environ, "cwd": self.root, **options}
        return subprocess.Popen(["bash", "-c", line], **keywords)  # type: ignore[call-overload,no-any-return]

    def run_line(self, line: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        """Run a line as the host does."""
        return subprocess.run(
            ["bash", "-c", line],
            env=self.environ,
            cwd=self.root,
            input=stdin,
            capture_output=True,
            check=False,
            timeout=DEADLINE_SECONDS,
        )

    def run(self, text: str, session: str = "one", stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        """Run a command as the agent."""
        return self.run_line(self.rewrite(text, session), stdin)

    def services(self) -> list[int]:
        """Return the pids of the services that answer."""
        return [int(facts["pid"]) for facts in self.facts()]

    def facts(self) -> "list[dict[str, object]]":
        """Return what each session says about itself."""
        found = []
        for path in sorted(self.sockets.glob("*.socket")) if self.sockets.is_dir() else []:
            sock = connect(str(path))
            if sock is not None:
                try:
                    protocol.send(sock, (protocol.LIST,))
                    answer, _ = protocol.receive(sock)
                except OSError:
                    answer = ()  # it was killed
                sock.close()
                found += [answer[1]] if answer else []
        return found

    def was_in_session(self, text: str) -> bool:
        """Say whether the service logged the last run of a command."""
        entries = [json.loads(line) for line in (self.state / "audit" / "log.jsonl").read_text().splitlines()]
        runs = [entry for entry in entries if entry.get("event") == "run" and entry.get("shell") == text]
        return bool(runs) and runs[-1]["pid"] in self.services()

    def end(self) -> None:
        """End all services."""
        for pid in self.services():
            os.kill(pid, signal.SIGTERM)
            eventually(lambda pid=pid: not is_running(pid))


@contextmanager
def working(above: Path, policy: str = "sessions = true\n") -> Iterator[Agent]:
    """Yield an agent, and end its sessions afterwards."""
    agent = Agent(above, policy)
    try:
        yield agent
    finally:
        agent.end()


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    eventually(path.exists)


def is_running(pid: int) -> bool:
    """Say whether a process runs. One that has ended may not be reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False

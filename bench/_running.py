"""Runs commands in another sandbox and checks that it confines them. Each sandbox has a project and a home of its own."""

import json
import os
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path
from typing import IO, Any

from bench._peers import HERE, NODE_PINS, Missing, Peer, installed_version, node_modules, reason_for, site_packages

CANARY = "echo in > inside.txt; echo out > ../outside/victim.txt"
PEER_SECONDS = 30  # for one command; ends a peer that hangs


class Running:
    """A peer with a project of its own. Each call runs one command to its end, and returns nanoseconds if the peer measures them."""

    def __init__(self, peer: Peer, place: str, project: str) -> None:
        for program in peer.needs:
            if shutil.which(program) is None:
                raise Missing(reason_for(place, peer.package) or f"it needs {program}, which is not installed")
        self.peer = peer
        self.project = project
        self.name = f"{peer.name} {installed_version(peer)}"
        self._place = place
        self._worker: Worker | None = None
        if peer.command is None or peer.package in NODE_PINS:
            _see(peer, place)
        # A home of its own: the user's settings for a tool must not change the comparison.
        home, temporary = f"{project}.home", f"{project}.tmp"
        for folder in (home, temporary):
            os.makedirs(folder, exist_ok=True)
        # A temporary directory of its own too: the files that a tool leaves behind must not lie in the shared one.
        self.env = {**os.environ, "HOME": home, "CODEX_HOME": home, "TMPDIR": temporary}
        if peer.command is None:
            self._worker = self.worker()

    def worker(self) -> "Worker":
        """Return a process that has loaded the peer's library."""
        # git fails if it cannot read its home directory.
        env = {**self.env, "PYTHONPATH": site_packages(self._place), "HOME": self.project}
        return Worker(self.peer.name, self.project, env)

    def command(self, argv: list[str]) -> list[str]:
        """Return the whole command that runs an argv. The peer must be a program."""
        assert self.peer.command is not None
        return self.peer.command(self._place, self.project, argv)

    def run(self, argv: list[str]) -> int | None:
        """Run a command. Raise Missing if it fails."""
        if self._worker is not None:
            return int(self._worker.ask(argv)["ns"])
        done = self._call(argv)
        if done.returncode:
            raise Missing(f"it ends {argv[0]} with {done.returncode}: {_gist(done.stderr)}")
        return None

    def attempt(self, argv: list[str]) -> str:
        """Run a command that may fail, and return what it printed."""
        try:
            if self._worker is not None:
                self._worker.ask(argv)
                return ""
            return _gist(self._call(argv).stderr)
        except Missing as error:
            return str(error)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()

    def _call(self, argv: list[str]) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                self.command(argv),
                cwd=self.project,
                env=self.env,
                capture_output=True,
                check=False,
                timeout=PEER_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"it did not end {argv[0]} within {PEER_SECONDS} seconds") from None


class Worker:
    """A process that runs commands with a library and returns the time of each: see _worker.py."""

    def __init__(self, name: str, project: str, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(HERE / "_worker.py"), name, project],
            cwd=project,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def ask(self, argv: list[str], *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Run a command. Without a time limit it must succeed."""
        print(json.dumps([argv, timeout_seconds]), file=_stream(self._process.stdin), flush=True)
        line = _stream(self._process.stdout).readline()
        if not line:
            raise Missing("its process ended")
        answer: dict[str, Any] = json.loads(line)
        if answer["exit_code"] and timeout_seconds is None:
            raise Missing(f"it ends {argv[0]} with {answer['exit_code']}: {answer['said']}")
        return answer

    def close(self) -> None:
        """End the process."""
        _stream(self._process.stdin).close()
        try:
            self._process.wait(PEER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _stream(self._process.stdout).close()


def canary(peer: Running, outside: Path) -> None:
    """Try to write outside the peer's project. Raise Missing if that works, or if writing inside the project fails."""
    victim, inside = outside / "victim.txt", Path(peer.project) / "inside.txt"
    said = peer.attempt(["/bin/sh", "-c", CANARY])
    escaped, worked = victim.exists(), inside.exists()
    victim.unlink(missing_ok=True)
    inside.unlink(missing_ok=True)
    if escaped:
        raise Missing("it does not enforce: the canary wrote outside the project")
    if not worked:
        raise Missing(f"it does not run here: {said or 'the canary could not write inside the project'}")


def _see(peer: Peer, place: str) -> None:
    path = f"{node_modules(place)}/{peer.package}" if peer.package in NODE_PINS else site_packages(place)
    if path and os.path.exists(path) and not os.access(path, os.R_OK | os.X_OK):
        raise Missing("this user cannot read the directory it is installed in")
    found = (
        os.path.isdir(path) if peer.package in NODE_PINS else path and glob(f"{path}/{peer.package.replace('-', '_')}")
    )
    if not found:
        raise Missing(reason_for(place, peer.package) or "it is not installed: make bench-peers")


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _gist(text: bytes) -> str:
    """Return the most useful line of an error message: the first that contains "error", or the last."""
    lines = text.decode("utf-8", "replace").strip().splitlines() or ["without a word"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:200]

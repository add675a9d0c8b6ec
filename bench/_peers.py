"""Other sandboxes as a table: which version, how one is asked to run a command in a project. What writes outside is no peer.

All are asked for the same: the system readable, the project writable, no network, and nothing left running.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import IO

from corral.frozen import Record, frozen

HERE = Path(__file__).parent
PLACE = HERE / ".peers"
REASONS = "reasons.json"
PROCESSOR = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
PYTHON_PINS = {"sandlock": "0.9.0", "nono-py": "0.16.0", "nah": "0.11.0"}
# The last is the interpreter: sandbox-runtime wants one that is newer than Debian's.
NODE_PINS = {
    "@anthropic-ai/sandbox-runtime": "0.0.83",
    "@openai/codex": "0.166.0",
    "cc-safety-net": "2.4.5",
    f"node-linux-{PROCESSOR}": "24.21.0",
}
# The last two are for sandbox-runtime.
DEBIAN = ("bubblewrap", "firejail", "socat", "ripgrep")
CANARY = "echo in > inside.txt; echo out > ../outside/victim.txt"
PEER_SECONDS = 120


class Missing(Exception):
    """Why a peer cannot be used here."""


@frozen
class Peer(Record):
    """A sandbox beside ours. `command` gives what runs an argv in a project; one with a worker is a library."""

    name: str
    package: str
    command: Callable[[str, str], list[str]] | None = None
    needs: tuple[str, ...] = ()


def node_modules(place: str) -> str:
    """Return where npm has put its packages."""
    return f"{place}/node_modules"


def site_packages(place: str) -> str:
    """Return where pip has put its packages, or nothing."""
    return next(iter(glob(f"{place}/lib/python*/site-packages")), "")


def _bubblewrap(_: str, project: str) -> list[str]:
    view = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind", project, project]
    return ["bwrap", *view, "--unshare-all", "--die-with-parent", "--new-session", "--chdir", project, "--"]


def _firejail(_: str, project: str) -> list[str]:
    view = ["--keep-var-tmp", "--private-tmp", "--read-only=/", f"--read-write={project}"]
    return ["firejail", "--quiet", "--noprofile", "--net=none", *view, "--"]


def _srt(place: str, project: str) -> list[str]:
    settings = f"{project}.settings.json"
    Path(settings).write_text(
        json.dumps(
            {
                "filesystem": {"denyRead": [], "allowWrite": [project], "denyWrite": []},
                "network": {"allowedDomains": [], "deniedDomains": []},
            }
        )
    )
    node = f"{node_modules(place)}/node-linux-{PROCESSOR}/bin/node"
    program = f"{node_modules(place)}/@anthropic-ai/sandbox-runtime/dist/cli.js"
    return [node if os.access(node, os.X_OK) else "node", program, "--settings", settings, "--"]


def _codex(place: str, project: str) -> list[str]:
    # The program itself: the package's own starter is a node script, which costs as much again.
    found = glob(f"{node_modules(place)}/@openai/codex-linux-{PROCESSOR}/vendor/*/bin/codex")
    if not found:
        raise Missing("the package holds no program for this machine")
    return [found[0], "sandbox", "-P", ":workspace", "-C", project, "--"]


PEERS = (
    Peer("bubblewrap", "bubblewrap", _bubblewrap, ("bwrap",)),
    Peer("nono-py", "nono-py"),
    Peer("sandlock", "sandlock"),
    Peer("firejail", "firejail", _firejail, ("firejail",)),
    Peer("codex", "@openai/codex", _codex),
    Peer("srt", "@anthropic-ai/sandbox-runtime", _srt, ("bwrap", "socat", "rg")),
)


class Running:
    """A peer at work in a project of its own; every call runs one command to its end and returns nanoseconds or nothing."""

    def __init__(self, peer: Peer, place: str, project: str) -> None:
        for program in peer.needs:
            if shutil.which(program) is None:
                raise Missing(reason(place, peer) or f"it needs {program}, which is not installed")
        self.project = project
        self._worker: subprocess.Popen[str] | None = None
        self._prefix: list[str] = []
        if peer.command is None or peer.package in NODE_PINS:
            _see(peer, place)
        # Where a tool keeps its settings is not part of the comparison, and must not be the owner's own.
        home = f"{project}.home"
        os.makedirs(home, exist_ok=True)
        self._env = {**os.environ, "HOME": home, "CODEX_HOME": home}
        if peer.command is None:
            self._worker = _start_worker(peer, place, project, self._env)
        else:
            self._prefix = peer.command(place, project)

    def run(self, argv: list[str]) -> int | None:
        """Run a command; Missing when it does not end well."""
        if self._worker is not None:
            return self._ask(argv)
        done = self._call(argv)
        if done.returncode:
            raise Missing(f"it ends {argv[0]} with {done.returncode}: {_gist(done.stderr)}")
        return None

    def attempt(self, argv: list[str]) -> str:
        """Run a command that may fail, and return what was said."""
        try:
            if self._worker is not None:
                self._ask(argv)
                return ""
            return _gist(self._call(argv).stderr)
        except (Missing, subprocess.TimeoutExpired) as error:
            return str(error)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            _stream(self._worker.stdin).close()
            self._worker.wait(PEER_SECONDS)
            _stream(self._worker.stdout).close()

    def _call(self, argv: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self._prefix, *argv],
            cwd=self.project,
            env=self._env,
            capture_output=True,
            check=False,
            timeout=PEER_SECONDS,
        )

    def _ask(self, argv: list[str]) -> int:
        assert self._worker is not None
        print(json.dumps(argv), file=_stream(self._worker.stdin), flush=True)
        line = _stream(self._worker.stdout).readline()
        if not line:
            raise Missing("its process ended")
        answer = json.loads(line)
        if answer["exit_code"]:
            raise Missing(f"it ends {argv[0]} with {answer['exit_code']}: {answer['said']}")
        return int(answer["ns"])


def canary(peer: Running, outside: Path) -> None:
    """Let a peer try to write beside its project; Missing when it can, or when it cannot even write inside."""
    victim, inside = outside / "victim.txt", Path(peer.project) / "inside.txt"
    said = peer.attempt(["/bin/sh", "-c", CANARY])
    escaped, worked = victim.exists(), inside.exists()
    victim.unlink(missing_ok=True)
    inside.unlink(missing_ok=True)
    if escaped:
        raise Missing("it does not enforce: the canary wrote outside the project")
    if not worked:
        raise Missing(f"it does not run here: {said or 'the canary could not write inside the project'}")


def installed_version(peer: Peer) -> str:
    """Return the version that is measured."""
    pinned = {**PYTHON_PINS, **NODE_PINS}.get(peer.package)
    if pinned is not None:
        return pinned
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", peer.package], capture_output=True, text=True, check=False
    )
    return done.stdout or "of unknown version"


def reason(place: str, peer: Peer) -> str:
    """Return why a peer was not installed, as `make bench-peers` noted it."""
    try:
        reasons: dict[str, str] = json.loads(Path(place, REASONS).read_text())
    except (OSError, ValueError):
        return ""
    return reasons.get(peer.package, "")


def _see(peer: Peer, place: str) -> None:
    path = f"{node_modules(place)}/{peer.package}" if peer.package in NODE_PINS else site_packages(place)
    if path and os.path.exists(path) and not os.access(path, os.R_OK | os.X_OK):
        raise Missing("this user cannot read where it is installed")
    found = (
        os.path.isdir(path) if peer.package in NODE_PINS else path and glob(f"{path}/{peer.package.replace('-', '_')}")
    )
    if not found:
        raise Missing(reason(place, peer) or "it is not installed: make bench-peers")


def _start_worker(peer: Peer, place: str, project: str, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-B", str(HERE / "_worker.py"), peer.name, project]
    return subprocess.Popen(
        command,
        cwd=project,
        # A home that it may not read makes git give up.
        env={**env, "PYTHONPATH": site_packages(place), "HOME": project},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _gist(text: bytes) -> str:
    """Return the line of a complaint that says most: the first that calls itself an error, or the last."""
    lines = text.decode("utf-8", "replace").strip().splitlines() or ["without a word"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:200]

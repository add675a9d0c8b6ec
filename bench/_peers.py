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
from itertools import count
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from corral.frozen import Record, frozen

HERE = Path(__file__).parent
PLACE = HERE / ".peers"
REASONS = "reasons.json"
PROCESSOR = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
PYTHON_PINS = {"sandlock": "0.9.0", "nono-py": "0.16.0", "nah": "0.11.0"}
# What spreads calls over machines; beside the peers, since it is large.
ENGINES = {"ray": "2.60.0"}
# What is compared with elsewhere in the docs and cannot be had from a registry that pip, npm or apt ask.
ELSEWHERE = {
    "dcg": "on neither PyPI nor npm; the package of this name on PyPI is another project",
    "Dippy": "on neither PyPI nor npm; the package of this name on PyPI is another project",
    "nono's own program": "on neither PyPI nor npm; its Python library nono-py is measured",
    "Claude Code": "its sandbox is @anthropic-ai/sandbox-runtime, which is measured (srt)",
}
# The last is the interpreter: sandbox-runtime wants one that is newer than Debian's.
NODE_PINS = {
    "@anthropic-ai/sandbox-runtime": "0.0.83",
    "@openai/codex": "0.166.0",
    "cc-safety-net": "2.4.5",
    f"node-linux-{PROCESSOR}": "24.21.0",
}
# The last two are for sandbox-runtime.
DEBIAN = ("bubblewrap", "firejail", "runsc", "socat", "ripgrep")
CANARY = "echo in > inside.txt; echo out > ../outside/victim.txt"
PEER_SECONDS = 30  # for one command, against a peer that hangs
GVISOR_MOUNTS = {"/proc": "proc", "/dev": "tmpfs", "/tmp": "tmpfs"}
_CONTAINERS = count()


class Missing(Exception):
    """Why a peer cannot be used here."""


@frozen
class Peer(Record):
    """A sandbox beside ours. `command` gives the whole command that runs an argv in a project; one without is a library."""

    name: str
    package: str
    command: Callable[[str, str, list[str]], list[str]] | None = None
    needs: tuple[str, ...] = ()
    leaves_files: bool = False  # in the directory for temporary files, when it is killed


def node_modules(place: str) -> str:
    """Return where npm has put its packages."""
    return f"{place}/node_modules"


def site_packages(place: str) -> str:
    """Return where pip has put its packages, or nothing."""
    return next(iter(glob(f"{place}/lib/python*/site-packages")), "")


def _bubblewrap(_: str, project: str, argv: list[str]) -> list[str]:
    view = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind", project, project]
    return ["bwrap", *view, "--unshare-all", "--die-with-parent", "--new-session", "--chdir", project, "--", *argv]


def _firejail(_: str, project: str, argv: list[str]) -> list[str]:
    view = ["--keep-var-tmp", "--private-tmp", "--read-only=/", f"--read-write={project}"]
    return ["firejail", "--quiet", "--noprofile", "--net=none", *view, "--", *argv]


def _srt(place: str, project: str, argv: list[str]) -> list[str]:
    settings = f"{project}.settings.json"
    files = {"denyRead": [], "allowWrite": [project], "denyWrite": []}
    _write_once(settings, {"filesystem": files, "network": {"allowedDomains": [], "deniedDomains": []}})
    node = f"{node_modules(place)}/node-linux-{PROCESSOR}/bin/node"
    program = f"{node_modules(place)}/@anthropic-ai/sandbox-runtime/dist/cli.js"
    return [node if os.access(node, os.X_OK) else "node", program, "--settings", settings, "--", *argv]


def _codex(place: str, project: str, argv: list[str]) -> list[str]:
    # The program itself: the package's own starter is a node script, which costs as much again.
    found = glob(f"{node_modules(place)}/@openai/codex-linux-{PROCESSOR}/vendor/*/bin/codex")
    if not found:
        raise Missing("the package holds no program for this machine")
    return [found[0], "sandbox", "-P", ":workspace", "-C", project, "--", *argv]


def _gvisor(_: str, project: str, argv: list[str]) -> list[str]:
    # A container has its command in its bundle, so each command is a bundle of its own.
    bundle = f"{project}.bundles/{crc32(repr(argv).encode())}"
    mounts: list[dict[str, Any]] = [
        {"destination": at, "type": kind, "source": kind} for at, kind in GVISOR_MOUNTS.items()
    ]
    mounts.append({"destination": project, "type": "bind", "source": project, "options": ["rw", "rbind"]})
    process: dict[str, Any] = {"args": argv, "cwd": project, "env": [f"PATH={os.environ['PATH']}", "HOME=/tmp"]}
    process |= {"user": {"uid": os.geteuid(), "gid": os.getegid()}, "noNewPrivileges": True}
    namespaces = [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
    config: dict[str, Any] = {
        "ociVersion": "1.0.0",
        "process": process,
        "root": {"path": "/", "readonly": True},
        "mounts": mounts,
    }
    os.makedirs(bundle, exist_ok=True)
    _write_once(f"{bundle}/config.json", {**config, "linux": {"namespaces": namespaces}})
    rights = [] if os.geteuid() == 0 else ["--rootless"]
    flags = ["--network=none", "--ignore-cgroups", f"--root={project}.state", *rights]
    return ["runsc", *flags, "run", f"--bundle={bundle}", f"bench-{os.getpid()}-{next(_CONTAINERS)}"]


def _write_once(path: str, settings: dict[str, Any]) -> None:
    if not os.path.exists(path):
        Path(path).write_text(json.dumps(settings))


PEERS = (
    Peer("bubblewrap", "bubblewrap", _bubblewrap, ("bwrap",)),
    Peer("nono-py", "nono-py"),
    Peer("sandlock", "sandlock"),
    Peer("firejail", "firejail", _firejail, ("firejail",)),
    Peer("codex", "@openai/codex", _codex),
    Peer("gVisor", "runsc", _gvisor, ("runsc",)),
    Peer("srt", "@anthropic-ai/sandbox-runtime", _srt, ("bwrap", "socat", "rg"), leaves_files=True),
)


class Running:
    """A peer at work in a project of its own; every call runs one command to its end and returns nanoseconds or nothing."""

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
        # Where a tool keeps its settings is not part of the comparison, and must not be the owner's own.
        home = f"{project}.home"
        os.makedirs(home, exist_ok=True)
        self.env = {**os.environ, "HOME": home, "CODEX_HOME": home}
        if peer.leaves_files:
            self.env["TMPDIR"] = home
        if peer.command is None:
            self._worker = self.worker()

    def worker(self) -> "Worker":
        """Return a process with the peer's library in it."""
        # A home that it may not read makes git give up.
        env = {**self.env, "PYTHONPATH": site_packages(self._place), "HOME": self.project}
        return Worker(self.peer.name, self.project, env)

    def command(self, argv: list[str]) -> list[str]:
        """Return the whole command that runs an argv; only of one that is a program."""
        assert self.peer.command is not None
        return self.peer.command(self._place, self.project, argv)

    def run(self, argv: list[str]) -> int | None:
        """Run a command; Missing when it does not end well."""
        if self._worker is not None:
            return int(self._worker.ask(argv)["ns"])
        done = self._call(argv)
        if done.returncode:
            raise Missing(f"it ends {argv[0]} with {done.returncode}: {_gist(done.stderr)}")
        return None

    def attempt(self, argv: list[str]) -> str:
        """Run a command that may fail, and return what was said."""
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
    """A process that runs commands by a library and tells how long each took: see _worker.py."""

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
        """Run a command; without a time limit it must end well."""
        print(json.dumps([argv, timeout_seconds]), file=_stream(self._process.stdin), flush=True)
        line = _stream(self._process.stdout).readline()
        if not line:
            raise Missing("its process ended")
        answer: dict[str, Any] = json.loads(line)
        if answer["exit_code"] and timeout_seconds is None:
            raise Missing(f"it ends {argv[0]} with {answer['exit_code']}: {answer['said']}")
        return answer

    def close(self) -> None:
        """End it."""
        _stream(self._process.stdin).close()
        try:
            self._process.wait(PEER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _stream(self._process.stdout).close()


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
    return {**PYTHON_PINS, **NODE_PINS}.get(peer.package) or packaged_version(peer.package)


def packaged_version(package: str) -> str:
    """Return the version that Debian has installed."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False
    )
    return done.stdout or "of unknown version"


def reason_for(place: str, package: str) -> str:
    """Return why a package was not installed, as `make bench-peers` noted it."""
    try:
        reasons: dict[str, str] = json.loads(Path(place, REASONS).read_text())
    except (OSError, ValueError):
        return ""
    return reasons.get(package, "")


def _see(peer: Peer, place: str) -> None:
    path = f"{node_modules(place)}/{peer.package}" if peer.package in NODE_PINS else site_packages(place)
    if path and os.path.exists(path) and not os.access(path, os.R_OK | os.X_OK):
        raise Missing("this user cannot read where it is installed")
    found = (
        os.path.isdir(path) if peer.package in NODE_PINS else path and glob(f"{path}/{peer.package.replace('-', '_')}")
    )
    if not found:
        raise Missing(reason_for(place, peer.package) or "it is not installed: make bench-peers")


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _gist(text: bytes) -> str:
    """Return the line of a complaint that says most: the first that calls itself an error, or the last."""
    lines = text.decode("utf-8", "replace").strip().splitlines() or ["without a word"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:200]

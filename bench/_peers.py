"""Other sandboxes as a table: which version, how one is asked to run a command in a project. What writes outside is no peer.

All are asked for the same: the system readable, the project writable, no network, and nothing left running.
"""

import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from glob import glob
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

from bench._place import ABOVE
from corral._lib.records import Record, frozen

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
GVISOR_MOUNTS = {"/proc": "proc", "/dev": "tmpfs", "/tmp": "tmpfs"}
_CONTAINERS = count()


class Missing(Exception):
    """Why a peer cannot be used here, without the name of a directory that is gone afterwards."""

    def __init__(self, why: str) -> None:
        super().__init__(re.sub(rf"{ABOVE}/corral-bench-\w+/", "", why))


@frozen
class Peer(Record):
    """A sandbox beside ours. `command` gives the whole command that runs an argv in a project; one without is a library."""

    name: str
    package: str
    command: Callable[[str, str, list[str]], list[str]] | None = None
    needs: tuple[str, ...] = ()


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
    # Its own profile also grants /tmp, where what it masks there stays when it is killed.
    rights = 'permissions.bench={extends=":workspace",filesystem={":slash_tmp"="read"}}'
    return [found[0], "sandbox", "-P", "bench", "-c", rights, "-C", project, "--", *argv]


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
    Peer("srt", "@anthropic-ai/sandbox-runtime", _srt, ("bwrap", "socat", "rg")),
)


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

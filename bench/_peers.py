"""The table of other sandboxes: the version of each, and how it runs a command in a project.

All get the same settings: the system is readable, the project is writable, there is no network, and no process outlives the command.
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
# Spreads calls over machines. It has a directory of its own because it is large.
ENGINES = {"ray": "2.60.0"}
# The docs compare corral with these tools too, but neither pip, npm nor apt can install them.
ELSEWHERE = {
    "dcg": "on neither PyPI nor npm; the package of this name on PyPI is another project",
    "Dippy": "on neither PyPI nor npm; the package of this name on PyPI is another project",
    "nono's own program": "on neither PyPI nor npm; its Python library nono-py is measured",
    "Claude Code": "its sandbox is @anthropic-ai/sandbox-runtime, which is measured (srt)",
}
# The last is the interpreter: sandbox-runtime needs a newer one than Debian has.
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
    """Raised when a peer cannot be used here. The message leaves out the names of temporary directories."""

    def __init__(self, why: str) -> None:
        super().__init__(re.sub(rf"{ABOVE}/corral-bench-\w+/", "", why))


@frozen
class Peer(Record):
    """Another sandbox. `command` returns the whole command that runs an argv in a project; without it the sandbox is a library."""

    name: str
    package: str
    command: Callable[[str, str, list[str]], list[str]] | None = None
    needs: tuple[str, ...] = ()


def node_modules(place: str) -> str:
    """Return the directory of the npm packages."""
    return f"{place}/node_modules"


def site_packages(place: str) -> str:
    """Return the directory of the pip packages, or an empty text."""
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
    # Start the program itself: the package's launcher is a node script, which doubles the cost.
    found = glob(f"{node_modules(place)}/@openai/codex-linux-{PROCESSOR}/vendor/*/bin/codex")
    if not found:
        raise Missing("the package has no program for this machine")
    # Its own profile also grants /tmp, and the files that it masks there stay behind when it is killed.
    rights = 'permissions.bench={extends=":workspace",filesystem={":slash_tmp"="read"}}'
    return [found[0], "sandbox", "-P", "bench", "-c", rights, "-C", project, "--", *argv]


def _gvisor(_: str, project: str, argv: list[str]) -> list[str]:
    # A container's bundle holds its command, so each command gets a bundle of its own.
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
    """Return the version of a peer that is measured."""
    return {**PYTHON_PINS, **NODE_PINS}.get(peer.package) or packaged_version(peer.package)


def packaged_version(package: str) -> str:
    """Return the version of an installed Debian package."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False
    )
    return done.stdout or "of unknown version"


def reason_for(place: str, package: str) -> str:
    """Return the reason that `make bench-peers` noted for a package that is not installed."""
    try:
        reasons: dict[str, str] = json.loads(Path(place, REASONS).read_text())
    except (OSError, ValueError):
        return ""
    return reasons.get(package, "")

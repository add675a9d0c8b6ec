"""Starts a real sandbox and lets one command inspect it from inside."""

from __future__ import annotations

import json
import os
import sys
import tempfile

from corral._lib.records import Record, frozen
from corral.apps.unguarded import state_dirs_in, unguarded
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.model.errors import CorralError
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import SandboxConfig

TIMEOUT_SECONDS = 20.0
# Opens and creates files, and writes nothing to existing ones.
PROGRAM = """
import json, os, resource, sys
def can(path, flags):
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    if flags & os.O_CREAT:
        os.unlink(path)
    return True
def writable(path):
    name = path + "/.corral-doctor-%d" % os.getpid()
    return can(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) if os.path.isdir(path) else can(path, os.O_WRONLY)
def text(path):
    try:
        return open(path, errors="replace").read()
    except OSError:
        return ""
home, tmp = os.environ.get("HOME", ""), os.environ.get("TMPDIR", "/tmp")
print(json.dumps({
    "status": dict(line.split(":", 1) for line in text("/proc/self/status").splitlines() if ":" in line),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
    "scratch": [path for path in (home, tmp) if writable(path)],
    "open": [path for path in sys.argv[1:] if writable(path)],
    "git": text(home + "/.gitconfig"),
}))
"""


@frozen
class SandboxProbe(Record):
    """The enforcement of one command, and its view from inside. `failure` says why no command ran."""

    failure: str = ""
    backend: str = "none"
    enforcement: str = "none"
    missing_layers: tuple[str, ...] = ()
    status: Mapping[str, str] = {}
    processes: int = 0
    can_dump_core: bool = False
    scratch: tuple[str, ...] = ()
    writable_own: tuple[str, ...] = ()
    git: str = ""


def probe_sandbox(config: SandboxConfig) -> SandboxProbe:
    """Start a sandbox and run one command that inspects it."""
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # there since 3.3
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    own = (python, os.__file__, os.path.dirname(os.__file__), package, f"{package}/__init__.py")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="corral-doctor-", dir=process_temp_dir(config.project_root)) as place,
            state_dirs_in(place),
            Sandbox(unguarded(config, timeout_seconds=TIMEOUT_SECONDS)) as box,
        ):
            result = box.run([python, "-I", "-S", "-", *own], stdin=PROGRAM.encode())
    except (CorralError, OSError) as error:
        return SandboxProbe(str(error))
    held = SandboxProbe("", result.backend, result.enforcement, result.missing_layers)
    if not result.ok:
        last = result.stderr_text.strip().rpartition("\n")[2]
        return held.replace(failure=f"a command in it exited with {result.exit_code}: {last}")
    seen = json.loads(result.stdout)
    return held.replace(
        status={name: value.strip() for name, value in seen["status"].items()},
        processes=seen["processes"],
        can_dump_core=seen["core"] != 0,
        scratch=tuple(seen["scratch"]),
        writable_own=tuple(seen["open"]),
        git=seen["git"],
    )

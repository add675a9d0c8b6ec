"""Gathers the facts of a machine in one record: enters the layers and reads settings. Changes and judges nothing."""

from __future__ import annotations

import os
import sys
import tempfile

from corral import __version__
from corral._lib.records import Record, frozen
from corral.apps.doctor.probe_sandbox import SandboxProbe, probe_sandbox
from corral.containment import layers
from corral.containment.filesystem import persistent_scratch
from corral.containment.filesystem.quarantine import user_state_directory
from corral.containment.filesystem.shared_files import Survey, survey
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.containment.kernel import cgroups, landlock
from corral.containment.kernel.syscalls import MACHINE
from corral.git.configuration.home_files import home_files
from corral.guard.path_zones import inside
from corral.guard.rules.loader import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import SandboxConfig

SETTINGS = (
    *(layer.remedy.limit for layer in layers.LAYERS.values() if layer.remedy.limit),
    *("kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns"),
)
CONTROLLERS = ("pids", "memory", "cpu")
MAX_SETTING_BYTES = 4096


@frozen
class Refusal(Record):
    """The error of the kernel when a layer was tried: its errno, and words that name the system call."""

    number: int
    words: str


@frozen
class Facts(Record):
    """The facts of one machine, as one user sees it."""

    corral: str
    kernel: str
    machine: str
    python: str
    interpreter: str
    uid: int
    refusals: Mapping[str, Refusal | None]
    landlock_abi: int
    settings: Mapping[str, str]
    security_modules: str
    is_filtered: bool
    container: str
    proc_covers: tuple[str, ...]
    groups: Mapping[str, str]
    bash: str
    bubblewrap: str
    quarantine: str
    can_quarantine: bool
    scratch: str
    project: str
    unusable: str
    inside: SandboxProbe
    shared: Survey = Survey()  # files with other names outside the project, before the sandbox was started
    git_left_out: tuple[str, ...] = ()  # settings of the user's git that commands do not get
    still_shared: Survey = Survey()  # those that are left since: commands cannot write them


def gather_facts(config: SandboxConfig, unusable: str = "") -> Facts:
    """Gather the facts and start one sandbox. `unusable` says why an empty project replaces the user's."""
    with tempfile.TemporaryDirectory(prefix="corral-doctor-", dir=process_temp_dir(config.project_root)) as stage:
        tried = layers.attempt(stage)
    refusals = {
        name: None if error is None else Refusal(error.errno or 0, str(error.strerror)) for name, error in tried.items()
    }
    _, state = user_state_directory(os.environ)
    base = _existing(state)
    status = _fields("/proc/self/status")
    scratch = persistent_scratch.scratch_path(config.project_root, (config.project_root,), os.environ, make=False)
    shared = survey(config.project_root)
    inside_sandbox = probe_sandbox(config)
    return Facts(
        corral=__version__,
        kernel=os.uname().release,
        machine=MACHINE,
        python=sys.version.split()[0],
        interpreter=os.path.realpath(sys._base_executable),  # type: ignore[attr-defined]  # there since 3.3
        uid=os.geteuid(),
        refusals=refusals,
        landlock_abi=landlock.version(),
        settings={name: _read(f"/proc/sys/{name.replace('.', '/')}") for name in SETTINGS},
        security_modules=_read("/sys/kernel/security/lsm"),
        is_filtered=status.get("Seccomp", "0") != "0",
        container=_container(os.environ),
        proc_covers=tuple(path for path in _mount_points() if path.startswith("/proc/")),
        groups={name: directory for name, (_, directory) in cgroups.find(CONTROLLERS).items()},
        bash=_program("bash"),
        bubblewrap=_program("bwrap"),
        quarantine=f"{state}/corral-quarantine",
        can_quarantine=os.access(base, os.W_OK | os.X_OK) and not inside(state, config.project_root),
        scratch=scratch if os.path.isdir(scratch) else "",
        project=config.project_root,
        unusable=unusable,
        inside=inside_sandbox,
        shared=shared,
        git_left_out=home_files(config, os.environ, _programs(config), "").left_out,
        still_shared=survey(config.project_root) if shared.files else shared,
    )


def _programs(config: SandboxConfig) -> list[str]:
    """Return the directories of PATH outside the project."""
    found = os.environ.get("PATH", "").split(":")
    return [each for each in found if each.startswith("/") and not inside(each, config.project_root)]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_SETTING_BYTES).strip()
    except OSError:
        return ""


def _fields(path: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in _read(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _existing(path: str) -> str:
    while path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


def _program(name: str) -> str:
    found = (f"{directory}/{name}" for directory in places()["programs"])
    return next((path for path in found if os.access(path, os.X_OK)), "")


def _container(environ: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    if os.path.exists("/.dockerenv"):
        return "docker"
    return environ.get("container", "")


def _mount_points() -> list[str]:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return [line.split(" ")[4] for line in file]
    except OSError:
        return []

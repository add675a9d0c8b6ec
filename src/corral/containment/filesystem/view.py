"""What a command sees of the file system, as plain records that a warden interprets: made once, before the first command.

Later nothing is looked up again: a command could have changed what the answer would be. Reads the disk, changes nothing.
"""

from __future__ import annotations

import os
import sys

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem import git_identity as identity
from corral.containment.filesystem import protected, toolchains
from corral.containment.filesystem.credential_masks import matching_paths
from corral.containment.plan import Step
from corral.guard.path_zones import inside
from corral.guard.rules.loader import places
from corral.model.errors import ContainmentError
from corral.policy import path_grants
from corral.policy.installation import DEFAULT_HOME, installation_links, installation_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.policy.config import SandboxConfig


SCRATCH = "\0scratch"  # stands for the scratch directory, which a fork of the host has its own of
SHARED_MEMORY_BYTES = 1 << 30
SESSION_BYTES = 256 << 20  # of what an agent keeps for one run
SHARED_MEMORY_FILES = 100_000  # against a command that makes the next one wait until all are removed
_EMPTY_DIRECTORIES = ("/home", "/root", "/run", "/sys", "/mnt", "/media", "/srv", "/var/lib", "/var/cache", "/var/log")
_NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}
# As root without capabilities, what belongs to root in /proc could still be written: core_pattern runs a program outside.
_PROC_READ_ONLY = ("sys", "irq", "bus", "fs", "acpi", "scsi", "asound", "driver", "sysrq-trigger")
_PROC_MASKED = (
    *("kcore", "keys", "key-users", "kallsyms", "kmsg", "timer_list", "sched_debug", "latency_stats", "kpagecount"),
    *("kpageflags", "kpagecgroup", "vmallocinfo", "slabinfo", "modules"),
)


@frozen
class View(Record):
    """A command's file system: how to build it, by which rules Landlock holds it, and what it means for a result."""

    steps: tuple[Step, ...]
    rules: tuple[tuple[str, str], ...]
    rules_without_mounts: tuple[tuple[str, str], ...]
    home: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    protected: protected.Protected
    git_identity: str
    programs: tuple[str, ...]
    shared: tuple[str, ...]  # of what is writable, that which is not scratch
    masked: tuple[str, ...]  # credentials in what commands can write
    hidden: tuple[str, ...]  # patterns of credentials in what they cannot


def build_view(config: SandboxConfig, environ: Mapping[str, str]) -> View:
    """Decide what a command will see."""
    project = config.project_root
    owner_home = os.path.realpath(environ.get("HOME") or DEFAULT_HOME)
    given, granted = path_grants.resolve_grants(config.containment)
    own = installation_paths()
    for path in given:
        path_grants.refuse_read_grant(path, owner_home)
    for path in granted:
        path_grants.refuse_write_grant(path, owner_home, project, (*own, *installation_links()))
    settings = path_grants.agent_settings(config.containment, owner_home)
    common = [c for c in [protected.common_directory(project)] if c is not None and not inside(c, project)]
    programs = [entry for entry in environ.get("PATH", "").split(":") if entry.startswith("/")]
    venvs = [f"{project}/{name}/bin" for name in (".venv", "venv", "env") if os.path.isdir(f"{project}/{name}/bin")]
    shown = toolchains.find([*programs, *venvs, f"{sys.base_prefix}/bin", f"{sys.prefix}/bin"], owner_home, project)
    shown += [path for path in own if not toolchains.is_system(path) and path not in shown]
    found = protected.find(project, common, granted).replace(absent=settings.absent)
    for path in granted:
        path_grants.refuse_protected(path, found.readonly)
    home = _home(owner_home, (project, *shown, *given, *granted, *common, *settings.writable))

    binds: dict[str, tuple[str, str]] = {}
    for path in toolchains.SYSTEM:
        if os.path.isdir(path) and not os.path.islink(path):
            binds[path] = (path, "ro")
    binds |= {path: (path, "ro") for path in (*shown, *given)}
    if config.containment.network == "on":
        binds |= {path: (path, "ro") for path in _resolver()}
    binds["/tmp"] = (f"{SCRATCH}/tmp", "rw")  # noqa: S108  a target inside the new tree
    binds[home] = (f"{SCRATCH}/home", "rw")
    binds |= {path: (path, "rw") for path in (*granted, *common, *settings.writable)}
    binds[project] = (project, "ro" if config.containment.project == "read-only" else "rw")
    binds = _without_what_is_covered(binds)
    writable = tuple(sorted(target for target, (_, how) in binds.items() if how == "rw"))

    # A link in the project by which a grant is named is as good as the grant: replaced, it would grant something else.
    links = [link for path in (*config.containment.read, *config.containment.write) for link in resolve_links(path)[0]]
    readonly = [
        path
        for path in (*found.readonly, *own, *installation_links(), *links, *settings.kept)
        if path not in binds and _is_shown_writable(path, binds)
    ]
    # A home in /opt lies in what is shown, and no mount of ours hides it.
    secrets = _secrets(owner_home if project == owner_home or toolchains.is_system(owner_home) else None)
    # What commands cannot change is looked for anew by each warden.
    hidden = [pattern for pattern in secrets if not _is_shown_writable(pattern, binds)]
    masks = sorted({path for pattern in secrets if pattern not in hidden for path in matching_paths(pattern)})
    steps: list[Step] = [Step("directory", path) for path in _EMPTY_DIRECTORIES]
    aliases = (("/var/run", "/run"), ("/var/tmp", "/tmp"))  # noqa: S108  as above
    # Not where the project or the home directory lies below one: a mount point cannot be reached through a link.
    steps += [Step("link", path, led) for path, led in aliases if not any(inside(target, path) for target in binds)]
    shared = [path for path in writable if binds[path][0] == path]
    steps += _links(toolchains.SYSTEM, binds) + _pins([*found.pinned, *readonly, *masks, *binds], shared) + _devices()
    tree = _Placeholders(binds)
    for target in sorted(binds):
        tree.above(target)
        source, how = binds[target]
        tree.steps.append(Step("bind", target, source, how))
    steps += tree.steps
    steps += [Step("readonly", path) for path in sorted(set(readonly))]
    steps += [Step("tmpfs", path, f"mode=0777,size={SESSION_BYTES}") for path in settings.session]
    steps += _links([*programs, *([environ["HOME"]] if "HOME" in environ else [])], binds)
    steps += [Step("mask", path) for path in masks]
    steps += [Step("hide", pattern) for pattern in hidden]
    steps += [Step("readonly", f"/proc/{name}") for name in _PROC_READ_ONLY if os.path.exists(f"/proc/{name}")]
    steps += [Step("mask", f"/proc/{name}") for name in _PROC_MASKED if os.path.exists(f"/proc/{name}")]
    steps.append(Step("seal", "/dev"))
    nodes = tuple((path, "terminal") for path in _NODES if os.path.exists(path))
    readable = tuple(sorted(binds))
    rules = (("/", "read"), ("/proc", "process"), *nodes, ("/dev/pts", "terminal"), ("/dev/shm", "write"))  # noqa: S108
    return View(
        tuple(steps),
        (*rules, *((path, "write") for path in writable)),
        _rules_without_mounts(binds, nodes),
        home,
        readable,
        writable,
        found,
        identity.identity_config(owner_home, environ),
        tuple(path for path in programs if not inside(path, project)),
        tuple(shared),
        tuple(masks),
        tuple(hidden),
    )


def _home(owner_home: str, shown: tuple[str, ...]) -> str:
    """Return where a command's own home directory stands: at the owner's, unless nothing can be mounted there."""
    # In what is shown as it is outside, no directory is made to mount on: it would stay.
    is_absent = _within(owner_home, shown) and not os.path.isdir(owner_home)
    if owner_home != "/" and not toolchains.is_system(owner_home) and not is_absent:
        return owner_home
    if is_absent and _within(DEFAULT_HOME, shown):
        raise ContainmentError(
            f"HOME is {owner_home}, which is no directory and lies in what commands see; make it, or set HOME to one outside"
        )
    return DEFAULT_HOME


def _is_shown_writable(path: str, binds: dict[str, tuple[str, str]]) -> bool:
    """Say whether commands could write the host's own file of this name: not where their scratch stands in its place."""
    above = max((target for target in binds if inside(path, target)), key=len, default="")
    return bool(above) and binds[above] == (above, "rw")


def _within(path: str, roots: Iterable[str]) -> bool:
    return any(inside(path, root) for root in roots)


def _without_what_is_covered(binds: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Leave out what the nearest directory above shows in the same way already."""
    kept: dict[str, tuple[str, str]] = {}
    for target in sorted(binds):
        above = [other for other in kept if other != target and inside(target, other)]
        nearest = kept[max(above, key=len)] if above else None
        source, how = binds[target]
        if nearest is None or nearest[1] != how or source != target or nearest[0] != max(above, key=len):
            kept[target] = (source, how)
    return kept


def _links(paths: Iterable[str], binds: dict[str, tuple[str, str]]) -> list[Step]:
    """Return links that lead to what is shown by another name."""
    found: list[Step] = []
    for path in dict.fromkeys(paths):
        clean = os.path.normpath(path)
        if os.path.islink(clean) and not _within(clean, [target for target in binds if binds[target][0] == target]):
            real = os.path.realpath(clean)
            if _within(real, binds):
                found.append(Step("link", clean, real))
    return found


def _resolver() -> list[str]:
    real = os.path.realpath("/etc/resolv.conf")
    return [real] if os.path.isfile(real) and not inside(real, "/etc") else []


def _devices() -> list[Step]:
    steps: list[Step] = [Step("tmpfs", "/dev", "mode=0755,size=1m")]
    steps += [Step("bind", path, path, "node") for path in _NODES if os.path.exists(path)]
    steps += [Step("link", path, target) for path, target in _DEVICE_LINKS.items()]
    steps.append(Step("devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620"))
    shared = f"mode=1777,size={SHARED_MEMORY_BYTES},nr_inodes={SHARED_MEMORY_FILES}"
    steps.append(Step("tmpfs", "/dev/shm", shared))  # noqa: S108
    return steps


def _secrets(home: str | None) -> list[str]:
    """Return patterns of the credentials that lie in what is shown: the machine's, and the user's where their home is shown."""
    found = [pattern for pattern in places()["secret"] if pattern.startswith(("/etc/", "/opt/", "/usr/"))]
    found += [f"{home}/{pattern}" for pattern in places()["secret_home"]] if home is not None else []
    return sorted({pattern.removesuffix("/**") for pattern in found})


def _pins(paths: Iterable[str], roots: list[str]) -> list[Step]:
    """Return steps that keep every directory between a root and these paths from being renamed away.

    The kernel renames no directory that something is mounted on anywhere in its namespace. So the mounts are made in another copy
    of the root, which /dev then hides: on the way itself each would be a border that no file can be renamed or linked across.
    """
    steps: list[Step] = []
    for number, root in enumerate(sorted(roots)):
        pinned: set[str] = set()
        for path in paths:
            at = path
            while at != root and inside(at, root) and at not in pinned:
                pinned.add(at)
                at = os.path.dirname(at)
        if pinned:
            copy = f"/dev/pins/{number}"
            steps.append(Step("bind", copy, root, "ro"))
            steps += [Step("pin", copy + path[len(root) :], path) for path in sorted(pinned)]
    return steps


class _Placeholders:
    """Directories in scratch that lead to what is mounted below: made and bound over themselves, so that nobody renames them away."""

    def __init__(self, binds: dict[str, tuple[str, str]]) -> None:
        self.binds = binds
        self.steps: list[Step] = []
        self.done: set[str] = set(binds)

    def above(self, target: str) -> None:
        """Make and pin what lies above a path."""
        missing: list[str] = []
        path = os.path.dirname(target)
        while path != "/" and path not in self.done:
            missing.append(path)
            path = os.path.dirname(path)
        if self.binds.get(path, (path,))[0] == path:
            # What is shown as it is outside has these directories already.
            return
        for directory in reversed(missing):
            self.steps += [Step("directory", directory), Step("pin", directory)]
        self.done.update(missing)


def _rules_without_mounts(
    binds: dict[str, tuple[str, str]], nodes: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    rules = [(source, "write" if how == "rw" else "read") for source, how in binds.values()]
    # What belongs to root in /proc is the machine's settings, and nothing but this rule keeps them from root.
    return (*rules, ("/proc", "read" if os.geteuid() == 0 else "process"), *nodes)

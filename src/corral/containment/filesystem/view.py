"""Decides which parts of the file system a command sees, as a list of steps that a warden executes.

The view is built once, before the first command: later, a command could have changed the answer. Reads the disk, changes
nothing.
"""

from __future__ import annotations

import os
import sys

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem import protected, toolchains
from corral.containment.filesystem.credential_masks import matching_paths
from corral.containment.filesystem.git_identity import identity_config
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

SCRATCH = "\0scratch"  # placeholder for the scratch directory: a fork of the host has another one
SHARED_MEMORY_BYTES = 1 << 30
SESSION_BYTES = 256 << 20  # for files that an agent keeps during one run
SHARED_MEMORY_FILES = 100_000  # the next command waits until all are removed
_EMPTY_DIRECTORIES = ("/home", "/root", "/run", "/sys", "/mnt", "/media", "/srv", "/var/lib", "/var/cache", "/var/log")
_NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}
# Root without capabilities can still write root's files in /proc, such as core_pattern, which runs a program outside the sandbox.
_PROC_READ_ONLY = ("sys", "irq", "bus", "fs", "acpi", "scsi", "asound", "driver", "sysrq-trigger")
_PROC_MASKED = (
    *("kcore", "keys", "key-users", "kallsyms", "kmsg", "timer_list", "sched_debug", "latency_stats", "kpagecount"),
    *("kpageflags", "kpagecgroup", "vmallocinfo", "slabinfo", "modules"),
)


@frozen
class View(Record):
    """A command's file system: the steps that build it, its Landlock rules, and what violation messages need to know."""

    steps: tuple[Step, ...]
    rules: tuple[tuple[str, str], ...]  # Landlock rules: path and right
    rules_without_mounts: tuple[tuple[str, str], ...]
    home: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    protected: protected.Protected
    git_identity: str
    programs: tuple[str, ...]
    shared: tuple[str, ...]  # the writable paths without scratch
    masked: tuple[str, ...]  # credentials in directories that commands can write
    hidden: tuple[str, ...]  # patterns of credentials in directories that they cannot write


def build_view(config: SandboxConfig, environ: Mapping[str, str]) -> View:
    """Return the view for the commands of a sandbox. A grant that the policy forbids raises PolicyError."""
    project = config.project_root
    user_home = os.path.realpath(environ.get("HOME") or DEFAULT_HOME)
    given, granted = path_grants.resolve_grants(config.containment)
    own = installation_paths()
    for path in given:
        path_grants.refuse_read_grant(path, user_home)
    for path in granted:
        path_grants.refuse_write_grant(path, user_home, project, (*own, *installation_links()))
    settings = path_grants.agent_settings(config.containment, user_home)
    common = [c for c in [protected.common_directory(project)] if c is not None and not inside(c, project)]
    programs = [entry for entry in environ.get("PATH", "").split(":") if entry.startswith("/")]
    venvs = [f"{project}/{name}/bin" for name in (".venv", "venv", "env") if os.path.isdir(f"{project}/{name}/bin")]
    shown = toolchains.find([*programs, *venvs, f"{sys.base_prefix}/bin", f"{sys.prefix}/bin"], user_home, project)
    shown += [path for path in own if not toolchains.is_system(path) and path not in shown]
    found = protected.find(project, common, granted).replace(absent=settings.absent)
    for path in granted:
        path_grants.refuse_protected(path, found.readonly)
    home = _home(user_home, (project, *shown, *given, *granted, *common, *settings.writable))

    binds: dict[str, tuple[str, str]] = {}
    for path in toolchains.SYSTEM:
        if os.path.isdir(path) and not os.path.islink(path):
            binds[path] = (path, "ro")
    binds |= {path: (path, "ro") for path in (*shown, *given)}
    resolver = os.path.realpath("/etc/resolv.conf")
    if config.containment.network == "on" and os.path.isfile(resolver) and not inside(resolver, "/etc"):
        binds[resolver] = (resolver, "ro")
    binds["/tmp"] = (f"{SCRATCH}/tmp", "rw")  # noqa: S108  a target inside the new tree
    binds[home] = (f"{SCRATCH}/home", "rw")
    binds |= {path: (path, "rw") for path in (*granted, *common, *settings.writable)}
    binds[project] = (project, "ro" if config.containment.project == "read-only" else "rw")
    binds = _without_redundant(binds)
    writable = tuple(sorted(target for target, (_, how) in binds.items() if how == "rw"))

    # A grant may be named through a link in the project. If a command replaced the link, it would grant something else.
    links = [link for path in (*config.containment.read, *config.containment.write) for link in resolve_links(path)[0]]
    readonly = [
        path
        for path in (*found.readonly, *own, *installation_links(), *links, *settings.kept)
        if path not in binds and _is_shown_writable(path, binds)
    ]
    # A home directory in /opt is part of a system directory, and no mount hides it.
    secrets = _secrets(user_home if project == user_home or toolchains.is_system(user_home) else None)
    # Each warden searches again for credentials where commands cannot write.
    hidden = [pattern for pattern in secrets if not _is_shown_writable(pattern, binds)]
    masks = sorted({path for pattern in secrets if pattern not in hidden for path in matching_paths(pattern)})
    steps: list[Step] = [Step("directory", path) for path in _EMPTY_DIRECTORIES]
    aliases = (("/var/run", "/run"), ("/var/tmp", "/tmp"))  # noqa: S108  as above
    # No link where a mount point lies below it, such as the project: mount points are not reached through links.
    steps += [Step("link", path, to) for path, to in aliases if not any(inside(target, path) for target in binds)]
    shared = [path for path in writable if binds[path][0] == path]
    steps += _links(toolchains.SYSTEM, binds) + _pins([*found.pinned, *readonly, *masks, *binds], shared) + _devices()
    placed = set(binds)
    for target in sorted(binds):
        steps += _placeholders(target, binds, placed)
        steps.append(Step("bind", target, *binds[target]))
    steps += [Step("readonly", path) for path in sorted(set(readonly))]
    steps += [Step("tmpfs", path, f"mode=0777,size={SESSION_BYTES}") for path in settings.session]
    steps += _links([*programs, *([environ["HOME"]] if "HOME" in environ else [])], binds)
    steps += [Step("mask", path) for path in masks]
    steps += [Step("hide", pattern) for pattern in hidden]
    steps += [Step("readonly", f"/proc/{name}") for name in _PROC_READ_ONLY if os.path.exists(f"/proc/{name}")]
    steps += [Step("mask", f"/proc/{name}") for name in _PROC_MASKED if os.path.exists(f"/proc/{name}")]
    steps.append(Step("seal", "/dev"))
    nodes = tuple((path, "terminal") for path in _NODES if os.path.exists(path))
    rules = (("/", "read"), ("/proc", "process"), *nodes, ("/dev/pts", "terminal"), ("/dev/shm", "write"))  # noqa: S108
    return View(
        tuple(steps),
        (*rules, *((path, "write") for path in writable)),
        _rules_without_mounts(binds, nodes),
        home,
        tuple(sorted(binds)),
        writable,
        found,
        identity_config(user_home, environ),
        tuple(path for path in programs if not inside(path, project)),
        tuple(shared),
        tuple(masks),
        tuple(hidden),
    )


def _home(user_home: str, shown: tuple[str, ...]) -> str:
    """Return the path of the commands' own home directory: the user's, unless it cannot be a mount point."""
    # In a directory of the host no mount point is made, because it would stay there.
    is_absent = _within(user_home, shown) and not os.path.isdir(user_home)
    if user_home != "/" and not toolchains.is_system(user_home) and not is_absent:
        return user_home
    if is_absent and _within(DEFAULT_HOME, shown):
        raise ContainmentError(
            f"HOME is {user_home}, which is not a directory and lies in a path that commands see. "
            "Create it, or set HOME to a directory elsewhere"
        )
    return DEFAULT_HOME


def _is_shown_writable(path: str, binds: dict[str, tuple[str, str]]) -> bool:
    """Say whether commands can write the host's file of this name, and not a file in scratch instead."""
    above = max((target for target in binds if inside(path, target)), key=len, default="")
    return bool(above) and binds[above] == (above, "rw")


def _within(path: str, roots: Iterable[str]) -> bool:
    return any(inside(path, root) for root in roots)


def _without_redundant(binds: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Leave out binds that the nearest bind above them already includes."""
    kept: dict[str, tuple[str, str]] = {}
    for target in sorted(binds):
        above = [other for other in kept if other != target and inside(target, other)]
        nearest = kept[max(above, key=len)] if above else None
        source, how = binds[target]
        if nearest is None or nearest[1] != how or source != target or nearest[0] != max(above, key=len):
            kept[target] = (source, how)
    return kept


def _links(paths: Iterable[str], binds: dict[str, tuple[str, str]]) -> list[Step]:
    """Return steps that make links to visible directories, under the names that they have on the host."""
    found: list[Step] = []
    for path in dict.fromkeys(paths):
        clean = os.path.normpath(path)
        if os.path.islink(clean) and not _within(clean, [target for target in binds if binds[target][0] == target]):
            real = os.path.realpath(clean)
            if _within(real, binds):
                found.append(Step("link", clean, real))
    return found


def _devices() -> list[Step]:
    steps: list[Step] = [Step("tmpfs", "/dev", "mode=0755,size=1m")]
    steps += [Step("bind", path, path, "node") for path in _NODES if os.path.exists(path)]
    steps += [Step("link", path, target) for path, target in _DEVICE_LINKS.items()]
    steps.append(Step("devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620"))
    shared = f"mode=1777,size={SHARED_MEMORY_BYTES},nr_inodes={SHARED_MEMORY_FILES}"
    steps.append(Step("tmpfs", "/dev/shm", shared))  # noqa: S108
    return steps


def _secrets(home: str | None) -> list[str]:
    """Return patterns of the credentials in visible directories: the machine's, and the user's if `home` is given."""
    found = [pattern for pattern in places()["secret"] if pattern.startswith(("/etc/", "/opt/", "/usr/"))]
    found += [f"{home}/{pattern}" for pattern in places()["secret_home"]] if home is not None else []
    return sorted({pattern.removesuffix("/**") for pattern in found})


def _pins(paths: Iterable[str], roots: list[str]) -> list[Step]:
    """Return steps that keep commands from renaming these paths and the directories between a root and them.

    The kernel does not rename a directory that is a mount point anywhere in the mount namespace. The mounts are made in a second
    bind of the root, which /dev then hides: a mount in the first would be a border that no file can be renamed or linked across.
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


def _placeholders(target: str, binds: dict[str, tuple[str, str]], placed: set[str]) -> list[Step]:
    """Return steps that make the missing directories above a mount point in scratch, and keep them from being renamed."""
    missing: list[str] = []
    path = os.path.dirname(target)
    while path != "/" and path not in placed:
        missing.append(path)
        path = os.path.dirname(path)
    if binds.get(path, (path,))[0] == path:
        # A directory of the host has them already.
        return []
    placed.update(missing)
    return [step for path in reversed(missing) for step in (Step("directory", path), Step("pin", path))]


def _rules_without_mounts(
    binds: dict[str, tuple[str, str]], nodes: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    rules = [(source, "write" if how == "rw" else "read") for source, how in binds.values()]
    # Root's files in /proc are the machine's settings. Without mounts, only this rule keeps root from writing them.
    return (*rules, ("/proc", "read" if os.geteuid() == 0 else "process"), *nodes)

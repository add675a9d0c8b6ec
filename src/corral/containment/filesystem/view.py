"""Decides which parts of the file system a command sees, as a list of steps that a warden executes.

The view is built once, before the first command: later, a command could have changed the answer. Reads the disk, changes
nothing.
"""

from __future__ import annotations

import os
import sys

from corral._lib.network.certificates import CERTIFICATES_FILE, certificates
from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import matching_paths, resolve_links
from corral.containment.filesystem import protected
from corral.containment.filesystem.credential_masks import credential_files
from corral.containment.filesystem.private_files import NOTHING, PrivateFiles, Scan
from corral.containment.plan import Step
from corral.guard import toolchains
from corral.guard.path_zones import inside
from corral.guard.rules.loader import places
from corral.model.errors import ContainmentError
from corral.model.grant import LIST, LIST_ALL
from corral.policy import path_grants
from corral.policy.installation import DEFAULT_HOME, code_paths, installation_links, installation_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from corral.policy.config import SandboxConfig

    OpenMirrors = Callable[[Iterable[str], Iterable[str]], Mapping[str, tuple[str, str]]]

TMP, HOME = "\0tmp", "\0home"  # placeholders for the directories in scratch: a fork of the host has others
HOSTS, RESOLVER, CERTIFICATES = "\0hosts", "\0resolver", "\0certificates"  # likewise for files that commands see
BROKER = "/run/corral"  # the broker's directory, inside
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


def no_mirrors(_repositories: Iterable[str], _programs: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return no copies. Commands then see all git directories read-only."""
    return {}


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
    programs: tuple[str, ...]
    shared: tuple[str, ...]  # the writable paths without scratch
    masked: tuple[str, ...]  # credentials in directories that commands can write
    hidden: tuple[str, ...]  # patterns of credentials in directories that they cannot write
    copies: tuple[str, ...]  # the copies of git directories that commands see
    shared_trees: tuple[str, ...]  # read-only, because their files have other names outside the project
    private: PrivateFiles | None = None  # searches for files that only root can read, if the user is root
    scan: Scan = NOTHING  # which it has found


def build_view(
    config: SandboxConfig,
    environ: Mapping[str, str],
    open_mirrors: OpenMirrors = no_mirrors,
    shared_trees: tuple[str, ...] = (),
) -> View:
    """Return the view for the commands of a sandbox. A grant that the policy forbids raises PolicyError.

    `open_mirrors` returns for each git directory the copy that commands see, and where they see the user's. `shared_trees` are
    mounted read-only.
    """
    project = config.project_root
    user_home = os.path.realpath(environ.get("HOME") or DEFAULT_HOME)
    given, granted = path_grants.resolve_grants(config.containment)
    own = installation_paths()
    for path in given:
        path_grants.refuse_read_grant(path, user_home)
    for path in granted:
        path_grants.refuse_write_grant(path, user_home, project, (*own, *installation_links()))
    settings = path_grants.agent_settings(config.containment, user_home)
    credentials = path_grants.box_credentials(config)
    common = [c for c in [protected.common_directory(project)] if c is not None and not inside(c, project)]
    programs = [entry for entry in environ.get("PATH", "").split(":") if entry.startswith("/")]
    tools = toolchains.sandbox_toolchains(environ.get("PATH", ""), user_home, project)
    shown = [*tools.shown, *(path for path in code_paths() if not toolchains.is_system(path))]
    found = protected.find(project, common, granted, user_home).replace(absent=settings.absent)
    outside = [path for path in programs if not inside(path, project)]
    is_writable = config.containment.project != "read-only"
    mirrors = open_mirrors([path for path in found.repositories if path != project], outside) if is_writable else {}
    # Without a copy, a git directory is read-only. Its hooks always are.
    kept = [path for path in found.repositories if path not in mirrors]
    kept += [
        f"{path}/hooks" for path in mirrors if os.path.isdir(f"{path}/hooks") and not os.path.islink(f"{path}/hooks")
    ]
    found = found.replace(readonly=(*found.readonly, *kept))
    for path in granted:
        path_grants.refuse_protected(path, (*found.readonly, *found.repositories))
    home = _home(user_home, (project, *shown, *given, *granted, *common, *settings.writable))

    binds: dict[str, tuple[str, str]] = {}
    for path in toolchains.SYSTEM:
        if os.path.isdir(path) and not os.path.islink(path):
            binds[path] = (path, "ro")
    # Commands may write the copies of names, as they may write their own home directory. Mount points can be made in them.
    binds |= {path: (config.containment.listings + path, "rw") for path in _listed(config)}
    binds |= {path: (path, "ro") for path in (*shown, *given)}
    for name, placeholder in (("hosts", HOSTS), ("resolv.conf", RESOLVER)):
        real = os.path.realpath(f"/etc/{name}")
        if os.path.isfile(real) and (config.containment.network != "on" or not inside(real, "/etc")):
            binds[real] = (real if config.containment.network == "on" else placeholder, "ro")
    if config.containment.destinations and certificates(environ):
        binds[CERTIFICATES_FILE] = (CERTIFICATES, "ro")
    binds["/tmp"] = (TMP, "rw")  # noqa: S108  a target inside the new tree
    binds[home] = (HOME, "rw")
    binds |= {path: (path, "cache") for path in tools.caches if inside(path, home)}
    if config.containment.broker:
        shared_writable = (project, *granted, *common, *settings.writable)
        binds |= {target: (path, "ro") for target, path in _broker(config.containment.broker, shared_writable).items()}
    binds |= {path: (real, "ro") for path, real in credentials.items()}
    binds |= {path: (path, "rw") for path in (*granted, *common, *settings.writable)}
    binds[project] = (project, "rw" if is_writable and project not in found.repositories else "ro")
    for path, (copy, shown_at) in mirrors.items():
        binds[path] = (copy, "rw")
        binds[shown_at] = (path, "ro")
        if f"{path}/hooks" in kept:
            binds[f"{path}/hooks"] = (f"{path}/hooks", "ro")
    binds = _without_redundant(binds)
    writable = tuple(sorted(target for target, (_, how) in binds.items() if how == "rw"))

    # A grant may be named through a link in the project. If a command replaced the link, it would grant something else.
    links = [link for path in (*config.containment.read, *config.containment.write) for link in resolve_links(path)[0]]
    readonly = [
        path
        for path in (*found.readonly, *own, *installation_links(), *links, *settings.kept, *shared_trees)
        if path not in binds and _is_shown_writable(path, binds)
    ]
    explicit = (project, *given, *granted, *settings.writable, *credentials)
    secrets = [path for path in _secrets(binds, user_home, explicit) if not _within(path, settings.writable)]
    # Each warden searches again for credentials where commands cannot write.
    hidden = [pattern for pattern in secrets if not _is_shown_writable(pattern, binds)]
    in_homes = [path for path in shown if toolchains.home_of(path, user_home)]
    hidden += credential_files([*in_homes, *given], explicit)
    private, scan = None, NOTHING
    if os.geteuid() == 0:
        prefixes = [*programs, f"{sys.base_prefix}/bin", f"{sys.prefix}/bin"]
        private = PrivateFiles((*explicit, *code_paths()), toolchains.system_parts(prefixes, user_home))
        scan = private.recall()
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
    steps += _links([*programs, *tools.links, *([environ["HOME"]] if "HOME" in environ else [])], binds)
    steps += [Step("mask", path) for path in masks]
    steps += [Step("hide", pattern) for pattern in (*hidden, *scan.paths)]
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
        tuple(outside),
        tuple(shared),
        tuple(masks),
        tuple(hidden),
        tuple(copy for copy, _ in mirrors.values()),
        shared_trees,
        private,
        scan,
    )


def _listed(config: SandboxConfig) -> list[str]:
    """Return the directories of which commands see the names."""
    if not config.containment.listings:
        return []
    return [grant.target.removesuffix(LIST_ALL) for grant in config.grants if grant.kind == LIST]


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


def _broker(path: str, writable: tuple[str, ...]) -> dict[str, str]:
    """Return the entries of the broker's directory by the paths at which commands see them.

    Each has a mount of its own, beside those of git directories. Stubs run under the names of programs, so no command may write them.
    """
    real = os.path.realpath(path)
    if _within(real, writable) or not os.path.isdir(real):
        raise ContainmentError(f"{path} cannot hold a broker: it is not a directory, or commands can write it")
    return {f"{BROKER}/{name}": f"{real}/{name}" for name in os.listdir(real)}


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


def _secrets(binds: dict[str, tuple[str, str]], user_home: str, explicit: tuple[str, ...]) -> list[str]:
    """Return patterns of the credentials in the host's directories that commands see: the machine's, and those in homes.

    The paths in `explicit` are shown because the user names them.
    """
    found = [pattern for pattern in places()["secret"] if pattern.startswith(("/etc/", "/opt/", "/usr/"))]
    shown = [path for path, (source, _) in binds.items() if source == path]
    # Under sudo, PATH leads to the home directory of another user.
    for home in {user_home, *(toolchains.home_of(path, user_home) for path in shown)} - {""}:
        # A home directory in /opt or in the project is shown whole. Of another, only the binds in it are.
        whole = _within(home, shown) and binds.get(home, (home,))[0] == home
        heads = ("",) if whole else tuple(f"{path[len(home) + 1 :]}/" for path in shown if path.startswith(f"{home}/"))
        patterns = [pattern for pattern in places()["secret_home"] if f"{pattern}/".startswith(heads)] if heads else []
        found += [path for path in (f"{home}/{pattern}" for pattern in patterns) if _shows_host(path, binds)]
    return sorted({path for path in (pattern.removesuffix("/**") for pattern in found) if path not in explicit})


def _shows_host(path: str, binds: dict[str, tuple[str, str]]) -> bool:
    """Say whether a path is in a directory of the host that commands see, and not in scratch."""
    above = max((target for target in binds if inside(path, target)), key=len, default="")
    return bool(above) and binds[above][0] == above


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


def broker_variables(broker: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which commands find the stubs of a broker, if there is one."""
    if not broker:
        return {}
    found = [entry for entry in environ.get("PATH", "").split(":") if entry.startswith("/")]
    path = ":".join([f"{BROKER}/bin", *(found or ["/usr/local/bin", "/usr/bin", "/bin"])])
    if not os.path.exists(f"{broker}/bin/ssh"):
        return {"PATH": path}
    # Before a repository's own core.sshCommand, which the host reads.
    return {"PATH": path, "GIT_SSH_COMMAND": f"{BROKER}/bin/ssh", "GIT_SSH_VARIANT": "ssh"}

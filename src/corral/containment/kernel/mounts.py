"""Builds the file tree that a command sees from the steps of its plan. A path that no step names does not exist there.

All sources are cloned before the first mount. After that every path is walked by descriptor, and a link in it is an error: a
command of an earlier warden may have made it.
"""

from __future__ import annotations

import os
import stat
from _struct import pack
from errno import EEXIST, EINVAL, ESTALE

from corral.containment.kernel.layer import TREE, Attack, Layer, Remedy
from corral.containment.kernel.namespaces import CAUSES, FLAGS, unshare
from corral.containment.kernel.syscalls import call, open_verified, syscall
from corral.containment.plan import Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.containment.plan import WardenPlan

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH, _AT_RECURSIVE = 0x100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 4, 8
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 1, 1, 6
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_CLEAN = _NOSUID | _NODEV
_FILTERS = {"ro": _CLEAN | _RDONLY, "cache": _CLEAN | _RDONLY, "rw": _CLEAN, "node": _NOSUID | _NOEXEC}
_PROBED = (Step("bind", "/usr", "/usr", "ro"), Step("pin", "/usr"))
_EMPTY = "/.empty"  # mounted over masked files; removed when the tree is complete


def enter(steps: Sequence[Step], stage: str, known: Mapping[str, Sequence[int]], *, own_proc: bool) -> None:
    """Build the tree on `stage`, a directory that nothing else uses, and make it the root of this process.

    The process must be in a new mount namespace, and for `own_proc` in a new pid namespace. Paths in `known` must still have
    the device and inode given there: a command may have replaced them.
    """
    call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    clones = _clones(steps, known)
    proc = -1 if own_proc else _clone_outside("/proc", "ro", known)
    _enter_memory(stage, known)
    os.mkdir("proc")
    if own_proc:
        # Before the pivot: the kernel mounts a new proc only for a process that still sees a complete one. With hidepid, a
        # process that may not be traced, such as the warden, is not listed.
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        call("mount", b"proc", b"proc", b"proc", flags, b"hidepid=ptraceable")
    syscall("pivot_root", b".", b".")
    call("umount2", b".", _MNT_DETACH)
    os.chdir("/")
    tree = _Tree()
    if proc >= 0:
        tree.attach(proc, "/proc")
    for step in steps:
        try:
            if step.action == "bind":
                if step.target in clones:
                    tree.attach(clones[step.target], step.target)
            else:
                tree.make(step.action, step.target, step.source)
        except OSError as error:
            raise OSError(error.errno, f"{step.target} cannot be mounted in the sandbox: {error.strerror}") from error
    tree.finish()


def _enter_memory(stage: str, known: Mapping[str, Sequence[int]]) -> None:
    """Mount an empty tmpfs on the stage and make it the working directory, both by descriptor."""
    context = syscall("fsopen", b"tmpfs", _FSOPEN_CLOEXEC)
    for key, value in ((b"mode", b"0755"), (b"size", b"16m")):
        syscall("fsconfig", context, _FSCONFIG_SET_STRING, key, value, 0)
    syscall("fsconfig", context, _FSCONFIG_CMD_CREATE, None, None, 0)
    mount = syscall("fsmount", context, _FSMOUNT_CLOEXEC, _CLEAN)
    place = open_verified(stage, known)
    _move(mount, place)
    os.fchdir(mount)
    for descriptor in (context, mount, place):
        os.close(descriptor)


def _clones(steps: Sequence[Step], known: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Clone the mounts that the tree binds. A read-only source may be missing, such as a toolchain that was removed."""
    binds = [step for step in steps if step.action == "bind"]
    # Without scratch, whose directories are known: nothing in it is protected.
    writable = tuple(f"{bind.target}/" for bind in binds if bind.access == "rw" and bind.source not in known)
    clones = {}
    for bind in binds:
        try:
            clones[bind.target] = _clone_outside(bind.source, bind.access, known)
        except FileNotFoundError:
            # Below a writable directory the bind is required, because it protects the path.
            if bind.access not in ("ro", "cache") or f"{bind.target}/".startswith(writable):
                raise
    return clones


def _clone_outside(source: str, how: str, known: Mapping[str, Sequence[int]]) -> int:
    # Open the path first, because open_tree() follows links.
    opened = open_verified(source, known)
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE | _AT_EMPTY_PATH
    clone = syscall("open_tree", opened, b"", flags)
    os.close(opened)
    _set(clone, _FILTERS[how], _AT_RECURSIVE)
    return clone


def _set(mount: int, attributes: int, flags: int = 0) -> None:
    attr = pack("=QQQQ", attributes, 0, 0, 0)
    syscall("mount_setattr", mount, b"", _AT_EMPTY_PATH | flags, attr, len(attr))


def _move(mount: int, target: int) -> None:
    syscall("move_mount", mount, b"", target, b"", _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)


class _Tree:
    """Makes the steps in the new root. It walks every path by descriptor."""

    def __init__(self, *, makes: bool = True) -> None:
        self.root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if not makes:
            return
        os.close(os.open(_EMPTY, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        os.mkdir(f"{_EMPTY}.d", 0o555)
        self.hidden: set[str] = set()

    def make(self, what: str, target: str, source: str) -> None:
        """Carry out a step that needs nothing from outside the tree."""
        if what == "directory":
            os.close(self.directory(target))
        elif what == "link":
            self.link(target, source)
        elif what == "tmpfs":
            self.mount(target, b"tmpfs", _MS_NOSUID | _MS_NODEV, os.fsencode(source))
        elif what == "devpts":
            self.mount(target, b"devpts", _MS_NOSUID | _MS_NOEXEC, os.fsencode(source))
        elif what == "pin":
            self.over_itself(target, _CLEAN)
        elif what == "readonly":
            self.over_itself(target, _CLEAN | _RDONLY)
        elif what == "seal":
            descriptor = self.walk(target)
            _set(descriptor, _CLEAN | _RDONLY)
            os.close(descriptor)
        elif what == "mask":
            self.mask(target)
        elif what == "hide":
            self.hide(target)
        else:
            raise ValueError(what)

    def walk(self, target: str, flags: int = os.O_PATH | os.O_NOFOLLOW) -> int:
        """Open a path without following any link. A link at its end is opened itself."""
        how = pack("=QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
        return syscall("openat2", self.root, os.fsencode(target.strip("/") or "."), how, len(how))

    def directory(self, target: str) -> int:
        """Open a directory, and make the missing parts of its path."""
        path = ""
        for part in target.strip("/").split("/"):
            above = self.walk(path)
            try:
                os.mkdir(part, 0o755, dir_fd=above)
            except FileExistsError:
                pass
            except OSError as error:
                # In a read-only tree the directory exists, or the walk below fails.
                error.filename = f"{path}/{part}"
            finally:
                os.close(above)
            path = f"{path}/{part}"
        return self.walk(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)

    def link(self, target: str, text: str) -> None:
        """Make a symbolic link, unless the same link exists."""
        above, _, name = target.rpartition("/")
        descriptor = self.directory(above) if above else self.walk("")
        try:
            os.symlink(text, name, dir_fd=descriptor)
        except FileExistsError:
            if os.readlink(name, dir_fd=descriptor) != text:
                raise
        finally:
            os.close(descriptor)

    def attach(self, clone: int, target: str) -> None:
        """Move a cloned mount to its path."""
        if stat.S_ISDIR(os.fstat(clone).st_mode):
            place = self.directory(target)
        else:
            above, _, name = target.rpartition("/")
            parent = self.directory(above)
            try:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent))
            except OSError as error:
                if error.errno != EEXIST:
                    raise
            finally:
                os.close(parent)
            place = self.walk(target)
        _move(clone, place)
        os.close(place)
        os.close(clone)

    def mount(self, target: str, kind: bytes, flags: int, options: bytes) -> None:
        """Mount a new file system."""
        # By /proc/self/fd, since the path could have changed since it was walked.
        place = self.directory(target)
        call("mount", kind, b"/proc/self/fd/%d" % place, kind, flags, options)
        os.close(place)

    def over_itself(self, target: str, attributes: int) -> None:
        """Bind a path over itself, so that it cannot be renamed or removed."""
        place = self.walk(target)
        self.cover(place, place, attributes)
        os.close(place)

    def mask(self, target: str) -> None:
        """Cover a file or directory with an empty one."""
        place = self.walk(target)
        nothing = self.walk(f"{_EMPTY}.d" if stat.S_ISDIR(os.fstat(place).st_mode) else _EMPTY)
        self.cover(nothing, place, _CLEAN | _RDONLY | _NOEXEC)
        os.close(nothing)
        os.close(place)

    def hide(self, pattern: str) -> None:
        """Mask a path that commands cannot change, or every path with a prefix if it ends in `*`. It may not exist."""
        for target in self.matches(pattern):
            if target in self.hidden:
                # Two patterns match it. A second mask would cover the first, and `finish` could not remove its source.
                continue
            self.hidden.add(target)
            try:
                self.mask(target)
            except (FileNotFoundError, NotADirectoryError):
                # There is nothing to hide, for example because a package manager has removed its lock.
                continue

    def matches(self, pattern: str) -> list[str]:
        """Return the paths of this tree that match a pattern."""
        if not pattern.endswith("*"):
            return [pattern]
        above, _, head = pattern[:-1].rpartition("/")
        try:
            directory = self.walk(above, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # Commands cannot list the directory either.
            return []
        names = os.listdir(directory)
        os.close(directory)
        return [f"{above}/{name}" for name in names if name.startswith(head)]

    def cover(self, source: int, place: int, attributes: int) -> None:
        """Bind one path of this tree over another."""
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
        clone = syscall("open_tree", source, b"", flags)
        _set(clone, attributes, _AT_RECURSIVE)
        _move(clone, place)
        os.close(clone)

    def finish(self) -> None:
        """Remove the sources of the masks, and make the root read-only."""
        os.unlink(_EMPTY)
        os.rmdir(f"{_EMPTY}.d")
        _set(self.root, _CLEAN | _RDONLY)
        os.close(self.root)


def cover_again(namespaces: Sequence[int], paths: Sequence[str]) -> int:
    """Make paths read-only again in the mount namespace of a running warden. Closes its descriptor.

    Returns 0, or the errno of a failure. A path was replaced outside, so the namespace has lost its mount.
    """
    child = os.fork()
    if child == 0:
        status = EINVAL
        try:
            (namespace,) = namespaces
            call("setns", namespace, FLAGS["mount"])
            tree = _Tree(makes=False)
            for path in paths:
                tree.over_itself(path, _CLEAN | _RDONLY)
            status = 0
        except OSError as error:
            status = error.errno or EINVAL
        finally:
            os._exit(status)
    for namespace in namespaces:
        os.close(namespace)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def verify_path(path: str, device: int, inode: int) -> None:
    """Raise an error if a path is not the directory that the host saw when it made the sandbox."""
    found = os.lstat(path)
    if (found.st_dev, found.st_ino) != (device, inode):
        raise OSError(ESTALE, f"{path} was replaced since the sandbox was made")


def _enter_tree(plan: WardenPlan) -> None:
    unshare("mount")
    enter(plan.host.steps, plan.host.scratch, plan.known, own_proc="proc" in plan.layers)
    verify_path(*plan.host.project)


def _probe_tree(stage: str, *, own_proc: bool) -> None:
    # Not unshare() alone: where AppArmor restricts user namespaces, only the first mount fails.
    unshare("mount")
    enter(_PROBED, stage, {}, own_proc=own_proc)


LAYERS = (
    Layer(
        "mount",
        1,
        keeps="only the project, scratch and the system's programs are visible",
        without=(
            "Landlock alone protects files. Git directories are read-only, and no name can be made beside them. Other protected "
            "files are restored after each command. Commands can see names outside, and change modes and times there."
        ),
        needs=("user",),
        probe=lambda stage: _probe_tree(stage, own_proc=False),
        probe_forks=True,
        stage=TREE,
        enter=_enter_tree,
        bubblewrap="built from the steps of the plan",
        remedy=Remedy(CAUSES, "CONFIG_NAMESPACES", "5.12", limit="user.max_mnt_namespaces"),
        self_test=Attack(
            "project", "change a git hook", "return open('.git/hooks/pre-commit', 'w').write('x')", needs=("project",)
        ),
        namespace="mnt",
        is_evident=lambda _: bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    ),
    Layer(
        "proc",
        3,
        keeps="/proc shows only the command's own processes",
        without="/proc is the machine's, read-only: commands can read the command lines of other processes.",
        needs=("pid",),
        probe=lambda stage: _probe_tree(stage, own_proc=True),
        probe_forks=True,
        stage=TREE,
        enter=lambda _: None,  # mounted with the tree
        bubblewrap=("--proc", "/proc"),
        remedy=Remedy(("apparmor", "proc covered", "container", "filter", "not built"), "CONFIG_PROC_FS", "5.8"),
        self_test=Attack(
            "processes",
            "read another process's command line",
            "return facts['canary'].encode() in open(f'/proc/{facts[\"pid\"]}/cmdline', 'rb').read()",
            ("pid",),
        ),
    ),
)

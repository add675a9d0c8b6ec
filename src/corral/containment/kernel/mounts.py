"""Builds the file tree that a command sees, from plain records, by one loop. What no record names does not exist there.

Sources are cloned before the first mount is made; after that every path is walked by descriptor, and a link in it is an error:
a command of an earlier warden may have put it there.
"""

from __future__ import annotations

import os
import stat
from _struct import pack
from errno import EEXIST, ESTALE

from corral.containment.kernel.layer import TREE, Attack, Layer, Remedy
from corral.containment.kernel.namespaces import CAUSES, unshare
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
_FILTERS = {"ro": _CLEAN | _RDONLY, "rw": _CLEAN, "node": _NOSUID | _NOEXEC}
_PROBED = (Step("bind", "/usr", "/usr", "ro"), Step("pin", "/usr"))
_EMPTY = "/.empty"  # what a masked file becomes; gone when the tree is complete


def enter(steps: Sequence[Step], stage: str, known: Mapping[str, Sequence[int]], *, own_proc: bool) -> None:
    """Make the tree on `stage`, a directory nobody else uses, and make it this process's root for good.

    The process must be in a new mount namespace, and for a /proc of its own in a new pid namespace. What is `known` by device
    and inode must still be that: a command may have put something else in its place.
    """
    call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    clones = _clones(steps, known)
    proc = -1 if own_proc else _clone_outside("/proc", "ro", known)
    _enter_memory(stage, known)
    os.mkdir("proc")
    if own_proc:
        # Before the pivot: the kernel gives a new proc only to those who still see a whole one.
        _proc(b"proc")
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
            raise OSError(error.errno, f"{step.target} could not be put in place: {error.strerror}") from error
    tree.finish()


def _proc(target: bytes) -> None:
    # A process that may not be traced, as the warden, is not even listed.
    call("mount", b"proc", target, b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, b"hidepid=ptraceable")


def _enter_memory(stage: str, known: Mapping[str, Sequence[int]]) -> None:
    """Mount an empty file system on the stage, and make its root the working directory, neither by a path."""
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
    """Clone what is shown from outside. What commands only read may be gone by now, as a toolchain that was removed."""
    binds = [step for step in steps if step.action == "bind"]
    # Scratch, which is known, has nothing in it that must be kept.
    writable = tuple(f"{bind.target}/" for bind in binds if bind.access == "rw" and bind.source not in known)
    clones = {}
    for bind in binds:
        try:
            clones[bind.target] = _clone_outside(bind.source, bind.access, known)
        except FileNotFoundError:
            # In what commands write, it keeps them from writing there.
            if bind.access != "ro" or f"{bind.target}/".startswith(writable):
                raise
    return clones


def _clone_outside(source: str, how: str, known: Mapping[str, Sequence[int]]) -> int:
    # Opened first, because open_tree itself follows links on the way.
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
    """The new root, walked by descriptor only."""

    def __init__(self) -> None:
        self.root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.close(os.open(_EMPTY, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        os.mkdir(f"{_EMPTY}.d", 0o555)
        self.hidden: set[str] = set()

    def make(self, what: str, target: str, source: str) -> None:
        """Interpret a record that needs nothing from outside."""
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
        """Open what lies at a path without following any link; a link at its end is itself."""
        how = pack("=QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
        return syscall("openat2", self.root, os.fsencode(target.strip("/") or "."), how, len(how))

    def directory(self, target: str) -> int:
        """Open a directory, made where it is missing."""
        path = ""
        for part in target.strip("/").split("/"):
            above = self.walk(path)
            try:
                os.mkdir(part, 0o755, dir_fd=above)
            except FileExistsError:
                pass
            except OSError as error:
                # In a tree that is read-only the directory is there, or the walk below says that it is not.
                error.filename = f"{path}/{part}"
            finally:
                os.close(above)
            path = f"{path}/{part}"
        return self.walk(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)

    def link(self, target: str, text: str) -> None:
        """Make a symbolic link, unless it is there."""
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
        """Put a clone from outside at its place."""
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
        """Mount a file system of this tree's own."""
        # By the magic link of a descriptor: a path could have changed since it was walked.
        place = self.directory(target)
        call("mount", kind, b"/proc/self/fd/%d" % place, kind, flags, options)
        os.close(place)

    def over_itself(self, target: str, attributes: int) -> None:
        """Bind what lies at a path over itself: from then on nobody can rename or remove it."""
        place = self.walk(target)
        self.cover(place, place, attributes)
        os.close(place)

    def mask(self, target: str) -> None:
        """Put nothing in the place of a file or directory."""
        place = self.walk(target)
        nothing = self.walk(f"{_EMPTY}.d" if stat.S_ISDIR(os.fstat(place).st_mode) else _EMPTY)
        self.cover(nothing, place, _CLEAN | _RDONLY | _NOEXEC)
        os.close(nothing)
        os.close(place)

    def hide(self, pattern: str) -> None:
        """Mask what is there now of a path that commands cannot change, or of all that begin as one that ends in `*`."""
        for target in self.matches(pattern):
            if target in self.hidden:
                # Two patterns name it. A second mask would lie on the first, and keep it from being cleared away.
                continue
            self.hidden.add(target)
            try:
                self.mask(target)
            except (FileNotFoundError, NotADirectoryError):
                # There is nothing to hide, as where a package manager has removed its lock.
                continue

    def matches(self, pattern: str) -> list[str]:
        """Return the paths that a pattern names in this tree."""
        if not pattern.endswith("*"):
            return [pattern]
        above, _, head = pattern[:-1].rpartition("/")
        try:
            directory = self.walk(above, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # What cannot be listed here cannot be listed by commands.
            return []
        names = os.listdir(directory)
        os.close(directory)
        return [f"{above}/{name}" for name in names if name.startswith(head)]

    def cover(self, source: int, place: int, attributes: int) -> None:
        """Bind one place of this tree over another."""
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
        clone = syscall("open_tree", source, b"", flags)
        _set(clone, attributes, _AT_RECURSIVE)
        _move(clone, place)
        os.close(clone)

    def finish(self) -> None:
        """Remove what only the building needed, and close the root against change."""
        os.unlink(_EMPTY)
        os.rmdir(f"{_EMPTY}.d")
        _set(self.root, _CLEAN | _RDONLY)
        os.close(self.root)


def verify_path(path: str, device: int, inode: int) -> None:
    """Raise an error if a path is not the directory that the host saw when it made the sandbox."""
    found = os.lstat(path)
    if (found.st_dev, found.st_ino) != (device, inode):
        raise OSError(ESTALE, f"{path} was replaced since the sandbox was made")


def _enter_tree(told: WardenPlan) -> None:
    unshare("mount")
    enter(told.plan.steps, told.plan.scratch, told.known, own_proc="proc" in told.layers)
    verify_path(*told.plan.project)


def _probe_tree(stage: str, *, own_proc: bool) -> None:
    # Not unshare() alone: where AppArmor restricts user namespaces, only the first mount fails.
    unshare("mount")
    enter(_PROBED, stage, {}, own_proc=own_proc)


LAYERS = (
    Layer(
        "mount",
        1,
        keeps="only the project, scratch and the system's programs exist",
        without="Commands see all that Landlock does not hide. They can write protected files, and nothing is quarantined.",
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
        keeps="/proc shows the command's own processes alone",
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

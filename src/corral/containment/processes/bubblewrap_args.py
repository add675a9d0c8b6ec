"""Converts the steps of a tree to arguments of bubblewrap. A step that bubblewrap cannot express is an error.

Bubblewrap follows links while it builds. So no step may lead through a link, and corral makes the mount points in scratch
before the first command: a command that replaced one by a link would choose where the next tree is built.
"""

from __future__ import annotations

import os
import stat

from corral._lib.symlink_chain import matching_paths
from corral.containment.backend import UnusableError
from corral.containment.kernel.syscalls import open_verified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.containment.plan import KnownPath, Step

_BIND = {"ro": "--ro-bind", "cache": "--ro-bind", "rw": "--bind", "pin": "--bind", "readonly": "--ro-bind"}
# `--dev` makes the nodes, the links and the pseudo-terminals. Bubblewrap has no other way to make the last.
_DEVICES = "/dev"
_REFERENCE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _inside(path: str, root: str) -> bool:
    # Not `path_zones.inside`, because a keeper loads no rules.
    return path == root or path.startswith(root.rstrip("/") + "/")


def arguments(steps: Sequence[Step], scratch: str) -> list[str]:
    """Return the arguments that build the tree. A link that a command could have made is an error."""
    tree = _Tree(steps, scratch)
    found: list[str] = []
    # Each step once: bubblewrap fails to make a link that exists.
    for step in dict.fromkeys(steps):
        found += tree.argument(step)
    return [*found, "--remount-ro", "/"]


def expected(steps: Sequence[Step], known: Mapping[str, Sequence[int]]) -> tuple[KnownPath, ...]:
    """Return the path of each bind, with the device and inode that must be found there."""
    covered = {step.target for step in steps if step.action in ("mask", "tmpfs")}
    found = []
    for step in steps:
        is_shown = step.target not in covered and not _inside(step.target, _DEVICES)
        if step.action == "bind" and step.access != "node" and is_shown:
            try:
                opened = open_verified(step.source, known)
            except FileNotFoundError:
                # Bubblewrap fails by itself if the source is required.
                continue
            status = os.fstat(opened)
            os.close(opened)
            found.append((step.target, status.st_dev, status.st_ino))
    return tuple(found)


def prepare(steps: Sequence[Step], scratch: str, known: Mapping[str, Sequence[int]]) -> None:
    """Make the parts of the tree that lie in scratch: mount points, links, and an empty file and directory for masks.

    It follows no link: if scratch lies in another sandbox's project, a command can make links at the same time.
    """
    os.close(_open_directory(_empty(scratch, is_directory=True), scratch, known, 0o555))
    _make_file(_empty(scratch, is_directory=False), scratch, known, 0o444)
    tree = _Tree(steps, scratch)
    for step in steps:
        place = tree.outside(step.target)
        if place is None or not _inside(place, scratch) or step.action in ("mask", "hide", "seal"):
            continue
        if step.action == "link":
            _make_link(place, step.source, scratch, known)
        elif step.action == "bind" and os.path.lexists(step.source) and not os.path.isdir(step.source):
            _make_file(place, scratch, known, 0o600)
        else:
            os.close(_open_directory(place, scratch, known))


def _open_directory(path: str, scratch: str, known: Mapping[str, Sequence[int]], mode: int = 0o777) -> int:
    """Open a directory in scratch, starting at the nearest one whose inode is known, and make the missing parts."""
    base = max((top for top in (scratch, *known) if _inside(path, top)), key=len)
    at = open_verified(base, known)
    for name in path[len(base) :].strip("/").split("/") if path != base else ():
        above = at
        try:
            _make_one(name, above, mode)
            at = os.open(name, _REFERENCE, dir_fd=above)
        except NotADirectoryError:
            raise UnusableError(f"{path!r} cannot be made, because {name!r} in it is a link or a file") from None
        finally:
            os.close(above)
    return at


def _make_one(name: str, above: int, mode: int) -> None:
    try:
        os.mkdir(name, mode, dir_fd=above)
    except FileExistsError:
        return


def _make_file(path: str, scratch: str, known: Mapping[str, Sequence[int]], mode: int) -> None:
    """Make an empty file in scratch. If the path exists, leave it and do not open it."""
    above = _open_directory(os.path.dirname(path), scratch, known)
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        os.close(os.open(os.path.basename(path), flags, mode, dir_fd=above))
    except FileExistsError:
        return
    finally:
        os.close(above)


def _make_link(path: str, text: str, scratch: str, known: Mapping[str, Sequence[int]]) -> None:
    """Make a link in scratch, unless the same link exists."""
    above, name = _open_directory(os.path.dirname(path), scratch, known), os.path.basename(path)
    try:
        os.symlink(text, name, dir_fd=above)
    except FileExistsError:
        if not stat.S_ISLNK(os.lstat(name, dir_fd=above).st_mode) or os.readlink(name, dir_fd=above) != text:
            raise
    finally:
        os.close(above)


def _empty(scratch: str, *, is_directory: bool) -> str:
    return f"{scratch}/nothing.d" if is_directory else f"{scratch}/nothing"


class _Tree:
    """Finds the host's path for a path of the tree, and converts single steps."""

    def __init__(self, steps: Sequence[Step], scratch: str) -> None:
        self.scratch = scratch
        self.hidden: set[str] = set()
        self.binds = {step.target: (step.source, step.access) for step in steps if step.action == "bind"}

    def above(self, target: str) -> str | None:
        """Return the nearest bind above a path, without one at the path itself."""
        holding = [bound for bound in self.binds if bound != target and _inside(target, bound)]
        return max(holding, key=len, default=None)

    def outside(self, target: str) -> str | None:
        """Return the host's path for a path of the tree, without a bind at the path itself; None if it has no path on the host."""
        bound = self.above(target)
        return None if bound is None else self.binds[bound][0] + target[len(bound.rstrip("/")) :]

    def argument(self, step: Step) -> list[str]:
        """Return the arguments for one step."""
        what, target, source, how = step.action, step.target, step.source, step.access
        if how == "node" or what == "devpts" or (what == "link" and _inside(target, _DEVICES)):
            return []
        if what == "tmpfs":
            return ["--dev", target] if target == _DEVICES else _memory(target, source)
        if what == "seal":
            return ["--remount-ro", target]
        place = self.outside(target)
        if what in ("directory", "link"):
            # Below a bind it exists already: in the project anyway, in scratch since `prepare` made it.
            if place is not None:
                return []
            return ["--dir", target] if what == "directory" else ["--symlink", source, target]
        if what == "bind":
            if place is not None:
                self.refuse_links(place, target)
            # A read-only source may have been removed since. Below a writable bind it is required, because it protects the path.
            kept = [at for at, (real, way) in self.binds.items() if way == "rw" and not _inside(real, self.scratch)]
            may_lack = how in ("ro", "cache") and not any(_inside(target, at) for at in kept)
            return [f"{_BIND[how]}-try" if may_lack else _BIND[how], source, target]
        if what == "mask":
            return self.mask(target, place)
        if what == "hide":
            return [word for path in matching_paths(target) for word in self.hide(path)]
        if what in ("pin", "readonly"):
            place = self.source(target)
            if os.path.islink(place) and os.path.realpath(os.path.dirname(place)) == os.path.dirname(place):
                # Bubblewrap cannot bind over a link. The host checks after each command that it is unchanged.
                return []
            self.refuse_links(place, target)
            return [_BIND[what], place, target]
        raise ValueError(what)

    def source(self, target: str) -> str:
        """Return the host's path of the file that a path of the tree shows, for binding it over itself."""
        if target in self.binds:
            return self.binds[target][0]
        return self.outside(target) or target

    def hide(self, path: str) -> list[str]:
        """Mask a path that commands cannot change, unless it is in a directory that is masked already."""
        if any(_inside(path, masked) for masked in self.hidden):
            return []
        self.hidden.add(path)
        return self.mask(path, self.outside(path))

    def mask(self, target: str, place: str | None) -> list[str]:
        """Cover a file or directory with an empty one. A link in a read-only directory is followed first."""
        real = os.path.realpath(target)
        if real != target and not self.is_writable(target):
            if self.above(real) is None or not os.path.lexists(real):
                return []
            target = real
        else:
            self.refuse_links(place or target, target)
        try:
            is_directory = stat.S_ISDIR(os.lstat(self.source(target)).st_mode)
        except FileNotFoundError:
            return []
        return ["--ro-bind", _empty(self.scratch, is_directory=is_directory), target]

    def is_writable(self, target: str) -> bool:
        """Return whether commands can write to a path."""
        bound = self.above(target)
        return bound is not None and self.binds[bound][1] == "rw"

    def refuse_links(self, place: str, target: str) -> None:
        """Raise an error if a path leads through a link or is one: bubblewrap would follow it."""
        if os.path.realpath(place) != place:
            raise UnusableError(
                f"bubblewrap cannot protect {target!r}, because it is a link or lies behind one; "
                "choose containment.backend 'warden', or replace the link by its target"
            )


def _memory(target: str, options: str) -> list[str]:
    given = dict(option.split("=") for option in options.split(","))
    return ["--perms", given["mode"], "--size", given["size"], "--tmpfs", target]

"""What differs between a project and a transaction's layer, path by path, the directories before what is in them.

The layer is hostile: commands wrote it. Nothing in it is followed, and nothing is opened but regular files.
"""

from __future__ import annotations

import os
import stat
from errno import ENXIO

from corral._lib.records import Record, frozen
from corral.model.errors import TransactionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral._lib.dirfd_tree import DirfdTree
    from corral.transactions.workspace import Place

MAX_DELTAS = 1_000_000  # against a layer that takes the host's memory
MAX_DEPTH = 256  # directories, against a chain too deep for any stack
COMPARED_BYTES = 1 << 20  # at a time
_OPAQUE, _ORIGIN = "user.overlay.opaque", "user.overlay.origin"
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}


@frozen
class Facts(Record):
    """What something is, as far as that is kept."""

    what: str
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    links: int
    owner: tuple[int, int]
    text: str = ""  # of a symbolic link


@frozen
class Delta(Record):
    """One path that is not as it was: what is there in the project, and what was made of it; None is nothing."""

    path: str
    old: Facts | None
    new: Facts | None
    same_content: bool = False  # only mode, times, owner or names differ
    was_there: bool = False  # when the transaction began, although nothing is now
    displaced: bool = False  # the directory that it lies in is another by now


def facts_of(tree: DirfdTree, path: str, found: os.stat_result) -> Facts:
    """Return the facts of what lies at a path; TransactionError for a device, which nobody may make."""
    kind = stat.S_IFMT(found.st_mode)
    what = _KINDS.get(kind, "device")
    return Facts(
        what,
        tree.mode(path, found),
        found.st_size if what == "file" else 0,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_dev,
        found.st_ino,
        found.st_nlink,
        (found.st_uid, found.st_gid),
        tree.link(path) if what == "link" else "",
    )


def find(project: DirfdTree, layer: DirfdTree, place: Place) -> list[Delta]:
    """Return what a transaction has changed so far."""
    walk = _Overlay(project, layer, place) if place.how == "overlay" else _Copy(project, layer, place)
    found = []
    for delta in walk.below("", hidden=False):
        found.append(delta)
        if len(found) > MAX_DELTAS:
            raise TransactionError(f"more than {MAX_DELTAS} paths were changed")
    if place.how == "overlay" and any(delta.new is None for delta in found):
        # What was made from one of the project's files may have been renamed from one that is gone; no directory is.
        found = [delta.replace(was_there=False) if delta.was_there and _is_file(delta) else delta for delta in found]
    top = facts_of(project, "", os.fstat(project.descriptor)), facts_of(layer, "", os.fstat(layer.descriptor))
    if (top[0].mode, top[0].owner) != (top[1].mode, top[1].owner) and os.geteuid() in (0, top[0].owner[0]):
        found.insert(0, Delta("", *top, same_content=True))
    return found


def _is_file(delta: Delta) -> bool:
    return delta.new is not None and delta.new.what == "file"


class _Walk:
    def __init__(self, project: DirfdTree, layer: DirfdTree, place: Place) -> None:
        self.project = project
        self.layer = layer
        self.directories = place.directories

    def is_another(self, path: str, old: Facts | None) -> bool:
        """Say whether a directory of the project has come into the place of the one that was first seen."""
        return old is not None and self.directories.setdefault(path, old.inode) != old.inode

    def names(self, at: str) -> list[str]:
        if at.count("/") >= MAX_DEPTH:
            raise TransactionError(f"directories lie too deep in each other: {at[:200]}…")
        return self.layer.names(at)

    def old(self, path: str) -> Facts | None:
        found = self.project.status(path)
        return None if found is None else facts_of(self.project, path, found)

    def compared(self, path: str, old: Facts | None, new: Facts) -> Delta | None:
        """Return how what a layer holds differs from what is there, or None."""
        if old is None or old.what != new.what:
            return Delta(path, old, new)
        if (old.device, old.inode) == (new.device, new.inode) and new.what != "directory":
            # Applied before, as another name of the same file.
            return None
        if new.what == "directory":
            same = (old.mode, old.owner) == (new.mode, new.owner)
            return None if same else Delta(path, old, new, same_content=True)
        if old.text != new.text or (new.what == "file" and not self.is_same(path, old, new)):
            return Delta(path, old, new)
        kept = (old.mode, old.owner, old.mtime_ns) == (new.mode, new.owner, new.mtime_ns)
        return None if kept and new.links == 1 else Delta(path, old, new, same_content=True)

    def is_same(self, path: str, old: Facts, new: Facts) -> bool:
        """Say whether two files hold the same. Not by their times, which a command sets as it likes."""
        if old.size != new.size:
            return False
        try:
            one = self.project.open(path)
        except PermissionError:
            # The owner cannot read their own; then a command could not either.
            return False
        try:
            other = self.layer.open(path)
            try:
                return same_bytes(one, other)
            finally:
                os.close(other)
        finally:
            os.close(one)


class _Overlay(_Walk):
    """Reads the upper directory of an overlay: what is not in it is as it was."""

    def __init__(self, project: DirfdTree, layer: DirfdTree, place: Place) -> None:
        super().__init__(project, layer, place)
        self.begun_ns = place.begun_ns

    def below(self, at: str, *, hidden: bool, displaced: bool = False) -> Iterator[Delta]:
        names = self.names(at)
        if hidden:
            yield from self.hidden(at, names, displaced=displaced)
        for name in names:
            path = f"{at}/{name}" if at else name
            found = self.layer.status(path)
            if found is None:
                continue
            old = self.old(path)
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                if old is not None:
                    yield Delta(path, old, None, displaced=displaced)
                continue
            new = facts_of(self.layer, path, found)
            delta = self.compared(path, old, new)
            if delta is not None:
                yield delta.replace(was_there=old is None and self.was_there(path, new), displaced=displaced)
            if new.what == "directory":
                self.layer.make_accessible(path, found)
                is_opaque = hidden or self.layer.attribute(path, _OPAQUE) == b"y"
                is_hidden = is_opaque and old is not None and old.what == "directory"
                yield from self.below(path, hidden=is_hidden, displaced=displaced or self.is_another(path, old))

    def was_there(self, path: str, new: Facts) -> bool:
        """Say whether something was made from what somebody has deleted in the project since, as far as that can be told."""
        if new.what == "directory":
            # An overlay renames none that was there before.
            return self.layer.has_xattr(path, _ORIGIN)
        above = self.project.status(path.rpartition("/")[0])
        if new.what != "file" or new.links > 1 or above is None or above.st_ctime_ns < self.begun_ns:
            return False
        return self.layer.has_xattr(path, _ORIGIN)

    def hidden(self, at: str, names: list[str], *, displaced: bool) -> Iterator[Delta]:
        """Yield what a directory that stands in another's place leaves out of it."""
        kept = set(names)
        for name in self.project.names(at):
            if name not in kept:
                path = f"{at}/{name}"
                old = self.old(path)
                if old is not None:
                    yield Delta(path, old, None, displaced=displaced)


class _Copy(_Walk):
    """Compares a copy with the project: what was not touched since it was made is as it was, whatever became of the project."""

    def __init__(self, project: DirfdTree, layer: DirfdTree, place: Place) -> None:
        super().__init__(project, layer, place)
        self.copied_ns = place.copied_ns
        self.known = place.inodes()
        self.directories = {path: inode for path, (inode, _) in self.known.items()}

    def below(self, at: str, *, hidden: bool, displaced: bool = False) -> Iterator[Delta]:
        here = self.names(at)
        there = [] if hidden else self.project.names(at)
        for name in sorted({*here, *there}):
            path = f"{at}/{name}" if at else name
            old, found = self.old(path), self.layer.status(path)
            if found is None:
                if old is not None and path in self.known:
                    yield Delta(path, old, None, displaced=displaced)
                continue
            new = facts_of(self.layer, path, found)
            delta = None if self.is_as_copied(path, new) else self.compared(path, old, new)
            if delta is not None:
                yield delta.replace(was_there=old is None and path in self.known, displaced=displaced)
            if new.what == "directory":
                self.layer.make_accessible(path, found)
                is_hidden = old is None or old.what != "directory"
                yield from self.below(path, hidden=is_hidden, displaced=displaced or self.is_another(path, old))

    def is_as_copied(self, path: str, new: Facts) -> bool:
        """Say whether nobody has touched something. By its inode too: what lies in a directory that was moved has its old time."""
        return new.ctime_ns < self.copied_ns and self.known.get(path, (0, 0))[1] == new.inode


def same_bytes(one: int, other: int) -> bool:
    """Say whether two files hold the same. What is a hole in both is not read: a terabyte of nothing is soon made."""
    size = os.fstat(one).st_size
    if size != os.fstat(other).st_size:
        return False
    at = 0
    while (at := min(_next_data(one, at, size), _next_data(other, at, size))) < size:
        first, second = os.pread(one, COMPARED_BYTES, at), os.pread(other, COMPARED_BYTES, at)
        if first != second:
            return False
        if not first:
            return True
        at += len(first)
    return True


def _next_data(descriptor: int, at: int, size: int) -> int:
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        # Nothing but a hole is left; or the file system does not tell.
        return size if error.errno == ENXIO else at

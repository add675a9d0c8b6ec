"""Lists the paths that differ between a project and a transaction's layer, each directory before its entries.

Commands wrote the layer, so it is hostile input: corral follows no symbolic link in it and opens only regular files.
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

MAX_DELTAS = 1_000_000  # against a layer that exhausts the host's memory
MAX_DEPTH = 256  # directories, against a chain that exhausts the stack
COMPARED_BYTES = 1 << 20  # per read
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
    """The metadata of a file that corral compares and restores."""

    what: str
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    links: int
    owner: tuple[int, int]
    text: str = ""  # target of a symbolic link


@frozen
class Delta(Record):
    """A path that differs: `old` is the file in the project, `new` the file in the layer. None means no file."""

    path: str
    old: Facts | None
    new: Facts | None
    same_content: bool = False  # only mode, times, owner or hard links differ
    was_there: bool = False  # it existed when the transaction began and was deleted in the project since
    displaced: bool = False  # another directory replaced its directory in the project


def facts_of(tree: DirfdTree, path: str, found: os.stat_result) -> Facts:
    """Return the facts of a file whose status is known."""
    what = _KINDS.get(stat.S_IFMT(found.st_mode), "device")
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


def facts_at(tree: DirfdTree, path: str) -> Facts | None:
    """Return the facts of the file at a path, or None if there is no file."""
    found = tree.status(path)
    return None if found is None else facts_of(tree, path, found)


def walk(tree: DirfdTree, path: str, *, opens: bool) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a path and everything below it with its status, each directory before its entries.

    `opens` makes directories that their user cannot read accessible until the tree is closed.
    """
    found = tree.status(path)
    pending = [] if found is None else [(path, found)]
    while pending:
        at, found = pending.pop()
        yield at, found
        if stat.S_ISDIR(found.st_mode):
            if opens:
                tree.make_accessible(at, found)
            for name in tree.names(at):
                inner = f"{at}/{name}" if at else name
                status = tree.status(inner)
                if status is not None:
                    pending.append((inner, status))


def find(project: DirfdTree, layer: DirfdTree, place: Place) -> list[Delta]:
    """Return the changes of a transaction so far."""
    found = []
    for delta in _Scan(project, layer, place).below("", lists_project=place.how != "overlay"):
        found.append(delta)
        if len(found) > MAX_DELTAS:
            raise TransactionError(f"more than {MAX_DELTAS} paths were changed")
    if place.how == "overlay" and any(delta.new is None for delta in found):
        # A file with an origin may have been renamed from a path that is deleted now. An overlay renames no directory.
        found = [delta.replace(was_there=False) if delta.was_there and _is_file(delta) else delta for delta in found]
    top = facts_of(project, "", os.fstat(project.descriptor)), facts_of(layer, "", os.fstat(layer.descriptor))
    if (top[0].mode, top[0].owner) != (top[1].mode, top[1].owner) and os.geteuid() in (0, top[0].owner[0]):
        found.insert(0, Delta("", *top, same_content=True))
    return found


def _is_file(delta: Delta) -> bool:
    return delta.new is not None and delta.new.what == "file"


class _Scan:
    """Compares a layer with the project.

    The upper directory of an overlay holds only changed files. A copy holds all of them; an untouched file of a copy counts as
    unchanged even if the project's file has changed since.
    """

    def __init__(self, project: DirfdTree, layer: DirfdTree, place: Place) -> None:
        self.project = project
        self.layer = layer
        self.begun_ns = place.begun_ns
        self.copied_ns = place.copied_ns
        self.copied = None if place.how == "overlay" else place.inodes()
        self.directories = place.directories
        if self.copied is not None:
            self.directories = {path: inode for path, (inode, _) in self.copied.items()}

    def below(self, at: str, *, lists_project: bool, displaced: bool = False) -> Iterator[Delta]:
        """Yield the changes below a directory. `lists_project` if files of the project that the layer lacks are deleted."""
        if at.count("/") >= MAX_DEPTH:
            raise TransactionError(f"the directories are nested too deep: {at[:200]}…")
        names = self.layer.names(at)
        if lists_project:
            names = sorted({*names, *self.project.names(at)})
        for name in names:
            path = f"{at}/{name}" if at else name
            old, found = facts_at(self.project, path), self.layer.status(path)
            if found is None or self.is_whiteout(found):
                is_deleted = found is not None or (lists_project and (self.copied is None or path in self.copied))
                if old is not None and is_deleted:
                    yield Delta(path, old, None, displaced=displaced)
                continue
            new = facts_of(self.layer, path, found)
            delta = None if self.is_as_copied(path, new) else self.compared(path, old, new)
            if delta is not None:
                yield delta.replace(was_there=old is None and self.was_there(path, new), displaced=displaced)
            if new.what == "directory":
                self.layer.make_accessible(path, found)
                # In an opaque directory of an overlay, all directories are opaque.
                is_whole = self.copied is not None or lists_project or self.layer.attribute(path, _OPAQUE) == b"y"
                yield from self.below(
                    path,
                    lists_project=is_whole and old is not None and old.what == "directory",
                    displaced=displaced or self.is_replaced(path, old),
                )

    def is_whiteout(self, found: os.stat_result) -> bool:
        """Return whether the file is an overlay's mark for a deleted file: a character device 0/0."""
        return self.copied is None and stat.S_ISCHR(found.st_mode) and found.st_rdev == 0

    def is_replaced(self, path: str, old: Facts | None) -> bool:
        """Return whether another directory of the project is at the path now than at the first scan."""
        return old is not None and self.directories.setdefault(path, old.inode) != old.inode

    def is_as_copied(self, path: str, new: Facts) -> bool:
        """Return whether no command has touched a copied file. The entries of a moved directory keep their ctime, so compare inodes too."""
        return (
            self.copied is not None and new.ctime_ns < self.copied_ns and self.copied.get(path, (0, 0))[1] == new.inode
        )

    def was_there(self, path: str, new: Facts) -> bool:
        """Return whether the layer's file was made from a file that was deleted in the project since, as far as corral can tell."""
        if self.copied is not None:
            return path in self.copied
        if new.what != "directory":
            above = self.project.status(path.rpartition("/")[0])
            if new.what != "file" or new.links > 1 or above is None or above.st_ctime_ns < self.begun_ns:
                return False
        return self.layer.has_xattr(path, _ORIGIN)

    def compared(self, path: str, old: Facts | None, new: Facts) -> Delta | None:
        """Return how the layer's file differs from the project's, or None."""
        if old is None or old.what != new.what:
            return Delta(path, old, new)
        if new.what == "directory":
            same = (old.mode, old.owner) == (new.mode, new.owner)
            return None if same else Delta(path, old, new, same_content=True)
        if (old.device, old.inode) == (new.device, new.inode):
            # An earlier apply linked the layer's file into the project.
            return None
        # Commands can set times, so equal times do not mean equal content.
        is_other = new.what == "file" and (
            old.size != new.size or not same_content(self.project, path, self.layer, path)
        )
        if old.text != new.text or is_other:
            return Delta(path, old, new)
        kept = (old.mode, old.owner, old.mtime_ns) == (new.mode, new.owner, new.mtime_ns)
        return None if kept and new.links == 1 else Delta(path, old, new, same_content=True)


def same_content(project: DirfdTree, old: str, layer: DirfdTree, new: str) -> bool:
    """Return whether a file of the project and a file of the layer hold the same bytes. False if the project's file is unreadable."""
    try:
        descriptor = project.open(old)
    except OSError:
        return False
    with open(descriptor, "rb", 0) as one, open(layer.open(new), "rb", 0) as other:
        return same_bytes(one.fileno(), other.fileno())


def same_bytes(one: int, other: int) -> bool:
    """Return whether two open files hold the same bytes. Holes of both are not read: a hole of a terabyte costs nothing to make."""
    size = os.fstat(one).st_size
    if size != os.fstat(other).st_size:
        return False
    at = 0
    while (at := min(next_data(one, at, size), next_data(other, at, size))) < size:
        first, second = os.pread(one, COMPARED_BYTES, at), os.pread(other, COMPARED_BYTES, at)
        if first != second:
            return False
        if not first:
            return True
        at += len(first)
    return True


def next_data(descriptor: int, at: int, size: int) -> int:
    """Return the offset of the next data in a file, `size` if only a hole is left, or `at` if the file system cannot tell."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == ENXIO else at

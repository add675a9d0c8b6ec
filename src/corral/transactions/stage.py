"""Turns deltas into operations: puts new files into slots beside the project and lists conflicts. Does not change the project."""

from __future__ import annotations

import os
import stat
from fcntl import F_RDLCK, F_SETLEASE, fcntl

from corral._lib.dirfd_tree import DirfdTree, split
from corral._lib.records import Record, frozen
from corral.transactions import rename
from corral.transactions.copying import OVERLAY_XATTRS, change_mode, copy_file, copy_metadata
from corral.transactions.journal import Operation, is_unchanged
from corral.transactions.protected_paths import find_protected
from corral.transactions.scan import Facts, facts_at, facts_of, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from corral.transactions.protected_paths import ProtectedPaths
    from corral.transactions.scan import Delta

    Metadata = tuple[str, Facts, Facts]  # a path, its facts, and the facts whose mode, owner and times it gets

_MAY_ENTER_AND_WRITE, _ALL = 0o300, 0o700
PROTECTED = "it is protected: programs outside the sandbox run or read it later"
CHANGED_MEANWHILE = "it was changed in the project while the transaction was applied"


@frozen
class Refused(Record):
    """A path that is not applied, and why."""

    path: str
    why: str

    def to_dict(self) -> dict[str, str]:
        """Return path and reason as JSON-ready data."""
        return {"path": self.path, "why": self.why}


class Stage:
    """Prepares the operations of one apply."""

    def __init__(
        self, project: DirfdTree, layer: DirfdTree, slots: DirfdTree, *, begun_ns: int, is_protected: ProtectedPaths
    ) -> None:
        self.project = project
        self.layer = layer
        self.slots = slots
        self.begun_ns = begun_ns
        self.is_protected = is_protected
        self.operations: list[Operation] = []
        self.conflicts: list[Refused] = []
        self.refused: list[Refused] = []
        # Whether slots may hold hard links to the layer's files: not if the layer is used after the apply.
        self.shares = rename.mount_of(layer.descriptor) == rename.mount_of(slots.descriptor)
        self._can_exchange = rename.can_exchange(slots)
        self._links: dict[tuple[int, int], str] = {}
        self._closed: list[Metadata] = []  # directories that lose access for their user after they are moved
        self._made_parents: set[str] = set()  # new directories that only lead to chosen paths
        self._touched: dict[str, None] = {}  # directories in which entries are added or removed

    def prepare(self, deltas: Sequence[Delta], paths: Sequence[str] | None) -> None:
        """Prepare the deltas at or below the paths, or all of them."""
        done = ""  # the last path whose operation includes everything below it
        metadata: list[Metadata] = []
        for delta in deltas:
            if done and delta.path.startswith(f"{done}/"):
                continue
            if not is_chosen(delta.path, paths):
                self._make_parent(delta, paths or ())
                continue
            old, new = delta.old, delta.new
            if self._is_refused(delta) or self._is_in_conflict(delta):
                done = delta.path
            elif delta.same_content and old and new and not (new.what == "file" and new.links > 1):
                # Keep the project's inode: with the layer's inode, undo could not restore the old file.
                metadata.append((delta.path, old, old.replace(mode=new.mode, owner=new.owner, mtime_ns=new.mtime_ns)))
            else:
                self._replace(delta)
                done = delta.path
        self._add_directory_times(metadata)
        self.operations = [*ordered(self.operations, metadata), *ordered((), self._closed)]

    def _make_parent(self, delta: Delta, paths: Sequence[str]) -> None:
        """Add a new directory without its entries if a chosen path is below it."""
        is_made = delta.old is None and delta.new is not None and delta.new.what == "directory"
        if not is_made or not any(path.startswith(f"{delta.path}/") for path in paths) or self._is_refused(delta):
            return
        found = self.layer.status(delta.path)
        if found is not None:
            slot = self._slot()
            self._touched[split(delta.path)[0]] = None
            os.mkdir(slot, 0o700, dir_fd=self.slots.descriptor)
            copy_metadata(self.slots, slot, found, self.layer.mode(delta.path, found))
            self._put("add", delta.path, None, facts_at(self.slots, slot))
            self._made_parents.add(delta.path)

    def _is_refused(self, delta: Delta) -> bool:
        old, new = delta.old, delta.new
        why = ""
        if delta.path and self.is_protected(delta.path):
            why = PROTECTED
        elif new is not None and new.what == "device":
            why = "it is a device"
        elif old is not None and old.what == "directory" and (new is None or new.what != "directory"):
            protected = find_protected(self.project, delta.path, self.is_protected)
            why = f"it holds {protected}, which is protected" if protected else ""
        if why:
            self.refused.append(Refused(delta.path, why))
        return bool(why)

    def _is_in_conflict(self, delta: Delta) -> bool:
        path, why = self._conflict(delta)
        if why:
            self.conflicts.append(Refused(path, why))
        return bool(why)

    def _conflict(self, delta: Delta) -> tuple[str, str]:
        """Return the path that was changed in the project since the transaction began, and how; the reason is empty if none was."""
        path, old = delta.path, delta.old
        if delta.displaced:
            return path, "its directory was replaced in the project since the transaction began"
        now = facts_at(self.project, path)
        # Another apply may have changed it since the scan.
        if not is_unchanged(now, old) or (now and old and now.mode != old.mode):
            return path, CHANGED_MEANWHILE
        if old is None:
            if delta.was_there:
                return path, "it was deleted in the project since the transaction began"
            above = split(path)[0]
            found = self.project.status(above)
            is_directory = found is not None and stat.S_ISDIR(found.st_mode)
            return path, "" if is_directory or above in self._made_parents else "its directory no longer exists"
        if old.what == "directory" and delta.new is not None and delta.new.what == "directory":
            return path, ""
        changed = path if old.ctime_ns >= self.begun_ns else self._changed_below(path, old)
        return changed, "it was changed in the project since the transaction began" if changed else ""

    def _changed_below(self, path: str, old: Facts) -> str:
        pending = [path] if old.what == "directory" else []
        while pending:
            at = pending.pop()
            for name in self.project.names(at):
                inner = f"{at}/{name}"
                found = self.project.status(inner)
                if found is None or found.st_ctime_ns >= self.begun_ns:
                    return inner
                if stat.S_ISDIR(found.st_mode):
                    pending.append(inner)
        return ""

    def _slot(self) -> str:
        return str(len(self.operations))

    def _replace(self, delta: Delta) -> None:
        self._touched[split(delta.path)[0]] = None
        old = delta.old
        if old is not None and (delta.new is None or not self._can_exchange):
            self.operations.append(Operation("delete", delta.path, self._slot(), old, None))
            old = None
        if delta.new is not None:
            self._put("add" if old is None else "replace", delta.path, old, self._stage(delta.path))

    def _put(self, what: str, path: str, old: Facts | None, staged: Facts | None) -> None:
        """Add the operation that moves the next slot to a path. A directory without access for its user is moved while it has access."""
        slot = self._slot()
        if staged is not None and _with_rights(staged, _ALL) is not staged:
            change_mode(self.slots, slot, staged.mode | _ALL)
            self._closed.append((path, _with_rights(staged, _ALL), staged))
            staged = _with_rights(staged, _ALL)
        self.operations.append(Operation(what, path, slot, old, staged))

    def _stage(self, path: str) -> Facts | None:
        """Put the layer's file or directory into the next slot, and return its facts there."""
        slot = self._slot()
        directories = []
        pending = [(path, slot)]
        while pending:
            at, new = pending.pop()
            found = self.layer.status(at)
            # A character device is an overlay's mark for a deleted file.
            if found is None or stat.S_ISCHR(found.st_mode):
                continue
            if at != path and self.is_protected(at):
                self.refused.append(Refused(at, PROTECTED))
            elif stat.S_ISDIR(found.st_mode):
                directories.append((new, found, self.layer.mode(at, found)))
                self.layer.make_accessible(at, found)
                above, name = split(new)
                os.mkdir(name, 0o700, dir_fd=self.slots.directory(above))
                pending += [(f"{at}/{name}", f"{new}/{name}") for name in self.layer.names(at)]
            elif not self.shares or not self._link(at, new):
                copy_file(self.layer, at, found, self.slots, new, links=self._links)
        for made, found, mode in reversed(directories):
            copy_metadata(self.slots, made, found, mode)
        return facts_at(self.slots, slot)

    def _link(self, path: str, slot: str) -> bool:
        """Hard-link the layer's file into a slot, without the overlay's attributes. Return whether that was possible."""
        (above, name), (to_above, to_name) = split(path), split(slot)
        try:
            os.link(
                name,
                to_name,
                src_dir_fd=self.layer.directory(above),
                dst_dir_fd=self.slots.directory(to_above),
                follow_symlinks=False,
            )
        except OSError:
            # The file has too many links, or belongs to another user.
            return False
        held = os.open(to_name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.slots.directory(to_above))
        try:
            if stat.S_ISREG(os.fstat(held).st_mode):
                if _may_be_written(f"/proc/self/fd/{held}"):
                    os.unlink(to_name, dir_fd=self.slots.directory(to_above))
                    return False
                _remove_overlay_xattrs(f"/proc/self/fd/{held}")
        finally:
            os.close(held)
        return True

    def _add_directory_times(self, metadata: list[Metadata]) -> None:
        """Give the directories in which entries are added or removed the times that they have in the layer."""
        known = {path: (old, new) for path, old, new in metadata}
        for path in self._touched:
            old, found = facts_at(self.project, path), self.layer.status(path)
            if old is None or old.what != "directory":
                continue
            new = known.get(path, (old, old))[1]
            if found is not None and stat.S_ISDIR(found.st_mode):
                new = new.replace(mtime_ns=found.st_mtime_ns)
            known[path] = (old, new)
        metadata[:] = [(path, *both) for path, both in known.items()]


def ordered(renames: Sequence[Operation], metadata: Sequence[Metadata]) -> list[Operation]:
    """Return operations in an order that works: each directory is accessible while its entries, or the directory itself, are renamed.

    Moving a directory needs write permission in it, because that changes its `..`.
    """
    opened, final = [], []
    for path, old, new in metadata:
        between = _with_rights(old, _MAY_ENTER_AND_WRITE)
        if between is not old:
            opened.append(Operation("dress", path, "", old, between))
        final.append(Operation("dress", path, "", between, new))
    opened += [
        Operation("dress", each.path, "", each.old, _with_rights(each.old, _ALL))
        for each in renames
        if each.old is not None and _with_rights(each.old, _ALL) is not each.old
    ]
    # A directory is reachable only if those above it are accessible: open the outermost first, close the deepest first.
    opened.sort(key=_depth)
    final.sort(key=_depth, reverse=True)
    return [*opened, *renames, *final]


def _with_rights(facts: Facts, rights: int) -> Facts:
    """Return a directory's facts with rights for its user added. Root needs none."""
    if facts.what != "directory" or facts.mode & rights == rights or os.geteuid() == 0:
        return facts
    return facts.replace(mode=facts.mode | rights)


def _depth(operation: Operation) -> int:
    return operation.path.count("/") if operation.path else -1


def is_chosen(path: str, paths: Sequence[str] | None) -> bool:
    """Return whether a path is at or below one of the paths. None chooses all, and so does the empty path."""
    return paths is None or any(path == chosen or path.startswith(f"{chosen}/") or not chosen for chosen in paths)


def _may_be_written(path: str) -> bool:
    """Return whether a process may have the file open for writing: a command can pass a descriptor to a process outside the transaction."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
            # The kernel grants a read lease only if no descriptor for writing exists, mapped or in a socket's queue.
            fcntl(file.fileno(), F_SETLEASE, F_RDLCK)
    except OSError:
        return True
    return False


def _remove_overlay_xattrs(path: str) -> None:
    try:
        for name in os.listxattr(path):
            if name.startswith(OVERLAY_XATTRS):
                os.removexattr(path, name)
    except OSError:
        # The file system has no attributes, or the file is read-only.
        return


def fingerprint(tree: DirfdTree, path: str, left_out: Collection[str] = ()) -> str:
    """Return a hash of everything at and below a path. It covers names, inodes, modes, sizes and times, but not file contents.

    It does not cover the directories in `left_out`.
    """
    from _blake2 import blake2b  # noqa: PLC0415  hashlib takes longer to load

    if tree.status(path) is None:
        return ""
    hashed = blake2b(digest_size=16)
    for at, status in walk(tree, path, opens=True):
        if left_out and any(f"{at}/".startswith(f"{each}/") for each in left_out):
            continue
        facts = facts_of(tree, at, status)
        kept = (at[len(path) :], facts.what, facts.mode, facts.size, facts.inode, facts.text)
        mtime_ns = 0 if facts.what == "directory" else facts.mtime_ns
        hashed.update(repr((*kept, mtime_ns)).encode("utf-8", "surrogateescape") + b"\0")
    return hashed.hexdigest()

"""Turns deltas into operations: what is new is put into slots beside the project, what is in the way is named, nothing is changed."""

from __future__ import annotations

import os
import stat
from fcntl import F_RDLCK, F_SETLEASE, fcntl

from corral._lib.dirfd_tree import DirfdTree, split
from corral._lib.records import Record, frozen
from corral.transactions import git_index, rename
from corral.transactions.copying import change_mode, copy_one, dress
from corral.transactions.journal import Operation, found_at, is_it
from corral.transactions.protected_paths import holds_protected
from corral.transactions.scan import Facts, facts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.transactions.protected_paths import Guarded
    from corral.transactions.scan import Delta

    Dress = tuple[str, Facts, Facts]  # a path, and what its mode, owner and times are and shall be

_MAY_ENTER_AND_WRITE, _ALL = 0o300, 0o700
_OVERLAY = "user.overlay."


@frozen
class Refused(Record):
    """A path that is not applied, and why."""

    path: str
    why: str


class Stage:
    """One application being prepared."""

    def __init__(
        self, project: DirfdTree, layer: DirfdTree, slots: DirfdTree, *, begun_ns: int, is_protected: Guarded
    ) -> None:
        self.project = project
        self.layer = layer
        self.slots = slots
        self.begun_ns = begun_ns
        self.is_protected = is_protected
        self.operations: list[Operation] = []
        self.conflicts: list[Refused] = []
        self.refused: list[Refused] = []
        self._links: dict[tuple[int, int], str] = {}
        self._swaps = rename.can_exchange(slots)
        # Whether what is new may be the layer's own file: not where the layer stays.
        self.shares = rename.mount_of(layer.descriptor) == rename.mount_of(slots.descriptor)
        self._closed: list[Dress] = []  # directories that are closed again when they are in their place
        self._led: set[str] = set()  # directories that are made on the way
        self._touched: dict[str, None] = {}  # directories in which names come or go

    def prepare(self, deltas: Sequence[Delta], paths: Sequence[str] | None) -> None:
        """Prepare what of the deltas lies at or below these paths; all of them without."""
        done: list[str] = []
        dresses: list[Dress] = []
        for delta in deltas:
            if any(delta.path.startswith(f"{above}/") for above in done[-1:]):
                continue
            if not _is_chosen(delta.path, paths):
                self._lead_to(delta, paths or ())
                continue
            if self._is_refused(delta) or self._is_in_the_way(delta):
                done.append(delta.path)
            elif delta.same_content and delta.old and delta.new and not self._is_linked(delta):
                # It stays what it is: with the layer's inode nobody could take it back.
                worn = delta.old.replace(mode=delta.new.mode, owner=delta.new.owner, mtime_ns=delta.new.mtime_ns)
                dresses.append((delta.path, delta.old, worn))
            else:
                self._replace(delta)
                done.append(delta.path)
        self._directories(dresses)
        self.operations = [*ordered(self.operations, dresses), *ordered((), self._closed)]

    def _lead_to(self, delta: Delta, paths: Sequence[str]) -> None:
        """Make a new directory, and nothing else of it, for what is chosen below."""
        is_made = delta.old is None and delta.new is not None and delta.new.what == "directory"
        if not is_made or not any(path.startswith(f"{delta.path}/") for path in paths) or self._is_refused(delta):
            return
        found = self.layer.status(delta.path)
        if found is not None:
            slot = self._slot()
            self._touched[split(delta.path)[0]] = None
            os.mkdir(slot, 0o700, dir_fd=self.slots.descriptor)
            dress(self.slots, slot, found, self.layer.mode(delta.path, found))
            self._put("add", delta.path, None, found_at(self.slots, slot))
            self._led.add(delta.path)

    def _is_linked(self, delta: Delta) -> bool:
        return delta.new is not None and delta.new.what == "file" and delta.new.links > 1

    def _is_refused(self, delta: Delta) -> bool:
        if delta.path and self.is_protected(delta.path):
            self.refused.append(
                Refused(delta.path, "it is protected: what is written there runs later, outside the sandbox")
            )
            return True
        if delta.new is not None and delta.new.what == "device":
            self.refused.append(Refused(delta.path, "it is a device"))
            return True
        if (
            delta.old is not None
            and delta.old.what == "directory"
            and (delta.new is None or delta.new.what != "directory")
        ):
            kept = holds_protected(self.project, delta.path, self.is_protected)
            if kept:
                self.refused.append(Refused(delta.path, f"it holds {kept}, which is protected"))
                return True
        return False

    def _is_in_the_way(self, delta: Delta) -> bool:
        """Note a conflict where the project has changed since the transaction began."""
        old, is_kept = delta.old, delta.new is not None and delta.new.what == "directory"
        if delta.displaced:
            self.conflicts.append(
                Refused(delta.path, "its directory was replaced in the project since the transaction began")
            )
            return True
        if not _is_still(found_at(self.project, delta.path), old):
            self.conflicts.append(
                Refused(delta.path, "it was changed in the project while the transaction was applied")
            )
            return True
        if old is None:
            if delta.was_there:
                self.conflicts.append(Refused(delta.path, "it was deleted in the project since the transaction began"))
                return True
            above = split(delta.path)[0]
            found = self.project.status(above)
            if above in self._led:
                return False
            if found is None or not stat.S_ISDIR(found.st_mode):
                self.conflicts.append(Refused(delta.path, "the directory that it was put in is gone"))
                return True
            return False
        if old.what == "directory" and is_kept:
            return False
        changed = delta.path if old.ctime_ns >= self.begun_ns else self._changed_below(delta.path, old)
        if changed:
            self.conflicts.append(Refused(changed, "it was changed in the project since the transaction began"))
        return bool(changed)

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
        if delta.new is None:
            self.operations.append(Operation("delete", delta.path, self._slot(), delta.old, None))
            return
        if delta.old is not None and not self._swaps:
            self.operations.append(Operation("delete", delta.path, self._slot(), delta.old, None))
            self._put("add", delta.path, None, self._staged(delta.path))
            return
        what = "add" if delta.old is None else "replace"
        self._put(what, delta.path, delta.old, self._staged(delta.path))

    def _put(self, what: str, path: str, old: Facts | None, staged: Facts | None) -> None:
        """Note that what is staged in the next slot goes to a path; a directory that is closed to its owner moves while it is open."""
        slot = self._slot()
        if staged is not None and _open(staged, _ALL) is not staged:
            change_mode(self.slots, slot, staged.mode | _ALL)
            self._closed.append((path, _open(staged, _ALL), staged))
            staged = _open(staged, _ALL)
        self.operations.append(Operation(what, path, slot, old, staged))

    def _staged(self, path: str) -> Facts | None:
        """Put what a layer holds at a path into the next slot, and return its facts."""
        slot = self._slot()
        found = self.layer.status(path)
        if found is None:
            return None
        if not stat.S_ISDIR(found.st_mode):
            self._stage_one(path, found, slot)
            return found_at(self.slots, slot)
        directories = [(path, slot, found, self.layer.mode(path, found))]
        pending = directories[:]
        os.mkdir(slot, 0o700, dir_fd=self.slots.descriptor)
        while pending:
            at, new, _, _ = pending.pop()
            for name in self.layer.names(at):
                inner, made = f"{at}/{name}", f"{new}/{name}"
                status = self.layer.status(inner)
                if status is None or stat.S_ISCHR(status.st_mode):
                    continue
                if self.is_protected(inner):
                    self.refused.append(
                        Refused(inner, "it is protected: what is written there runs later, outside the sandbox")
                    )
                elif stat.S_ISDIR(status.st_mode):
                    mode = self.layer.mode(inner, status)
                    self.layer.make_accessible(inner, status)
                    os.mkdir(name, 0o700, dir_fd=self.slots.directory(new))
                    pending.append((inner, made, status, mode))
                    directories.append((inner, made, status, mode))
                else:
                    self._stage_one(inner, status, made)
        for _, made, status, mode in reversed(directories):
            dress(self.slots, made, status, mode)
        return found_at(self.slots, slot)

    def _stage_one(self, path: str, found: os.stat_result, slot: str) -> None:
        if self.shares and self._link(path, slot):
            return
        copy_one(self.layer, path, found, self.slots, slot, links=self._links)

    def _link(self, path: str, slot: str) -> bool:
        """Give what a layer holds a second name in a slot, without what an overlay noted on it."""
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
            # As many names as the file system allows, or another user's file.
            return False
        held = os.open(to_name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.slots.directory(to_above))
        try:
            if stat.S_ISREG(os.fstat(held).st_mode):
                if _may_be_written(f"/proc/self/fd/{held}"):
                    os.unlink(to_name, dir_fd=self.slots.directory(to_above))
                    return False
                _strip(f"/proc/self/fd/{held}")
        finally:
            os.close(held)
        return True

    def _directories(self, dresses: list[Dress]) -> None:
        """Keep the times of the directories in which names come or go."""
        known = {path: (old, new) for path, old, new in dresses}
        for path in self._touched:
            old, found = found_at(self.project, path), self.layer.status(path)
            if old is None or old.what != "directory":
                continue
            new = known.get(path, (old, old))[1]
            if found is not None and stat.S_ISDIR(found.st_mode):
                new = new.replace(mtime_ns=found.st_mtime_ns)
            known[path] = (old, new)
        dresses[:] = [(path, *both) for path, both in known.items()]


def _is_still(found: Facts | None, known: Facts | None) -> bool:
    """Say whether something is as it was when it was compared: somebody else may have been applying meanwhile."""
    return is_it(found, known) and (found is None or known is None or found.mode == known.mode)


def ordered(renamed: Sequence[Operation], dresses: Sequence[Dress]) -> list[Operation]:
    """Return operations in an order that works: directories that are closed to their owner are open while names come and go in them.

    So is one that is itself moved: its own `..` is changed by that.
    """
    opened, dressed = [], []
    for path, old, new in dresses:
        between = _open(old, _MAY_ENTER_AND_WRITE)
        if between is not old:
            opened.append(Operation("dress", path, "", old, between))
        dressed.append(Operation("dress", path, "", between, new))
    opened += [
        Operation("dress", each.path, "", each.old, _open(each.old, _ALL))
        for each in renamed
        if each.old is not None and _open(each.old, _ALL) is not each.old
    ]
    # The outermost first, or the others could not be reached; and the deepest first to be closed.
    opened.sort(key=_depth)
    dressed.sort(key=_depth, reverse=True)
    return [*opened, *renamed, *dressed]


def _open(facts: Facts, rights: int) -> Facts:
    """Return the facts of a directory with rights for its owner; root needs none."""
    if facts.what != "directory" or facts.mode & rights == rights or os.geteuid() == 0:
        return facts
    return facts.replace(mode=facts.mode | rights)


def _depth(operation: Operation) -> int:
    return operation.path.count("/") if operation.path else -1


def _is_chosen(path: str, paths: Sequence[str] | None) -> bool:
    return paths is None or any(path == chosen or path.startswith(f"{chosen}/") or not chosen for chosen in paths)


def _may_be_written(path: str) -> bool:
    """Say whether somebody may hold a file open to write it: a command can hand that on to one that outlives the transaction."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        # The kernel gives a lease to read only on what nobody has open to write, mapped or on its way through a socket.
        fcntl(descriptor, F_SETLEASE, F_RDLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _strip(path: str) -> None:
    try:
        for name in os.listxattr(path):
            if name.startswith(_OVERLAY):
                os.removexattr(path, name)
    except OSError:
        # A file system without attributes, or a file whose owner may not write it.
        return


def print_of(tree: DirfdTree, path: str) -> str:
    """Return what tells something from any other: all that it holds is in it, but for bytes, which times and sizes stand for."""
    from _blake2 import blake2b  # noqa: PLC0415  hashlib takes longer to load

    found = tree.status(path)
    if found is None:
        return ""
    said = git_index.said_by(tree, path, found)
    hashed = blake2b(said, digest_size=16)
    if said:
        return hashed.hexdigest()
    pending = [(path, found)]
    while pending:
        at, status = pending.pop()
        facts = facts_of(tree, at, status)
        is_directory = facts.what == "directory"
        kept = (at[len(path) :], facts.what, facts.mode, facts.size, facts.inode, facts.text)
        hashed.update(repr((*kept, 0 if is_directory else facts.mtime_ns)).encode("utf-8", "surrogateescape") + b"\0")
        if is_directory:
            tree.make_accessible(at, status)
            for name in tree.names(at):
                inner = tree.status(f"{at}/{name}")
                if inner is not None:
                    pending.append((f"{at}/{name}", inner))
    return hashed.hexdigest()

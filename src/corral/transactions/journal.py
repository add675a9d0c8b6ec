"""What is to be done to a project, written down before anything is done, so that whoever comes next can complete it or take it back.

Each operation is a rename, or a change of mode and time. Whether one was done is seen from what lies where: each can be
done again, and taken back.
"""

from __future__ import annotations

import os

from corral._lib.dirfd_tree import DirfdTree, split
from corral._lib.records import Record, frozen
from corral.transactions import rename
from corral.transactions.copying import change_mode
from corral.transactions.scan import Facts, facts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ConflictError(Exception):
    """What lies at a path is not what was to be changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@frozen
class Operation(Record):
    """One change. `slot` is where the new thing waits, and where the old one goes.

    `what` is add, replace, delete or dress; `old` and `new` are what lies at the path before and after.
    """

    what: str
    path: str
    slot: str
    old: Facts | None
    new: Facts | None

    def inverted(self) -> Operation:
        """Return what takes it back."""
        opposite = {"add": "delete", "delete": "add"}
        return Operation(opposite.get(self.what, self.what), self.path, self.slot, self.new, self.old)

    def to_list(self) -> list[Any]:
        """Return it as JSON-ready data."""
        return [self.what, self.path, self.slot, _plain(self.old), _plain(self.new)]

    @classmethod
    def from_list(cls, data: list[Any]) -> Operation:
        """Rebuild it."""
        what, path, slot, old, new = data
        return cls(what, path, slot, _facts(old), _facts(new))


def _plain(facts: Facts | None) -> list[Any] | None:
    return None if facts is None else [getattr(facts, name) for name in facts._fields]


def _facts(data: list[Any] | None) -> Facts | None:
    if data is None:
        return None
    named = dict(zip(Facts._fields, data, strict=True))
    return Facts(**named | {"owner": tuple(named["owner"])})


def found_at(tree: DirfdTree, path: str) -> Facts | None:
    """Return the facts of what lies at a path, or None."""
    found = tree.status(path)
    return None if found is None else facts_of(tree, path, found)


def is_it(found: Facts | None, known: Facts | None) -> bool:
    """Say whether something is still what was known. Not by its time of change, which a rename is one of."""
    if found is None or known is None:
        return found is known
    if (found.what, found.device, found.inode) != (known.what, known.device, known.inode):
        return False
    if found.what == "directory":
        # Its time is that of what was put in it; what lies in it is compared where that matters.
        return True
    return (found.mode, found.size, found.mtime_ns, found.text) == (known.mode, known.size, known.mtime_ns, known.text)


class Hands:
    """Do operations on a project, with slots in a directory of the same file system."""

    def __init__(self, project: DirfdTree, slots: DirfdTree) -> None:
        self.project = project
        self.slots = slots

    def do(self, operation: Operation) -> None:
        """Do an operation, unless it was done; ConflictError where something else lies there."""
        self.project.forget()
        self.slots.forget()
        if operation.what == "dress":
            self._dress(operation)
        elif not self._is_done(operation):
            self._do(operation)

    def complete(self, operations: list[Operation]) -> str:
        """Do all operations; where one cannot be, take all back and return the path that stood in the way."""
        for number, operation in enumerate(operations):
            try:
                self.do(operation)
            except (ConflictError, OSError) as error:
                self.take_back(operations[: number + 1])
                return error.path if isinstance(error, ConflictError) else f"{operation.path}: {error.strerror}"
        return ""

    def take_back(self, operations: list[Operation]) -> None:
        """Take back what was done of operations; what somebody else has changed since stays theirs."""
        for operation in reversed(operations):
            if operation.what == "dress" or self._is_done(operation):
                try:
                    self.do(operation.inverted())
                except (ConflictError, OSError):
                    continue

    def _is_done(self, operation: Operation) -> bool:
        here, there = found_at(self.project, operation.path), found_at(self.slots, operation.slot)
        return is_it(here, operation.new) and is_it(there, operation.old)

    def _do(self, operation: Operation) -> None:
        here, there = found_at(self.project, operation.path), found_at(self.slots, operation.slot)
        if not is_it(here, operation.old) or not is_it(there, operation.new):
            raise ConflictError(operation.path)
        try:
            if operation.what == "add":
                rename.move(self.slots, operation.slot, self.project, operation.path)
            elif operation.what == "delete":
                rename.move(self.project, operation.path, self.slots, operation.slot)
                self._put_back_another(operation, rename.move)
            else:
                rename.exchange(self.slots, operation.slot, self.project, operation.path)
                self._put_back_another(operation, rename.exchange)
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            raise ConflictError(operation.path) from None

    def _put_back_another(self, operation: Operation, way: Any) -> None:
        """Undo a rename that took what somebody put there between the look and the rename."""
        if not is_it(found_at(self.slots, operation.slot), operation.old):
            way(self.slots, operation.slot, self.project, operation.path)
            raise ConflictError(operation.path)

    def _dress(self, operation: Operation) -> None:
        here, old, new = found_at(self.project, operation.path), operation.old, operation.new
        if here is None or new is None or old is None or (here.what, here.inode) != (old.what, old.inode):
            raise ConflictError(operation.path)
        above, name = split(operation.path)
        at = self.project.directory(above) if operation.path else self.project.descriptor
        if here.owner != new.owner and os.geteuid() == 0:
            if operation.path:
                os.chown(name, *new.owner, dir_fd=at, follow_symlinks=False)
            else:
                os.chown(at, *new.owner)
        if here.mode != new.mode and here.what != "link":
            change_mode(self.project, operation.path, new.mode)
            # No longer the one that it is to have again when the tree is let go of.
            self.project.modes.pop(operation.path, None)
        read_ns = os.stat(name, dir_fd=at, follow_symlinks=False).st_atime_ns if name else os.fstat(at).st_atime_ns
        if operation.path:
            os.utime(name, ns=(read_ns, new.mtime_ns), dir_fd=at, follow_symlinks=False)
        else:
            os.utime(at, ns=(read_ns, new.mtime_ns))

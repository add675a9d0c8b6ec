"""Defines the operations that change a project, and does and reverts them.

corral writes all operations to a journal before it does the first, so that the next process can complete or revert them. Each operation
is a rename or a change of metadata. The files themselves show whether it is done, so it can be repeated and reverted.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.transactions import rename
from corral.transactions.copying import set_metadata
from corral.transactions.scan import Facts, facts_at, facts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral._lib.dirfd_tree import DirfdTree

_OPPOSITE = {"add": "delete", "delete": "add"}


class ConflictError(Exception):
    """Another file is at the path than the one to be changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@frozen
class Operation(Record):
    """A change of one path. `slot` is the path beside the project where the new file waits, and where the old one goes.

    `what` is add, replace, delete or dress, which sets mode, owner and times. `old` and `new` are the facts before and after.
    """

    what: str
    path: str
    slot: str
    old: Facts | None
    new: Facts | None

    @property
    def keeps_directory(self) -> bool:
        """True if only the metadata of a directory changes."""
        return self.what == "dress" and self.new is not None and self.new.what == "directory"

    def inverted(self) -> Operation:
        """Return the operation that reverts this one."""
        return Operation(_OPPOSITE.get(self.what, self.what), self.path, self.slot, self.new, self.old)

    def to_list(self) -> list[Any]:
        """Return the operation as JSON-ready data."""
        facts = (
            None if each is None else [getattr(each, name) for name in each._fields] for each in (self.old, self.new)
        )
        return [self.what, self.path, self.slot, *facts]

    @classmethod
    def from_list(cls, data: list[Any]) -> Operation:
        """Rebuild an operation."""
        what, path, slot, old, new = data
        return cls(what, path, slot, _facts(old), _facts(new))


def _facts(data: list[Any] | None) -> Facts | None:
    if data is None:
        return None
    named = dict(zip(Facts._fields, data, strict=True))
    return Facts(**named | {"owner": tuple(named["owner"])})


def is_unchanged(found: Facts | None, known: Facts | None) -> bool:
    """Return whether a file is still the known one. Ignores ctime, because a rename changes it."""
    if found is None or known is None:
        return found is known
    if (found.what, found.device, found.inode) != (known.what, known.device, known.inode):
        return False
    if found.what == "directory":
        # Its mtime changes with its entries, which are compared where they matter.
        return True
    return (found.mode, found.size, found.mtime_ns, found.text) == (known.mode, known.size, known.mtime_ns, known.text)


class Executor:
    """Does operations on a project, with slots in a directory on the same mount."""

    def __init__(self, project: DirfdTree, slots: DirfdTree) -> None:
        self.project = project
        self.slots = slots

    def do(self, operation: Operation) -> None:
        """Do an operation unless it is done. Raise ConflictError if another file is at the path."""
        self.project.forget()
        self.slots.forget()
        if operation.what == "dress":
            self._set_metadata(operation)
        elif not self._is_done(operation):
            self._rename(operation)

    def complete(self, operations: list[Operation]) -> str:
        """Do all operations. If one fails, revert all and return the path that failed."""
        for number, operation in enumerate(operations):
            try:
                self.do(operation)
            except (ConflictError, OSError) as error:
                self.revert(operations[: number + 1])
                return error.path if isinstance(error, ConflictError) else f"{operation.path}: {error.strerror}"
        return ""

    def revert(self, operations: list[Operation]) -> None:
        """Revert the operations that are done. Leave paths alone that another process has changed since."""
        for operation in reversed(operations):
            if operation.what == "dress" or self._is_done(operation):
                try:
                    self.do(operation.inverted())
                except (ConflictError, OSError):
                    continue

    def _is_done(self, operation: Operation) -> bool:
        here, there = facts_at(self.project, operation.path), facts_at(self.slots, operation.slot)
        return is_unchanged(here, operation.new) and is_unchanged(there, operation.old)

    def _rename(self, operation: Operation) -> None:
        here, there = facts_at(self.project, operation.path), facts_at(self.slots, operation.slot)
        if not is_unchanged(here, operation.old) or not is_unchanged(there, operation.new):
            raise ConflictError(operation.path)
        try:
            if operation.what == "add":
                rename.move(self.slots, operation.slot, self.project, operation.path)
            elif operation.what == "delete":
                rename.move(self.project, operation.path, self.slots, operation.slot)
                self._check_moved(operation, rename.move)
            else:
                rename.exchange(self.slots, operation.slot, self.project, operation.path)
                self._check_moved(operation, rename.exchange)
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            raise ConflictError(operation.path) from None

    def _check_moved(self, operation: Operation, revert: Callable[[DirfdTree, str, DirfdTree, str], None]) -> None:
        """Put a file back that another process put at the path between the check and the rename."""
        if not is_unchanged(facts_at(self.slots, operation.slot), operation.old):
            revert(self.slots, operation.slot, self.project, operation.path)
            raise ConflictError(operation.path)

    def _set_metadata(self, operation: Operation) -> None:
        path, old, new = operation.path, operation.old, operation.new
        found = self.project.status(path)
        if found is None or new is None or old is None:
            raise ConflictError(path)
        here = facts_of(self.project, path, found)
        if (here.what, here.inode) != (old.what, old.inode):
            raise ConflictError(path)
        owner = new.owner if here.owner != new.owner else None
        mode = new.mode if here.mode != new.mode and here.what != "link" else None
        set_metadata(self.project, path, owner, mode, (found.st_atime_ns, new.mtime_ns))

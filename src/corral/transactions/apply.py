"""Writes a transaction's changes to its project, and takes them back: all of what was chosen, or nothing."""

from __future__ import annotations

import os
import stat
from time import time

from corral._lib.dirfd_tree import DirfdTree
from corral._lib.records import Record, frozen
from corral.model.errors import TransactionError
from corral.transactions import scan
from corral.transactions.changes import Change, describe
from corral.transactions.diff import unified
from corral.transactions.dir_identity import identity
from corral.transactions.journal import found_at
from corral.transactions.protected_paths import Guarded
from corral.transactions.stage import Refused, Stage, ordered, print_of
from corral.transactions.undo_store import Book

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Self

    from corral.transactions.journal import Operation
    from corral.transactions.scan import Delta, Facts
    from corral.transactions.undo_store import Entry
    from corral.transactions.workspace import Place

MAX_NOTED_CHANGES = 1_000  # in a project's history


@frozen
class Applied(Record):
    """What became of a transaction. With `conflicts` nothing was changed; what was `refused` is protected, and left out."""

    id: str
    changes: tuple[Change, ...] = ()
    conflicts: tuple[Refused, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether what was asked for is done, but for what is refused to everybody."""
        return not self.conflicts

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {
            "id": self.id,
            "ok": self.ok,
            "changes": [change.to_dict() for change in self.changes],
            "conflicts": [{"path": each.path, "why": each.why} for each in self.conflicts],
            "refused": [{"path": each.path, "why": each.why} for each in self.refused],
        }


class Look:
    """A transaction's layer beside its project, open to be read."""

    def __init__(self, root: str, place: Place, kept: Collection[str], programs: Collection[str] = ()) -> None:
        self.place = place
        self.project = DirfdTree(root, opens_files=False)
        try:
            if place.project != identity(self.project.descriptor):
                raise TransactionError(
                    f"{root} is another directory than the one that transaction {place.id} began in, "
                    f"which was moved or removed since. If its changes are not wanted any more: corral discard {place.id}"
                )
            # Where all was applied there is nothing left to look at.
            self.layer = DirfdTree(place.path if place.is_spent else place.layer)
            self.deltas = [] if place.is_spent else scan.find(self.project, self.layer, place)
        except BaseException:
            self.project.close()
            raise
        self.is_protected = Guarded(self.project, self.layer, self.deltas, kept, programs)

    def changes(self) -> tuple[Change, ...]:
        """Return what was changed."""
        return describe(self.deltas, self.project, self.layer, self.is_protected)

    def diff(self) -> str:
        """Return what was changed as a unified diff."""
        return unified(self.changes(), self.project, self.layer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.layer.close()
        self.project.close()


def apply(look: Look, environ: Mapping[str, str], paths: Iterable[str] | None, commands: Sequence[str]) -> Applied:
    """Write what lies at or below the paths, or everything, to the project."""
    id_, root = f"{look.place.id}-{os.urandom(2).hex()}", look.project.path
    chosen = None if paths is None else [_relative(path, root) for path in paths]
    for path in chosen or ():
        _refuse_unchanged(path, look.deltas)
    with Book(root, environ) as book:
        stage = _staged(book, look, id_, chosen)
        changes = _of(look.changes(), chosen, (*stage.refused, *stage.conflicts))
        if stage.conflicts or not stage.operations:
            book.abandon(id_)
            return Applied(
                look.place.id, () if stage.conflicts else changes, tuple(stage.conflicts), tuple(stage.refused)
            )
        facts = {
            "ends_as": "applied",
            "applied_at": time(),
            "transaction": look.place.id,
            "commands": list(commands),
            "changes": [change.to_dict() for change in changes[:MAX_NOTED_CHANGES]],
        }
        book.write(id_, facts, stage.operations)
        stood = book.complete(id_)
        book.prune()
    if stood:
        return Applied(look.place.id, (), (Refused(*_told(stood)),), tuple(stage.refused))
    if chosen is None:
        look.place.spend()
    return Applied(look.place.id, changes, (), tuple(stage.refused))


def _staged(book: Book, look: Look, id_: str, chosen: Sequence[str] | None) -> Stage:
    try:
        with DirfdTree(book.slots(id_)) as slots:
            stage = Stage(look.project, look.layer, slots, begun_ns=look.place.begun_ns, is_protected=look.is_protected)
            stage.shares &= chosen is None
            stage.prepare(look.deltas, chosen)
    except OSError as error:
        book.abandon(id_)
        raise TransactionError(f"the changes cannot be put beside the project: {error.strerror}") from error
    except BaseException:
        book.abandon(id_)
        raise
    return stage


def _told(stood: str) -> tuple[str, str]:
    path, _, why = stood.partition(": ")
    return path, why or "it was changed in the project while the transaction was applied"


def _relative(path: str, root: str) -> str:
    clean = os.path.normpath(os.path.join(root, os.fspath(path)))
    if clean != root and not clean.startswith(f"{root}/"):
        raise TransactionError(f"{path!r} does not lie in the project")
    return clean[len(root) + 1 :]


def _refuse_unchanged(path: str, found: Sequence[Delta]) -> None:
    """Raise where a path names no change: who asks for a part means to get one."""
    if not path or any(delta.path == path or delta.path.startswith(f"{path}/") for delta in found):
        return
    for delta in found:
        if delta.new is None and path.startswith(f"{delta.path}/"):
            raise TransactionError(f"{delta.path!r} was deleted as a whole: apply that, or nothing of it")
    raise TransactionError(f"the transaction has changed nothing at {path!r}, as seen from the project's directory")


def _of(changes: Iterable[Change], chosen: Sequence[str] | None, left_out: Sequence[Refused]) -> tuple[Change, ...]:
    """Return the changes that are applied."""

    def fits(path: str) -> bool:
        return chosen is None or any(path == each or path.startswith(f"{each}/") or not each for each in chosen)

    out = {each.path for each in left_out}
    return tuple(change for change in changes if fits(change.path) and change.path not in out and not change.protected)


def undo(root: str, environ: Mapping[str, str], id_: str = "") -> Applied:
    """Restore what was there before the transaction that was applied last, or the one whose id begins so."""
    with Book(root, environ) as book:
        fitting = [entry for entry in book.entries() if entry.state == "applied" and entry.id.startswith(id_)]
        if not fitting:
            raise TransactionError(f"there is nothing to undo in {root}" + (f" with the id {id_}" if id_ else ""))
        if id_ and len({each.id.partition("-")[0] for each in fitting}) > 1:
            known = ", ".join(each.id for each in fitting)
            raise TransactionError(f"several transactions have an id that begins with {id_!r} ({known})")
        entry = fitting[0]
        with DirfdTree(root) as project:
            touched = _touched(project, entry)
            if touched:
                return Applied(entry.id, (), tuple(Refused(path, "it was changed since") for path in touched))
            renamed, planted = _renamed_back(book, entry, project)
            if planted:
                book.abandon(entry.id)
                why = "it has become protected: what is written there runs later, outside the sandbox"
                return Applied(entry.id, (), (Refused(planted, why),))
            # A directory that comes back was open to its owner while it was moved.
            closed = [
                (each.path, each.old, each.old)
                for each in entry.operations
                if each.slot and each.old and _is_closed(each.old)
            ]
            operations = [*ordered(renamed, _undressed(project, entry)), *ordered((), closed)]
        facts = {
            "ends_as": "undone",
            "applied_at": entry.applied_at,
            "commands": list(entry.commands),
            "changes": list(entry.changes),
        }
        book.write(entry.id, facts, operations)
        stood = book.complete(entry.id)
    if stood:
        return Applied(entry.id, (), (Refused(*_told(stood)),))
    return Applied(entry.id, tuple(Change(**change) for change in entry.changes))


def _touched(project: DirfdTree, entry: Entry) -> list[str]:
    """Return what somebody else has changed since a transaction was applied."""
    found = []
    for operation, known in zip(entry.operations, entry.prints, strict=True):
        is_directory = operation.new is not None and operation.new.what == "directory"
        if operation.what == "dress" and is_directory:
            # Other names may have come and gone in it.
            continue
        if print_of(project, operation.path) != known:
            found.append(operation.path)
    return found


def _renamed_back(book: Book, entry: Entry, project: DirfdTree) -> tuple[list[Operation], str]:
    """Return what brings back what was there, and what of it would be protected."""
    try:
        with DirfdTree(book.slots(entry.id)) as slots:
            back = [_taken_back(each, project, slots) for each in reversed(entry.operations) if each.slot]
            return back, next(_planted(back, project, slots), "")
    except OSError as error:
        book.abandon(entry.id)
        raise TransactionError(f"what was there cannot be put beside the project: {error.strerror}") from error


def _planted(back: Iterable[Operation], project: DirfdTree, slots: DirfdTree) -> Iterator[str]:
    """Yield what is protected by now and would come back: commands may have made a repository around it since."""
    is_protected = Guarded(project, project, (), ())
    pending = [(each.slot, each.path) for each in back if each.new is not None]
    while pending:
        slot, path = pending.pop()
        if is_protected(path):
            yield path
        found = slots.status(slot)
        if found is not None and stat.S_ISDIR(found.st_mode):
            slots.make_accessible(slot, found)
            pending += [(f"{slot}/{name}", f"{path}/{name}") for name in slots.names(slot)]


def _taken_back(operation: Operation, project: DirfdTree, slots: DirfdTree) -> Operation:
    """Return what undoes an operation, as things are: modes were changed since, and on another disk the slots hold copies."""
    back = operation.inverted()
    return back.replace(
        old=None if back.old is None else found_at(project, back.path),
        new=None if back.new is None else found_at(slots, back.slot),
    )


def _is_closed(old: Facts) -> bool:
    return old.what == "directory" and old.mode & 0o700 != 0o700


def _undressed(project: DirfdTree, entry: Entry) -> list[tuple[str, Facts, Facts]]:
    """Return which modes and times to restore: those that nobody has changed since."""
    first: dict[str, Facts] = {}
    last: dict[str, Facts] = {}
    for operation in entry.operations:
        if operation.what == "dress" and operation.old and operation.new:
            first.setdefault(operation.path, operation.old)
            last[operation.path] = operation.new
    moved = {each.path for each in entry.operations if each.slot}
    found = []
    for path, left in last.items():
        if path in moved:
            # It goes, or comes back, as a whole.
            continue
        now = found_at(project, path)
        if now is not None and (now.mode, now.mtime_ns) == (left.mode, left.mtime_ns):
            found.append((path, now, first[path]))
    return found


def history(root: str, environ: Mapping[str, str]) -> list[Entry]:
    """Return the transactions that were applied to a project, the latest first."""
    with Book(root, environ) as book:
        return book.entries()

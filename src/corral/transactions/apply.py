"""Writes the changes of a transaction to its project, and undoes them: all chosen changes, or none."""

from __future__ import annotations

import os
from time import time

from corral._lib.dirfd_tree import DirfdTree
from corral._lib.records import Record, frozen
from corral.model.errors import TransactionError
from corral.transactions import scan
from corral.transactions.changes import Change, describe
from corral.transactions.diff import unified
from corral.transactions.protected_paths import ProtectedPaths
from corral.transactions.stage import CHANGED_MEANWHILE, PROTECTED, Refused, Stage, fingerprint, is_chosen, ordered
from corral.transactions.undo_store import UndoStore
from corral.transactions.workspace import directory_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Self

    from corral.transactions.journal import Operation
    from corral.transactions.scan import Delta, Facts
    from corral.transactions.stage import Metadata
    from corral.transactions.undo_store import Entry
    from corral.transactions.workspace import Place

MAX_NOTED_CHANGES = 1_000  # per transaction in the history


@frozen
class Applied(Record):
    """The result of an apply or undo. If there are `conflicts`, nothing was changed. The paths in `refused` were left out."""

    id: str
    changes: tuple[Change, ...] = ()
    conflicts: tuple[Refused, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def ok(self) -> bool:
        """True if all changes are done except those in `refused`."""
        return not self.conflicts

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {
            "id": self.id,
            "ok": self.ok,
            "changes": [change.to_dict() for change in self.changes],
            "conflicts": [each.to_dict() for each in self.conflicts],
            "refused": [each.to_dict() for each in self.refused],
        }


class LayerView:
    """Opens a transaction's layer and its project, to read the changes."""

    def __init__(self, root: str, place: Place, kept: Collection[str], programs: Collection[str] = ()) -> None:
        self.place = place
        self.project = DirfdTree(root, opens_files=False)
        try:
            if place.project != directory_identity(self.project.descriptor):
                raise TransactionError(
                    f"{root} is not the directory in which transaction {place.id} began: that was moved or removed. "
                    f"If you do not want its changes any more: corral discard {place.id}"
                )
            # After a full apply, the layer no longer exists.
            self.layer = DirfdTree(place.path if place.is_spent else place.layer)
            self.deltas = [] if place.is_spent else scan.find(self.project, self.layer, place)
        except BaseException:
            self.project.close()
            raise
        self.is_protected = ProtectedPaths(self.project, self.layer, self.deltas, kept, programs)

    def changes(self) -> tuple[Change, ...]:
        """Return the changes."""
        return describe(self.deltas, self.project, self.layer, self.is_protected)

    def diff(self) -> str:
        """Return the changes as a unified diff."""
        return unified(self.changes(), self.project, self.layer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.layer.close()
        self.project.close()


def apply(look: LayerView, environ: Mapping[str, str], paths: Iterable[str] | None, commands: Sequence[str]) -> Applied:
    """Write the changes at or below the paths, or all changes, to the project."""
    transaction = look.place.id
    id_, root = f"{transaction}-{os.urandom(2).hex()}", look.project.path
    chosen = None if paths is None else [_relative(path, root) for path in paths]
    for path in chosen or ():
        _refuse_unchanged(path, look.deltas)
    with UndoStore(root, environ) as store:
        stage = _prepare(store, look, id_, chosen)
        conflicts, refused = tuple(stage.conflicts), tuple(stage.refused)
        left_out = {each.path for each in (*refused, *conflicts)}
        changes = tuple(
            change
            for change in look.changes()
            if is_chosen(change.path, chosen) and change.path not in left_out and not change.protected
        )
        if conflicts or not stage.operations:
            store.abandon(id_)
            return Applied(transaction, () if conflicts else changes, conflicts, refused)
        facts = {
            "ends_as": "applied",
            "applied_at": time(),
            "transaction": transaction,
            "commands": list(commands),
            "changes": [change.to_dict() for change in changes[:MAX_NOTED_CHANGES]],
        }
        store.write(id_, facts, stage.operations)
        failure = store.complete(id_)
        store.prune()
    if failure:
        return Applied(transaction, (), (_conflict(failure),), refused)
    if chosen is None:
        look.place.spend()
    return Applied(transaction, changes, (), refused)


def _prepare(store: UndoStore, look: LayerView, id_: str, chosen: Sequence[str] | None) -> Stage:
    try:
        with DirfdTree(store.slots(id_)) as slots:
            stage = Stage(look.project, look.layer, slots, begun_ns=look.place.begun_ns, is_protected=look.is_protected)
            stage.shares &= chosen is None
            stage.prepare(look.deltas, chosen)
    except OSError as error:
        store.abandon(id_)
        raise TransactionError(f"the changes cannot be copied beside the project: {error.strerror}") from error
    except BaseException:
        store.abandon(id_)
        raise
    return stage


def _conflict(failure: str) -> Refused:
    path, _, why = failure.partition(": ")
    return Refused(path, why or CHANGED_MEANWHILE)


def _relative(path: str, root: str) -> str:
    clean = os.path.normpath(os.path.join(root, os.fspath(path)))
    if clean != root and not clean.startswith(f"{root}/"):
        raise TransactionError(f"{path!r} is not in the project")
    return clean[len(root) + 1 :]


def _refuse_unchanged(path: str, found: Sequence[Delta]) -> None:
    """Raise if a chosen path has no change: the user expects one there."""
    if any(is_chosen(delta.path, (path,)) for delta in found) or not path:
        return
    for delta in found:
        if delta.new is None and path.startswith(f"{delta.path}/"):
            raise TransactionError(f"the directory {delta.path!r} was deleted: you can apply only all of that")
    raise TransactionError(f"the transaction has not changed {path!r} (paths are relative to the project)")


def undo(root: str, environ: Mapping[str, str], id_: str = "") -> Applied:
    """Restore the files from before the last applied transaction, or before the one whose id begins with `id_`."""
    with UndoStore(root, environ) as store:
        fitting = [entry for entry in store.entries() if entry.state == "applied" and entry.id.startswith(id_)]
        if not fitting:
            raise TransactionError(f"there is nothing to undo in {root}" + (f" with the id {id_}" if id_ else ""))
        if id_ and len({each.id.partition("-")[0] for each in fitting}) > 1:
            known = ", ".join(each.id for each in fitting)
            raise TransactionError(f"several transactions have an id that begins with {id_!r} ({known})")
        entry = fitting[0]
        with DirfdTree(root) as project:
            changed = _changed_since(project, entry)
            if changed:
                return Applied(entry.id, (), tuple(Refused(path, "it was changed since") for path in changed))
            renames, protected = _renames_back(store, entry, project)
            if protected:
                store.abandon(entry.id)
                return Applied(entry.id, (), (Refused(protected, PROTECTED),))
            # Restored directories were accessible while they were moved; restore their modes too.
            closed = [
                (each.path, each.old, each.old)
                for each in entry.operations
                if each.slot and each.old and each.old.what == "directory" and each.old.mode & 0o700 != 0o700
            ]
            operations = [*ordered(renames, _metadata_back(project, entry)), *ordered((), closed)]
        facts = {
            "ends_as": "undone",
            "applied_at": entry.applied_at,
            "commands": list(entry.commands),
            "changes": list(entry.changes),
        }
        store.write(entry.id, facts, operations)
        failure = store.complete(entry.id)
    if failure:
        return Applied(entry.id, (), (_conflict(failure),))
    return Applied(entry.id, tuple(Change(**change) for change in entry.changes))


def _changed_since(project: DirfdTree, entry: Entry) -> list[str]:
    """Return the paths of an applied transaction that were changed since."""
    return [
        operation.path
        for operation, known in zip(entry.operations, entry.prints, strict=True)
        # Entries may be added to or removed from a directory whose metadata alone was changed.
        if not operation.keeps_directory and fingerprint(project, operation.path) != known
    ]


def _renames_back(store: UndoStore, entry: Entry, project: DirfdTree) -> tuple[list[Operation], str]:
    """Return the renames that restore the old files, and a path of them that is protected by now."""
    try:
        with DirfdTree(store.slots(entry.id)) as slots:
            back = [_inverted(each, project, slots) for each in reversed(entry.operations) if each.slot]
            return back, next(_protected(back, project, slots), "")
    except OSError as error:
        store.abandon(entry.id)
        raise TransactionError(f"the old files cannot be copied beside the project: {error.strerror}") from error


def _protected(back: Iterable[Operation], project: DirfdTree, slots: DirfdTree) -> Iterator[str]:
    """Yield the paths that undo would restore and that are protected by now: commands may have made a repository around them."""
    is_protected = ProtectedPaths(project, project, (), ())
    for operation in back:
        if operation.new is not None:
            for at, _ in scan.walk(slots, operation.slot, opens=True):
                path = operation.path + at[len(operation.slot) :]
                if is_protected(path):
                    yield path


def _inverted(operation: Operation, project: DirfdTree, slots: DirfdTree) -> Operation:
    """Return the inverse with present facts: modes were changed since, and on another disk the slots hold copies."""
    back = operation.inverted()
    return back.replace(
        old=None if back.old is None else scan.facts_at(project, back.path),
        new=None if back.new is None else scan.facts_at(slots, back.slot),
    )


def _metadata_back(project: DirfdTree, entry: Entry) -> list[Metadata]:
    """Return the modes and times to restore: only if they are still as the transaction left them."""
    first: dict[str, Facts] = {}
    last: dict[str, Facts] = {}
    for operation in entry.operations:
        if operation.what == "dress" and operation.old and operation.new:
            first.setdefault(operation.path, operation.old)
            last[operation.path] = operation.new
    renamed = {each.path for each in entry.operations if each.slot}
    found = []
    for path, left in last.items():
        now = scan.facts_at(project, path)
        # A renamed file is restored with its metadata.
        if path not in renamed and now is not None and (now.mode, now.mtime_ns) == (left.mode, left.mtime_ns):
            found.append((path, now, first[path]))
    return found


def history(root: str, environ: Mapping[str, str]) -> list[Entry]:
    """Return the transactions that were applied to a project, the latest first."""
    with UndoStore(root, environ) as store:
        return store.entries()

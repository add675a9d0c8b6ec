"""Writes the changes of a transaction to its project: all chosen changes, or none."""

from __future__ import annotations

import os
from time import time

from corral._lib.dirfd_tree import DirfdTree
from corral._lib.records import Record, frozen
from corral.model.errors import TransactionError
from corral.transactions import scan
from corral.transactions.changes import Change, describe
from corral.transactions.diff import unified
from corral.transactions.git_changes import GitChanges, made_repositories
from corral.transactions.protected_paths import ProtectedPaths
from corral.transactions.stage import CHANGED_MEANWHILE, Refused, Stage, is_chosen
from corral.transactions.undo_store import UndoStore
from corral.transactions.workspace import directory_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Any, Self

    from corral.transactions.scan import Delta
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

    def __init__(self, root: str, place: Place, kept: Collection[str]) -> None:
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
        self.git = GitChanges(root, place.path, place.layer, made_repositories(self.deltas, place.layer))
        # A repository that the transaction made is not applied as files.
        self.deltas = [delta for delta in self.deltas if not self.git.is_inside_made(delta.path)]
        self.is_protected = ProtectedPaths(self.project, self.layer, kept)

    def changes(self) -> tuple[Change, ...]:
        """Return the changes."""
        return (*self._file_changes(), *self.git.changes())

    def _file_changes(self) -> tuple[Change, ...]:
        return describe(self.deltas, self.project, self.layer, self.is_protected)

    def diff(self) -> str:
        """Return the changes as a unified diff, and the refs that changed."""
        return unified(self._file_changes(), self.project, self.layer) + self.git.diff()

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
    git_changes = look.git.changes(chosen)
    for path in chosen or ():
        if not any(f"{change.path}/".startswith(f"{path}/") for change in git_changes):
            _refuse_unchanged(path, look.deltas)
    with UndoStore(root, environ) as store:
        stage = _prepare(store, look, id_, chosen)
        conflicts = tuple(stage.conflicts)
        refused = tuple(each for each in stage.refused if not look.git.is_inside_made(each.path))
        left_out = {each.path for each in (*refused, *conflicts)}
        changes = tuple(
            change
            for change in (*look._file_changes(), *git_changes)
            if is_chosen(change.path, chosen) and change.path not in left_out and not change.protected
        )
        if conflicts or not (stage.operations or git_changes):
            store.abandon(id_)
            return Applied(transaction, () if conflicts else changes, conflicts, refused)
        work = look.git.work(store.folder(id_), chosen) if git_changes else None
        if work is not None:
            look.place.hold_for(store.git_work(id_))
        facts = {
            "ends_as": "applied",
            "applied_at": time(),
            "transaction": transaction,
            "commands": list(commands),
            "changes": [change.to_dict() for change in changes[:MAX_NOTED_CHANGES]],
        }
        store.write(id_, facts, stage.operations, work)
        failure = store.complete(id_)
        if failure:
            store.forget_git(id_)
        elif work is not None:
            refused += tuple(Refused(path, why) for path, why in store.finish_git(id_))
        store.prune()
    if failure:
        return Applied(transaction, (), (conflict_of(failure),), refused)
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


def conflict_of(failure: str) -> Refused:
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

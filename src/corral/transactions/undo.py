"""Undoes an applied transaction: restores the old files, or reports which files were changed since."""

from __future__ import annotations

import os

from corral._lib.dirfd_tree import DirfdTree
from corral.git.restore import MADE
from corral.model.errors import TransactionError
from corral.transactions import scan
from corral.transactions.apply import Applied, conflict_of
from corral.transactions.changes import Change
from corral.transactions.git_changes import why_not_undone
from corral.transactions.protected_paths import ProtectedPaths
from corral.transactions.stage import PROTECTED, Refused, fingerprint, ordered
from corral.transactions.undo_store import UndoStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corral.transactions.journal import Operation
    from corral.transactions.scan import Facts
    from corral.transactions.stage import Metadata
    from corral.transactions.undo_store import Entry


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
            changed_git = why_not_undone(root, entry.git)
            if changed_git:
                return Applied(entry.id, (), tuple(Refused(path, why) for path, why in changed_git))
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
        store.write(entry.id, facts, operations, {"noted": entry.git} if entry.git else None)
        failure = store.complete(entry.id)
        refused: tuple[Refused, ...] = ()
        if failure:
            store.forget_git(entry.id)
        elif entry.git:
            refused = tuple(Refused(path, why) for path, why in store.finish_git(entry.id))
    if failure:
        return Applied(entry.id, (), (conflict_of(failure),))
    return Applied(entry.id, tuple(Change(**change) for change in entry.changes), (), refused)


def _changed_since(project: DirfdTree, entry: Entry) -> list[str]:
    """Return the paths of an applied transaction that were changed since. Repositories that it made are compared by git."""
    made = [os.path.relpath(each["git_dir"], project.path) for each in entry.git if each.get(MADE)]
    return [
        operation.path
        for operation, known in zip(entry.operations, entry.prints, strict=True)
        # Entries may be added to or removed from a directory whose metadata alone was changed.
        if not operation.keeps_directory and fingerprint(project, operation.path, made) != known
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
    is_protected = ProtectedPaths(project, project, ())
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

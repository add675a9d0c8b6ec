"""Ends the transaction of a task, and checks its changes, conflicts and refusals."""

from __future__ import annotations

from corral.apps.evals.outcome import OF_TRANSACTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from corral.sandbox import Sandbox
    from corral.transactions.apply import Applied
    from corral.transactions.changes import Change
    from corral.transactions.transaction import Transaction

WAYS = APPLY, DISCARD, UNDO = "apply", "discard", "undo"
KINDS = ("added", "changed", "deleted", "mode", "link", "time")
RENAMED = "renamed from "  # the old path follows
MAX_KEPT = 100  # changes, conflicts and refusals of one task in its outcome; all are checked


class Settled:
    """The end of a transaction. `became` is applied, undone, discarded, conflict or nothing, as in `corral history`."""

    def __init__(self, became: str, changes: Mapping[str, str], applied: Applied | None = None) -> None:
        self.became = became
        self.changes = changes
        self.conflicts = {} if applied is None else {each.path: each.why for each in applied.conflicts}
        self.refused = {} if applied is None else {each.path: each.why for each in applied.refused}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data of bounded size."""
        data: dict[str, Any] = {"became": self.became}
        for name in OF_TRANSACTION:
            found = getattr(self, name)
            data[name] = dict(sorted(found.items())[:MAX_KEPT])
            if len(found) > MAX_KEPT:
                data[f"more_{name}"] = len(found) - MAX_KEPT
        return data

    def differences(self, expect: Mapping[str, Any]) -> Iterator[str]:
        """Yield the differences from a task's expectations."""
        if "changes" in expect:
            wanted = expect["changes"]
            for path in sorted({*wanted, *self.changes}):
                want, was = (found.get(path, "as it was") for found in (wanted, self.changes))
                if want != was:
                    yield f"changes: {path}: wanted {want}, is {was}"
        for name in ("conflicts", "refused"):
            found: Mapping[str, str] = getattr(self, name)
            if name in expect and sorted(set(expect[name])) != sorted(found):
                told = ", ".join(f"{path} ({found[path]})" for path in sorted(found))
                yield f"{name}: wanted {', '.join(sorted(set(expect[name]))) or 'none'}, found {told or 'none'}"


def settle(tx: Transaction, box: Sandbox, way: str, meanwhile: Callable[[], None]) -> Settled:
    """Apply, discard or undo a transaction. `meanwhile` makes the user's own edits just before the last step."""
    changes = {change.path: _kind(change) for change in tx.changes()}
    if way != UNDO:
        meanwhile()
    if way == DISCARD:
        tx.discard()
        return Settled("discarded" if changes else "nothing", changes)
    applied = tx.apply()
    if way == APPLY or applied.conflicts or not applied.changes:
        became = "conflict" if applied.conflicts else "applied" if applied.changes else "nothing"
        return Settled(became, changes, applied)
    meanwhile()
    undone = box.undo(tx.id)
    return Settled("undone" if undone.ok else "conflict", changes, undone.replace(refused=applied.refused))


def _kind(change: Change) -> str:
    return f"{RENAMED}{change.old_path}" if change.kind == "renamed" else change.kind

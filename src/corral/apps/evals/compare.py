"""Compares two runs: which tasks broke, were mended, are new or gone, or behave differently. Pure."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.apps.evals.expectations import shown
from corral.apps.evals.outcome import OF_TRANSACTION, PASSED, SKIPPED
from corral.apps.evals.results import rates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from corral.apps.evals.outcome import Outcome

BROKEN, MENDED, NEW, GONE, OTHER = KINDS = ("broken", "mended", "new", "gone", "changed")
# Times and output differ between runs. The digest covers the keys that the task itself gives.
_NOT_COMPARED = ("duration_ms", "stdout", "stderr", "argv", "shell", "profile")


@frozen
class Change(Record):
    """A task whose outcome changed. `words` describe the change."""

    kind: str
    id: str
    before: str = ""
    after: str = ""
    words: tuple[str, ...] = ()


@frozen
class Comparison(Record):
    """The changes between two runs. `tags` has the tags whose rate changed, with the rate before and after, or None."""

    changes: tuple[Change, ...]
    tags: tuple[tuple[str, float | None, float | None], ...]
    same: int

    @property
    def is_worse(self) -> bool:
        """True if a good task broke, or a new task is not good."""
        return any(change.kind == BROKEN for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready data."""
        changes = [{name: getattr(c, name) for name in c._fields} | {"words": list(c.words)} for c in self.changes]
        tags = {tag: {"before": before, "after": after} for tag, before, after in self.tags}
        return {"same": self.same, "changes": changes, "tags": tags}


def compare(before: Sequence[Outcome], after: Sequence[Outcome]) -> Comparison:
    """Compare two runs."""
    old, new = ({outcome.id: outcome for outcome in run} for run in (before, after))
    found = [_change(old.get(name), new.get(name)) for name in dict.fromkeys((*new, *old))]
    changes = sorted((change for change in found if change is not None), key=lambda change: KINDS.index(change.kind))
    shares = [{rate.tag: rate.share for rate in rates(run) if rate.tried} for run in (before, after)]
    tags = sorted({*shares[0], *shares[1]})
    moved = tuple((tag, shares[0].get(tag), shares[1].get(tag)) for tag in tags)
    return Comparison(tuple(changes), tuple(row for row in moved if row[1] != row[2]), len(found) - len(changes))


def _change(old: Outcome | None, new: Outcome | None) -> Change | None:
    if old is None:
        assert new is not None  # noqa: S101  every id is in at least one run
        return Change(NEW if new.is_good else BROKEN, new.id, "", new.status, new.words)
    if new is None:
        return Change(GONE, old.id, old.status)
    if old.is_good and not new.is_good:
        return Change(BROKEN, new.id, old.status, new.status, (*_edited(old, new), *new.words))
    if new.status == PASSED and not old.is_good:
        return Change(MENDED, new.id, old.status, new.status, _edited(old, new))
    words = tuple(_differences(old, new))
    return Change(OTHER, new.id, old.status, new.status, words) if words else None


def _edited(old: Outcome, new: Outcome) -> tuple[str, ...]:
    return ("the task itself was changed",) if old.digest != new.digest else ()


def _differences(old: Outcome, new: Outcome) -> Iterator[str]:
    """Yield the differences between two outcomes that are both good, or both not."""
    yield from _edited(old, new)
    if old.status != new.status:
        yield f"{old.status}, now {new.status}" + (f": {new.said}" if new.status == SKIPPED else "")
    yield from (f"now: {words}" for words in new.differences if words not in old.differences)
    yield from (f"no longer: {words}" for words in old.differences if words not in new.differences)
    for number, (before, after) in enumerate(zip(old.calls, new.calls, strict=False), 1):
        for key in after:
            if key not in _NOT_COMPARED and before.get(key) != after[key]:
                yield f"call {number}: {key} was {shown(before.get(key))}, is {shown(after[key])}"
    if old.transaction and new.transaction:
        yield from _transaction_differences(old.transaction, new.transaction)


def _transaction_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["became"] != new["became"]:
        yield f"transaction was {old['became']}, is {new['became']}"
    for name in OF_TRANSACTION:
        before, after = old[name], new[name]
        for path in dict.fromkeys((*before, *after)):
            if before.get(path) != after.get(path):
                yield f"{name}: {path} was {before.get(path, 'none')}, is {after.get(path, 'none')}"

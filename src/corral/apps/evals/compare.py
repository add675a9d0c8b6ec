"""Two runs side by side: what broke, what was mended, what is new or gone, what behaves in another way. Pure."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.apps.evals.outcome import OF_TRANSACTION, PASSED, SKIPPED
from corral.apps.evals.results import rates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from corral.apps.evals.outcome import Outcome

BROKEN, MENDED, NEW, GONE, OTHER = KINDS = ("broken", "mended", "new", "gone", "changed")
# Times, what was printed, and what the task says, whose digest is compared.
_APART = ("duration_ms", "stdout", "stderr", "argv", "shell", "profile")


@frozen
class Change(Record):
    """One task that is not as it was; `words` say in which way."""

    kind: str
    id: str
    before: str = ""
    after: str = ""
    words: tuple[str, ...] = ()


@frozen
class Comparison(Record):
    """All that changed between two runs, and the tags whose rates did: the rate before and after, each None where there is none."""

    changes: tuple[Change, ...]
    tags: tuple[tuple[str, float | None, float | None], ...]
    same: int

    @property
    def is_worse(self) -> bool:
        """Whether something that was good is not any more, or something new is not good."""
        return any(change.kind == BROKEN for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready data."""
        changes = [{name: getattr(change, name) for name in change._fields} for change in self.changes]
        tags = {tag: {"before": before, "after": after} for tag, before, after in self.tags}
        return {"same": self.same, "changes": [c | {"words": list(c["words"])} for c in changes], "tags": tags}


def compare(before: Sequence[Outcome], after: Sequence[Outcome]) -> Comparison:
    """Return what changed between two runs."""
    old, new = ({outcome.id: outcome for outcome in run} for run in (before, after))
    found = [_change(old.get(name), new.get(name)) for name in dict.fromkeys((*new, *old))]
    changes = sorted((change for change in found if change is not None), key=lambda change: KINDS.index(change.kind))
    shares = [{rate.tag: rate.share for rate in rates(run) if rate.tried} for run in (before, after)]
    tags = sorted({*shares[0], *shares[1]})
    moved = tuple((tag, shares[0].get(tag), shares[1].get(tag)) for tag in tags)
    return Comparison(tuple(changes), tuple(row for row in moved if row[1] != row[2]), len(found) - len(changes))


def _change(old: Outcome | None, new: Outcome | None) -> Change | None:
    if old is None:
        assert new is not None  # noqa: S101  every name is one of the two runs'
        return Change(NEW if new.is_good else BROKEN, new.id, "", new.status, new.words)
    if new is None:
        return Change(GONE, old.id, old.status)
    if old.is_good and not new.is_good:
        return Change(BROKEN, new.id, old.status, new.status, (*_edited(old, new), *new.words))
    if new.status == PASSED and not old.is_good:
        return Change(MENDED, new.id, old.status, new.status, _edited(old, new))
    words = _words(old, new)
    return Change(OTHER, new.id, old.status, new.status, tuple(words)) if words else None


def _edited(old: Outcome, new: Outcome) -> tuple[str, ...]:
    return ("the task itself was changed",) if old.digest != new.digest else ()


def _words(old: Outcome, new: Outcome) -> list[str]:
    """Return in which way two outcomes differ that are both good, or both not."""
    said = [*_edited(old, new)]
    if old.status != new.status:
        said.append(f"{old.status}, now {new.status}" + (f": {new.said}" if new.status == SKIPPED else ""))
    if old.differences != new.differences:
        said += [f"now: {words}" for words in new.differences if words not in old.differences]
        said += [f"no longer: {words}" for words in old.differences if words not in new.differences]
    for number, (before, after) in enumerate(zip(old.calls, new.calls, strict=False), 1):
        said += [
            f"call {number}: {key} was {_told(before.get(key))}, is {_told(after[key])}"
            for key in _moved(before, after)
        ]
    return [*said, *_settled(old.transaction or {}, new.transaction or {})]


def _settled(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return in which way what became of two transactions differs."""
    if not old or not new:
        # The task itself was changed then.
        return []
    said = [] if old["became"] == new["became"] else [f"transaction was {old['became']}, is {new['became']}"]
    for name in OF_TRANSACTION:
        before, after = old[name], new[name]
        paths = [path for path in dict.fromkeys((*before, *after)) if before.get(path) != after.get(path)]
        said += [f"{name}: {path} was {before.get(path, 'none')}, is {after.get(path, 'none')}" for path in paths]
    return said


def _moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [key for key in after if key not in _APART and before.get(key) != after[key]]


def _told(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The outcome of a task and its JSON form. All of it except the times is the same on every machine."""

from __future__ import annotations

import json

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

OF_TRANSACTION = ("changes", "conflicts", "refused")  # tables of an outcome's transaction, by path
PASSED, FAILED, ERROR, SKIPPED = STATUSES = ("passed", "failed", "error", "skipped")
_LISTS = ("tags", "differences", "calls")


@frozen
class Outcome(Record):
    """The outcome of one task. `said` is the reason for a skipped task, or the error of corral itself.

    `differences` are the expectations that were not met. `transaction` has `became` and, by path, `changes`, `conflicts` and `refused`.
    """

    id: str
    digest: str
    status: str
    tags: tuple[str, ...] = ()
    source: str = ""
    differences: tuple[str, ...] = ()
    said: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    duration_ms: float = 0.0
    transaction: Mapping[str, Any] | None = None

    @property
    def is_good(self) -> bool:
        """True if the task passed or was skipped."""
        return self.status in (PASSED, SKIPPED)

    @property
    def words(self) -> tuple[str, ...]:
        """Return every reason why the task did not pass."""
        return (*self.differences, *((self.said,) if self.said else ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data."""
        data = {
            name: getattr(self, name) for name in self._fields if name != "transaction" or self.transaction is not None
        }
        return data | {name: list(data[name]) for name in _LISTS}

    @classmethod
    def parse(cls, data: object) -> Outcome | None:
        """Rebuild an outcome from `to_dict`. Returns None for other data: a file may hold anything."""
        if not isinstance(data, dict):
            return None
        fields = {name: data[name] for name in cls._fields if name in data}
        try:
            made = cls(**fields | {name: tuple(data.get(name, ())) for name in _LISTS})
        except TypeError:
            return None
        texts = (made.id, made.digest, made.source, made.said, *made.tags, *made.differences)
        is_sound = (
            all(isinstance(text, str) for text in texts)
            and made.status in STATUSES
            and all(isinstance(call, dict) for call in made.calls)
            and isinstance(made.duration_ms, int | float)
            and 0 <= made.duration_ms < float("inf")
            and (made.transaction is None or _is_transaction(made.transaction))
        )
        return made if is_sound else None


def _is_transaction(data: object) -> bool:
    if not isinstance(data, dict) or not isinstance(data.get("became"), str):
        return False
    tables = [data.get(name) for name in OF_TRANSACTION]
    return all(isinstance(table, dict) and all(isinstance(word, str) for word in table.values()) for table in tables)


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line, or None."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None

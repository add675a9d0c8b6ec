"""What became of a task, and its JSON form. Everything in it but the times is the same wherever the task runs."""

from __future__ import annotations

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

OF_TRANSACTION = ("changes", "conflicts", "refused")  # what became of one, each by its paths
PASSED, FAILED, ERROR, SKIPPED = STATUSES = ("passed", "failed", "error", "skipped")


@frozen
class Outcome(Record):
    """`differences` are what was not as expected; `said` is why it was skipped, or the error that corral itself met.

    `transaction` is what became of the one that its calls ran in: `became`, and by their paths `changes`, `conflicts`, `refused`.
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
        """Whether nothing speaks against it."""
        return self.status in (PASSED, SKIPPED)

    @property
    def is_sound(self) -> bool:
        """Whether it is what this record promises: a file may hold anything."""
        texts = (self.id, self.digest, self.source, self.said, *self.tags, *self.differences)
        return (
            all(isinstance(text, str) for text in texts)
            and self.status in STATUSES
            and all(isinstance(call, dict) for call in self.calls)
            and isinstance(self.duration_ms, int | float)
            and 0 <= self.duration_ms < float("inf")
            and (self.transaction is None or _is_settled(self.transaction))
        )

    @property
    def words(self) -> tuple[str, ...]:
        """Everything there is to say about why it is not passed."""
        return (*self.differences, *((self.said,) if self.said else ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data."""
        data = {name: getattr(self, name) for name in self._fields}
        if self.transaction is None:
            del data["transaction"]
        return data | {name: list(data[name]) for name in ("tags", "differences", "calls")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Rebuild an outcome from `to_dict`."""
        fields = {name: data[name] for name in cls._fields if name in data}
        for name in ("tags", "differences", "calls"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)


def _is_settled(data: object) -> bool:
    if not isinstance(data, dict) or not isinstance(data.get("became"), str):
        return False
    tables = [data.get(name) for name in OF_TRANSACTION]
    return all(isinstance(table, dict) and all(isinstance(word, str) for word in table.values()) for table in tables)

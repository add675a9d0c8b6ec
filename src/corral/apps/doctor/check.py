"""Defines the result of one check of `corral doctor` or `corral status`."""

from __future__ import annotations

from corral._lib.records import Record, frozen

OK, WARN, FAIL = "ok", "warn", "fail"


@frozen
class Fix(Record):
    """A way to repair a problem: an explanation, and a command if one is enough."""

    why: str
    command: str = ""


@frozen
class Check(Record):
    """The result of a check: `ok`, `warn` if something could be better, `fail` if it is missing."""

    group: str
    name: str
    status: str
    found: str
    means: str = ""
    fixes: tuple[Fix, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the check as JSON-ready data."""
        data: dict[str, object] = {name: getattr(self, name) for name in self._fields}
        return data | {"fixes": [{"why": fix.why, "command": fix.command} for fix in self.fixes]}

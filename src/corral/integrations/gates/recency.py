"""The recency gate: refuses to change a thing that is no longer as the model saw it. Pure, except for `version_of`.

The gate compares before the call. It cannot see a change between the comparison and the write.
"""

from __future__ import annotations

from _thread import allocate_lock

from corral._lib.records import Record, frozen
from corral.integrations.gates.model import Refusal
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.integrations.gates.model import ToolCall

ABSENT = ""  # the version of a thing that does not exist


@frozen
class _Observation(Record):
    version: str
    at: float


class Recency:
    """Remembers the version of everything the model read, and refuses to write a thing whose version has changed.

    `version_of` returns the current version of a thing by its name, or `ABSENT`: a `FileStates`, or any function. `must_read`
    refuses to change an existing thing that was never read. `max_age_seconds` limits the age of an observation.
    """

    name = "recency"

    def __init__(
        self,
        version_of: Callable[[str], str],
        *,
        must_read: bool = False,
        max_age_seconds: float | None = None,
        key_of: Callable[[str], str] | None = None,
    ) -> None:
        if not callable(version_of):
            # Without this check, the first call that reads something would fail, after it ran.
            raise PolicyError(f"recency needs a function that returns versions, such as FileStates({version_of!r})")
        is_number = isinstance(max_age_seconds, (int, float))
        if max_age_seconds is not None and not (is_number and 0 < max_age_seconds < float("inf")):
            raise PolicyError(f"max_age_seconds must be a number above 0, not {max_age_seconds!r}")
        self._version_of = version_of
        # Names such as ./a.py and a.py must have the same key.
        default: Callable[[str], str] = getattr(version_of, "key_of", str)
        self._key_of = default if key_of is None else key_of
        self._must_read = must_read
        self._max_age_seconds = max_age_seconds
        self._observations: dict[str, _Observation] = {}
        self._lock = allocate_lock()

    def judge(self, call: ToolCall, now: float) -> Refusal | None:
        """Refuse to write a thing that changed since it was read."""
        for name, version in call.based_on.items():
            if self._version_of(name) != version:
                return _stale(name)
        for name in call.writes:
            refusal = self._judge_write(name, now)
            if refusal is not None:
                return refusal
        return None

    def _judge_write(self, name: str, now: float) -> Refusal | None:
        with self._lock:
            seen = self._observations.get(self._key_of(name))
        if seen is None:
            if self._must_read and self._version_of(name) != ABSENT:
                return Refusal("gate-unread", f"{name} exists and was not read.", f"Read {name} first, then change it.")
            return None
        if seen.version != self._version_of(name):
            return _stale(name)
        age = now - seen.at
        if self._max_age_seconds is not None and age > self._max_age_seconds:
            reason = f"{name} was read {age:.0f} seconds ago; the limit is {self._max_age_seconds:g}."
            return Refusal("gate-old", reason, f"Read {name} again, then change it.")
        return None

    def observe(self, name: str, now: float, version: str | None = None) -> None:
        """Remember that the model saw a thing, in its current version or in the given one."""
        observation = _Observation(self._version_of(name) if version is None else version, now)
        with self._lock:
            self._observations[self._key_of(name)] = observation

    def before(self, call: ToolCall) -> dict[str, str]:
        """Return the versions of the things that the call will read."""
        return {name: self._version_of(name) for name in call.reads}

    def after(self, call: ToolCall, versions: dict[str, str], now: float) -> None:
        """Remember the things that the call read, and the new versions of those it wrote."""
        for name, version in versions.items():
            self.observe(name, now, version)
        for name in call.writes:
            self.observe(name, now)


def _stale(name: str) -> Refusal:
    return Refusal("gate-stale", f"{name} changed since it was read.", f"Read {name} again, then decide again.")

"""The gate of recency: nothing is changed on the strength of an observation that no longer holds. Pure but for `version_of`.

It looks before the call; what changes between look and change is not seen, as with any editor.
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

ABSENT = ""  # the version of what does not exist


@frozen
class _Seen(Record):
    version: str
    at: float


class Recency:
    """Remembers the version of what was read, and refuses to write what is another version by now.

    `version_of` gives the present version of a thing by its name: a `FileStates`, or any function, with `ABSENT` for what does
    not exist. `must_read` refuses to change what exists and was never read; `max_age_seconds` makes an observation too old.
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
            # It would be found out by the first call that reads something, after it ran.
            raise PolicyError(f"recency needs a function that gives versions, as FileStates({version_of!r}) is one")
        if max_age_seconds is not None and not (
            isinstance(max_age_seconds, (int, float)) and 0 < max_age_seconds < float("inf")
        ):
            raise PolicyError(f"max_age_seconds must be a number above 0, not {max_age_seconds!r}")
        self._version_of = version_of
        # One thing under two names is one: ./a.py and a.py.
        known: Callable[[str], str] = getattr(version_of, "key_of", str)
        self._key_of = known if key_of is None else key_of
        self._must_read = must_read
        self._max_age_seconds = max_age_seconds
        self._seen: dict[str, _Seen] = {}
        self._lock = allocate_lock()

    def judge(self, call: ToolCall, now: float) -> Refusal | None:
        """Refuse to write what changed since it was read."""
        for name, version in call.based_on.items():
            if self._version_of(name) != version:
                return _stale(name)
        for name in call.writes:
            refusal = self._judge(name, now)
            if refusal is not None:
                return refusal
        return None

    def _judge(self, name: str, now: float) -> Refusal | None:
        with self._lock:
            seen = self._seen.get(self._key_of(name))
        if seen is None:
            if self._must_read and self._version_of(name) != ABSENT:
                return Refusal("gate-unread", f"{name} exists and was not read.", f"Read {name} first, then change it.")
            return None
        if seen.version != self._version_of(name):
            return _stale(name)
        if self._max_age_seconds is not None and now - seen.at > self._max_age_seconds:
            reason = (
                f"{name} was read {now - seen.at:.0f} seconds ago, longer than the {self._max_age_seconds:g} allowed."
            )
            return Refusal("gate-old", reason, f"Read {name} again, then change it.")
        return None

    def observe(self, name: str, now: float, version: str | None = None) -> None:
        """Remember that the model was shown a thing: as it is now, or the version that is given."""
        seen = _Seen(self._version_of(name) if version is None else version, now)
        with self._lock:
            self._seen[self._key_of(name)] = seen

    def before(self, call: ToolCall) -> dict[str, str]:
        """Return the versions of what the call will read."""
        return {name: self._version_of(name) for name in call.reads}

    def after(self, call: ToolCall, versions: dict[str, str], now: float) -> None:
        """Remember what the call read, and what it made of what it wrote."""
        for name, version in versions.items():
            self.observe(name, now, version)
        for name in call.writes:
            self.observe(name, now)


def _stale(name: str) -> Refusal:
    return Refusal("gate-stale", f"{name} changed since it was read.", f"Read {name} again, then decide anew.")

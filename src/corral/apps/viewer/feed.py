"""Holds the calls that a page shows and answers which of them changed since the page last asked. Thread-safe.

Calls are kept as JSON text, which takes a tenth of the memory of Python objects. The page receives the text as it is.
"""

from __future__ import annotations

import json
from threading import Condition

from corral.apps.viewer.call_list import merged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    Data = dict[str, Any]

MAX_CALLS_AN_ANSWER = 4000  # the page parses an answer at once and must not freeze
MAX_OUTPUT_CHARACTERS = 64 * 1024 * 1024  # of all calls; the oldest output is dropped first
DROPPED: Data = {"dropped": True}


class Feed:
    """Calls by key. Putting a call again merges it with the known one and counts as another change."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._changes: list[str] = []  # keys, in the order of the changes
        self._also: dict[str, str] = {}  # the id of a run that a hook started, to the key of the hook's call
        self._outputs: dict[str, Data] = {}
        self._dropped: set[str] = set()
        self._characters = 0
        self._is_closed = False
        self.evals: Data | None = None
        self.evals_version = 0
        self.is_loaded = False
        self._news = Condition()

    def put(self, calls: Iterable[tuple[Data, Data | None]]) -> None:
        """Add calls, each with its output if that is known."""
        with self._news:
            for call, output in calls:
                # A file that a command wrote may have calls without an id.
                name: str = call.get("key") or f"call {len(self._changes) + 1}"
                key = self._also.get(name, name)
                if call.get("id") and call["id"] != key:
                    self._also[call["id"]] = key
                known = self._texts.get(key)
                made = {**(merged(json.loads(known), call) if known is not None else call), "key": key}
                self._texts[key] = dumps(made)
                self._changes.append(key)
                if output:
                    self._keep(key, output)
            self._news.notify_all()

    def put_evals(self, document: Data) -> None:
        """Replace the data of the evals page."""
        with self._news:
            self.evals = document
            self.evals_version += 1
            self._news.notify_all()

    def loaded(self) -> None:
        """Mark the initial data as complete."""
        with self._news:
            self.is_loaded = True
            self._news.notify_all()

    def close(self) -> None:
        """Wake all waiting threads. Later calls of `since` return at once."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    def since(self, after: int, evals: int = 0, *, seconds: float = 0.0, knows_loaded: bool = True) -> str:
        """Return the calls changed after the first `after` changes as JSON. Waits up to `seconds` for a change."""
        with self._news:
            after = min(max(after, 0), len(self._changes))
            self._news.wait_for(
                lambda: (
                    len(self._changes) > after
                    or self.evals_version > evals
                    or self._is_closed
                    or (self.is_loaded and not knows_loaded)
                ),
                seconds,
            )
            until = min(after + MAX_CALLS_AN_ANSWER, len(self._changes))
            texts = [self._texts[key] for key in dict.fromkeys(self._changes[after:until])]
            state = {"next": until, "more": until < len(self._changes), "evals": self.evals_version}
            state |= {"loaded": self.is_loaded, "closed": self._is_closed}
        return f'{dumps(state)[:-1]},"calls":[{",".join(texts)}]}}'

    def call(self, key: str) -> Data | None:
        """Return a call by its key, or None."""
        with self._news:
            known = self._texts.get(key)
        return None if known is None else json.loads(known)

    def output(self, key: str) -> Data | None:
        """Return the output of a call, None if it is unknown."""
        with self._news:
            return DROPPED if key in self._dropped else self._outputs.get(key)

    def __len__(self) -> int:
        """Return the number of calls."""
        with self._news:
            return len(self._texts)

    def texts(self) -> Sequence[str]:
        """Return all calls as JSON."""
        with self._news:
            return tuple(self._texts.values())

    def keys(self) -> Sequence[str]:
        """Return the keys of all calls."""
        with self._news:
            return tuple(self._texts)

    def _keep(self, key: str, output: Data) -> None:
        self._characters += _length(output) - _length(self._outputs.pop(key, {}))
        self._outputs[key] = output
        while self._characters > MAX_OUTPUT_CHARACTERS and len(self._outputs) > 1:
            oldest = next(iter(self._outputs))
            self._characters -= _length(self._outputs.pop(oldest))
            self._dropped.add(oldest)


def _length(output: Data) -> int:
    return sum(len(value) for value in output.values() if isinstance(value, str))


def dumps(data: object) -> str:
    """Return data as one line of ASCII JSON without spaces."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)

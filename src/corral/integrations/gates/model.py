"""The records of a chain of gates: a tool call goes in, a ruling comes out. They are frozen, with copied arguments."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.model.call import Decision
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Protocol

    from corral.model.call import Verdict

    class Gate(Protocol):
        """A gate. `judge` changes nothing. `adecide` and `apassage` also accept a gate that returns an awaitable.

        A gate may have two more methods: a passage calls `before(call)` when the call begins, and
        `after(call, state, now)` when it has worked, where `state` is the value that `before` returned.
        """

        @property
        def name(self) -> str:
            """The name of the gate in a ruling."""

        def judge(self, call: ToolCall, now: float) -> Refusal | None:
            """Return a refusal, or None to let the call pass."""

else:

    class Gate:
        """A gate: a `name`, and `judge(call, now)`, which returns a `Refusal` or None and changes nothing."""


@frozen
class ToolCall(Record):
    """A tool call of a model. `reads` and `writes` name the things it touches, `based_on` the versions that the model saw."""

    tool: str
    arguments: Mapping[str, object] = None  # type: ignore[assignment]  # `_validate` makes it {}
    id: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    based_on: Mapping[str, str] = None  # type: ignore[assignment]  # as above

    def _validate(self) -> None:
        # Copies: the caller could change its own mapping between the judgement and the run.
        for name in ("arguments", "based_on"):
            given = getattr(self, name) or {}
            if not hasattr(given, "keys"):
                raise TypeError(f"{name} of a tool call must be a mapping, not {given!r}")
            object.__setattr__(self, name, dict(given))
        for name in ("reads", "writes"):
            object.__setattr__(self, name, names(f"{name} of a tool call", getattr(self, name)))
        if not isinstance(self.tool, str) or not isinstance(self.id, str):
            raise TypeError(f"tool and id of a tool call must be text, not {self.tool!r} and {self.id!r}")


@frozen
class Refusal(Record):
    """The refusal of one gate: a stable rule id, the reason, and an alternative for the model."""

    rule: str
    reason: str
    instead: str
    decision: Decision = Decision.DENY
    verdict: Verdict | None = None  # only from the sandbox gate


@frozen
class Ruling(Record):
    """The decision of a chain on one call. `gate` is the gate that refused; `passed` names the gates before it, in order."""

    tool: str
    call_id: str
    decision: Decision
    passed: tuple[str, ...]
    decided_at: float
    gate: str = ""
    rule: str = ""
    reason: str = ""
    instead: str = ""
    verdict: Verdict | None = None
    result_id: str = ""  # the id of the call's SandboxResult

    @property
    def allowed(self) -> bool:
        """True if every gate let the call pass."""
        return self.decision == Decision.ALLOW

    @property
    def message(self) -> str:
        """The text for the model: gate, reason and alternative. Empty when the call is allowed."""
        return "" if self.allowed else f"Refused by the {self.gate} gate: {self.reason} {self.instead}".rstrip()

    def to_dict(self) -> dict[str, object]:
        """Return the ruling as JSON-ready data, without the verdict, which is part of the result."""
        data = {name: getattr(self, name) for name in self._fields if name != "verdict"}
        return data | {"decision": str(self.decision), "passed": list(self.passed)}


def names(label: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return a collection of names as a tuple. Raises PolicyError for anything else, such as a single string."""
    if isinstance(given, (str, bytes)):
        raise PolicyError(f"{label} must be a collection of names, not the single string {given!r}")
    made = tuple(given)
    if not all(isinstance(name, str) and name for name in made):
        raise PolicyError(f"{label} must be non-empty strings, not {made!r}")
    return made

"""What travels through a chain of gates: a tool call in, a ruling out. Frozen; a call's arguments are a copy."""

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
        """One gate. `judge` changes nothing; in `adecide` and `apassage` it may also return an awaitable of its answer.

        A gate that must know when a call begins and ends has two more methods, which a passage calls: `before(call)`, and
        `after(call, what before returned, now)` once the call has done its work.
        """

        @property
        def name(self) -> str:
            """What a ruling calls the gate."""

        def judge(self, call: ToolCall, now: float) -> Refusal | None:
            """Return why the call may not pass, or None."""

else:

    class Gate:
        """One gate: a `name`, and `judge(call, now)`, which returns a `Refusal` or None and changes nothing."""


@frozen
class ToolCall(Record):
    """What a model asks for. `reads` and `writes` name what the call looks at and changes; `based_on` the versions it was shown."""

    tool: str
    arguments: Mapping[str, object] = None  # type: ignore[assignment]  # none are no arguments
    id: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    based_on: Mapping[str, str] = None  # type: ignore[assignment]  # as above

    def _validate(self) -> None:
        # Copies: what was judged must be what runs, although the caller's own may change meanwhile.
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
    """One gate's no: a stable rule id, why, and what would pass."""

    rule: str
    reason: str
    instead: str
    decision: Decision = Decision.DENY
    verdict: Verdict | None = None  # of the sandbox's own check


@frozen
class Ruling(Record):
    """What the chain said of one call. `gate` is the one that refused, `passed` names those before it in their order."""

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
    result_id: str = ""  # of the SandboxResult that the call ended with

    @property
    def allowed(self) -> bool:
        """Whether every gate let the call pass."""
        return self.decision == Decision.ALLOW

    @property
    def message(self) -> str:
        """What to tell the model: gate, reason and the way out; nothing when allowed."""
        return "" if self.allowed else f"Refused by the {self.gate} gate: {self.reason} {self.instead}".rstrip()

    def to_dict(self) -> dict[str, object]:
        """Return the ruling as JSON-ready data, without the verdict's findings, which stand in the result."""
        data = {name: getattr(self, name) for name in self._fields if name != "verdict"}
        return data | {"decision": str(self.decision), "passed": list(self.passed)}


def names(what: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return a collection of names as a tuple; a single text is none."""
    if isinstance(given, (str, bytes)):
        raise PolicyError(f"{what} must be a collection of names, not the single text {given!r}")
    made = tuple(given)
    if not all(isinstance(name, str) and name for name in made):
        raise PolicyError(f"{what} must be names, not {made!r}")
    return made

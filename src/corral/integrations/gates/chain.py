"""An ordered chain of gates that stops at the first refusal. A gate that crashes, or answers with anything else, refuses."""

from __future__ import annotations

from time import time

from corral.integrations.gates.model import Refusal, Ruling
from corral.model.call import Decision
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, Self

    from corral.audit.audit_log import Log
    from corral.integrations.gates.model import Gate, ToolCall

    OnRuling = Callable[[Ruling], object]

_ANOTHER_WAY = "Ask the owner to look at this gate, or do without the call."


class Chain:
    """Gates in their order. Any thread may use it, as long as its gates allow that; those of this package do."""

    def __init__(self, *gates: Gate, on_ruling: OnRuling | None = None, clock: Callable[[], float] = time) -> None:
        for gate in gates:
            if isinstance(gate, type) or not isinstance(getattr(gate, "name", None), str) or not hasattr(gate, "judge"):
                raise PolicyError(f"a gate is an object with a name and judge(call, now), not {gate!r}")
        called = [gate.name for gate in gates]
        if not gates:
            raise PolicyError("a chain needs at least one gate: an empty one would let everything pass")
        if len(set(called)) < len(called):
            raise PolicyError(f"the gates of a chain need names of their own, not {', '.join(called)}")
        if any(getattr(gate, "is_last", False) for gate in gates[:-1]):
            raise PolicyError("the sandbox's own check must be the last gate: it judges what is about to run")
        self.gates = gates
        self._on_ruling = on_ruling
        self._clock = clock

    def decide(self, call: ToolCall) -> Ruling:
        """Ask the gates in their order, up to the first refusal; record nothing."""
        now = self._clock()
        passed: list[str] = []
        for gate in self.gates:
            refusal = _answer(gate, call, now)
            if refusal is not None:
                return _ruling(call, now, passed, gate, refusal)
            passed.append(gate.name)
        return _ruling(call, now, passed)

    async def adecide(self, call: ToolCall) -> Ruling:
        """Do as `decide`, and await what gates give to be awaited."""
        now = self._clock()
        passed: list[str] = []
        for gate in self.gates:
            refusal = await _awaited_answer(gate, call, now)
            if refusal is not None:
                return _ruling(call, now, passed, gate, refusal)
            passed.append(gate.name)
        return _ruling(call, now, passed)

    def passage(self, call: ToolCall) -> Passage:
        """Decide, and return what the call is made in: `with chain.passage(call) as passage`."""
        return Passage(self, call, self.decide(call))

    async def apassage(self, call: ToolCall) -> Passage:
        """Do as `passage`, and await what gates give to be awaited."""
        return Passage(self, call, await self.adecide(call))

    def record(self, ruling: Ruling) -> None:
        """Hand a ruling to who wants to know; a passage does that at its end."""
        if self._on_ruling is not None:
            self._on_ruling(ruling)

    def _begin(self, call: ToolCall) -> list[tuple[Gate, object]]:
        return [(gate, gate.before(call)) for gate in self.gates if hasattr(gate, "before")]

    def _end(self, call: ToolCall, begun: list[tuple[Gate, Any]]) -> None:
        now = self._clock()
        for gate, before in begun:
            gate.after(call, before, now)  # type: ignore[attr-defined]  # it has both, or none


class Passage:
    """One call on its way: the ruling, and, once the call has ended, what its gates remember of it. Recorded at its end."""

    def __init__(self, chain: Chain, call: ToolCall, ruling: Ruling, *, may_run: bool = False) -> None:
        self.call = call
        self.ruling = ruling
        self.result_id = ""
        self._chain = chain
        self.may_run = may_run or ruling.allowed
        self._begun: list[tuple[Gate, object]] = []

    def begin(self) -> None:
        """Let the gates look at what the call will read, before it does: what changes meanwhile was not what it read."""
        if self.may_run:
            self._begun = self._chain._begin(self.call)

    def end(self, *, worked: bool = True) -> None:
        """Let the gates remember the call, and record it. Of a call that failed nothing counts as seen."""
        try:
            if worked and self.may_run:
                self._chain._end(self.call, self._begun)
        finally:
            self._chain.record(self.ruling.replace(result_id=self.result_id))

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(worked=kind is None)


def noted(log: Log) -> OnRuling:
    """Return an `on_ruling` that writes each ruling to the owner's log: `noted(Log(config, event="gate"))`."""

    def note(ruling: Ruling) -> None:
        log.note({name: value for name, value in ruling.to_dict().items() if name != "decided_at" and value})

    return note


def _ruling(
    call: ToolCall, now: float, passed: list[str], gate: Gate | None = None, refusal: Refusal | None = None
) -> Ruling:
    if gate is None or refusal is None:
        return Ruling(call.tool, call.id, Decision.ALLOW, tuple(passed), now)
    # A refusal that says "allow" is none that a chain could act on.
    decision = max(refusal.decision, Decision.ASK)
    return Ruling(
        call.tool,
        call.id,
        decision,
        tuple(passed),
        now,
        gate.name,
        refusal.rule,
        refusal.reason,
        refusal.instead,
        refusal.verdict,
    )


def _answer(gate: Gate, call: ToolCall, now: float) -> Refusal | None:
    try:
        answer: object = gate.judge(call, now)
    except Exception as error:  # noqa: BLE001  a gate that crashed refuses
        return _crash(error)
    if hasattr(answer, "__await__"):
        close = getattr(answer, "close", None)
        if close is not None:
            # Or Python would complain later that nobody awaited it.
            close()
        return _no_answer("something to be awaited, which only adecide and apassage do")
    return _checked(answer)


async def _awaited_answer(gate: Gate, call: ToolCall, now: float) -> Refusal | None:
    try:
        answer: object = gate.judge(call, now)
        if hasattr(answer, "__await__"):
            awaitable: Awaitable[object] = answer
            answer = await awaitable
    except Exception as error:  # noqa: BLE001  as above
        return _crash(error)
    return _checked(answer)


def _checked(answer: object) -> Refusal | None:
    if answer is None or isinstance(answer, Refusal):
        return answer
    return _no_answer(f"{type(answer).__name__}, which is neither a refusal nor None")


def _crash(error: Exception) -> Refusal:
    reason = f"The gate failed on this call ({type(error).__name__}), so it is refused."
    return Refusal("gate-crash", reason, _ANOTHER_WAY)


def _no_answer(what: str) -> Refusal:
    return Refusal("gate-crash", f"The gate answered with {what}, so the call is refused.", _ANOTHER_WAY)

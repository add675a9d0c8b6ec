"""An ordered chain of gates that stops at the first refusal. A gate that raises or returns an invalid answer refuses."""

from __future__ import annotations

from time import time

from corral._lib.coroutines import run_coroutine
from corral.integrations.gates.model import Refusal, Ruling
from corral.model.call import Decision
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from corral.audit.audit_log import Log
    from corral.integrations.gates.model import Gate, ToolCall

    OnRuling = Callable[[Ruling], object]


class Chain:
    """Gates in order. It is thread-safe if its gates are; the gates of this package are."""

    def __init__(self, *gates: Gate, on_ruling: OnRuling | None = None, clock: Callable[[], float] = time) -> None:
        for gate in gates:
            if isinstance(gate, type) or not isinstance(getattr(gate, "name", None), str) or not hasattr(gate, "judge"):
                raise PolicyError(f"a gate must be an object with a name and judge(call, now), not {gate!r}")
        names = tuple(gate.name for gate in gates)
        if not gates:
            raise PolicyError("a chain needs at least one gate: an empty chain would allow every call")
        if len(set(names)) < len(names):
            raise PolicyError(f"the gates of a chain must have different names, not {', '.join(names)}")
        if any(getattr(gate, "is_last", False) for gate in gates[:-1]):
            raise PolicyError("the sandbox gate must be the last gate, because it judges the command that runs")
        self.gates = gates
        self._names = names
        self._on_ruling = on_ruling
        self._clock = clock

    def decide(self, call: ToolCall) -> Ruling:
        """Ask the gates in order, up to the first refusal. Records nothing."""
        return run_coroutine(self._decide(call, awaits=False))

    async def adecide(self, call: ToolCall) -> Ruling:
        """Decide as `decide` does, and await gates that return an awaitable."""
        return await self._decide(call, awaits=True)

    def passage(self, call: ToolCall) -> Passage:
        """Decide, and return the context to run the call in: `with chain.passage(call) as passage`."""
        return Passage(self, call, self.decide(call))

    async def apassage(self, call: ToolCall) -> Passage:
        """Return a passage as `passage` does, and await gates that return an awaitable."""
        return Passage(self, call, await self.adecide(call))

    async def _decide(self, call: ToolCall, *, awaits: bool) -> Ruling:
        now = self._clock()
        for position, gate in enumerate(self.gates):
            refusal = await _ask(gate, call, now, awaits=awaits)
            if refusal is not None:
                # max: a Refusal that carries the decision `allow` must not let the call pass.
                decision = max(refusal.decision, Decision.ASK)
                why = (refusal.rule, refusal.reason, refusal.instead, refusal.verdict)
                return Ruling(call.tool, call.id, decision, self._names[:position], now, gate.name, *why)
        return Ruling(call.tool, call.id, Decision.ALLOW, self._names, now)


class Passage:
    """Runs one call under its ruling. At its end the gates remember the call and `on_ruling` receives the ruling."""

    def __init__(self, chain: Chain, call: ToolCall, ruling: Ruling, *, may_run: bool = False) -> None:
        self.call = call
        self.ruling = ruling
        self.result_id = ""
        self.may_run = may_run or ruling.allowed
        self._chain = chain
        self._states: list[tuple[Any, object]] = []

    def begin(self) -> None:
        """Let the gates note the state before the call: the call may read a file that changes while it runs."""
        if self.may_run:
            self._states = [(gate, gate.before(self.call)) for gate in self._chain.gates if hasattr(gate, "before")]

    def end(self, *, worked: bool = True) -> None:
        """Record the ruling, and let the gates remember a call that worked."""
        try:
            if worked and self.may_run:
                now = self._chain._clock()
                for gate, state in self._states:
                    gate.after(self.call, state, now)
        finally:
            if self._chain._on_ruling is not None:
                self._chain._on_ruling(self.ruling.replace(result_id=self.result_id))

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(worked=kind is None)


def noted(log: Log) -> OnRuling:
    """Return an `on_ruling` that writes each ruling to the user's log: `noted(Log(config, event="gate"))`."""

    def note(ruling: Ruling) -> None:
        log.note({name: value for name, value in ruling.to_dict().items() if name != "decided_at" and value})

    return note


async def _ask(gate: Gate, call: ToolCall, now: float, *, awaits: bool) -> Refusal | None:
    try:
        answer: Any = gate.judge(call, now)
        if awaits and hasattr(answer, "__await__"):
            answer = await answer
    except Exception as error:  # noqa: BLE001  a gate that crashes refuses
        return _crash(f"failed on this call ({type(error).__name__})")
    if answer is None or isinstance(answer, Refusal):
        return answer
    if not hasattr(answer, "__await__"):
        return _crash(f"returned {type(answer).__name__}, which is neither a Refusal nor None")
    if hasattr(answer, "close"):
        answer.close()  # a coroutine that is never awaited would cause a RuntimeWarning
    return _crash("returned an awaitable, which only adecide and apassage await")


def _crash(failure: str) -> Refusal:
    instead = "Ask the user to check this gate, or continue without the call."
    return Refusal("gate-crash", f"The gate {failure}, so the call is refused.", instead)

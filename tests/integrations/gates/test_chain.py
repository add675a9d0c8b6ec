"""Tests of Chain and Passage: order, first refusal, crashing gates, and recording."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import PolicyError
from corral.integrations.gates import Chain, Refusal, Ruling, ToolCall
from corral.model.call import Decision

CALL = ToolCall("read_file", {"path": "a.py"}, "call-1")
NO = Refusal("gate-no", "It is closed.", "Go round.")


class Gate:
    """A gate with a fixed answer that counts its calls."""

    def __init__(self, name: str, answer: Any = None) -> None:
        self.name = name
        self.answer = answer
        self.asked = 0

    def judge(self, call: ToolCall, now: float) -> Any:
        self.asked += 1
        return self.answer() if callable(self.answer) else self.answer


def gates_of(pattern: list[bool]) -> list[Gate]:
    return [Gate(f"g{number}", NO if refuses else None) for number, refuses in enumerate(pattern)]


def raises() -> None:
    raise ZeroDivisionError


async def later(answer: Any) -> Any:
    await asyncio.sleep(0)
    return answer


def decide(chain: Chain, call: ToolCall, way: str) -> Ruling:
    return chain.decide(call) if way == "sync" else asyncio.run(chain.adecide(call))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_call_is_allowed_when_every_gate_passes_it(way: str) -> None:
    ruling = decide(Chain(Gate("a"), Gate("b"), clock=lambda: 7.0), CALL, way)
    assert ruling == Ruling("read_file", "call-1", Decision.ALLOW, ("a", "b"), 7.0)
    assert (ruling.allowed, ruling.message) == (True, "")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_refusal_names_gate_rule_reason_and_alternative(way: str) -> None:
    ruling = decide(Chain(Gate("a"), Gate("b", NO), Gate("c"), clock=lambda: 7.0), CALL, way)
    assert ruling == Ruling(
        "read_file", "call-1", Decision.DENY, ("a",), 7.0, "b", "gate-no", "It is closed.", "Go round."
    )
    assert ruling.message == "Refused by the b gate: It is closed. Go round."


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_chain_stops_at_the_first_refusal(pattern: list[bool]) -> None:
    gates = gates_of(pattern)
    ruling = Chain(*gates).decide(CALL)
    assert ruling.allowed is not any(pattern)
    first = pattern.index(True) if any(pattern) else len(pattern)
    assert ruling.passed == tuple(f"g{number}" for number in range(first))
    assert ruling.gate == (f"g{first}" if any(pattern) else "")
    assert [gate.asked for gate in gates] == [int(number <= first) for number in range(len(pattern))]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.booleans(), st.integers(0, 8))
def test_additional_gate_never_allows_more(pattern: list[bool], refuses: bool, at: int) -> None:
    longer = [*pattern[:at], refuses, *pattern[at:]]
    assert Chain(*gates_of(longer)).decide(CALL).decision >= Chain(*gates_of(pattern)).decide(CALL).decision


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_decide_and_adecide_agree(pattern: list[bool]) -> None:
    chain = Chain(*gates_of(pattern), clock=lambda: 1.0)
    assert asyncio.run(chain.adecide(CALL)) == chain.decide(CALL)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize(
    "answer",
    [raises, True, False, "no", 0, object],
    ids=["raises", "true", "false", "string", "number", "object"],
)
def test_crash_or_invalid_answer_of_a_gate_refuses(answer: Any, way: str) -> None:
    ruling = decide(Chain(Gate("a", answer)), CALL, way)
    assert (ruling.decision, ruling.gate, ruling.rule) == (Decision.DENY, "a", "gate-crash")


def test_refusal_with_decision_allow_does_not_allow() -> None:
    ruling = Chain(Gate("a", NO.replace(decision=Decision.ALLOW))).decide(CALL)
    assert ruling.decision == Decision.ASK


def test_adecide_awaits_an_awaitable_answer() -> None:
    assert asyncio.run(Chain(Gate("a", lambda: later(None))).adecide(CALL)).allowed
    assert asyncio.run(Chain(Gate("a", lambda: later(NO))).adecide(CALL)).rule == "gate-no"


def test_decide_refuses_an_awaitable_answer() -> None:
    assert Chain(Gate("a", lambda: later(None))).decide(CALL).rule == "gate-crash"


def test_empty_chain_is_a_policy_error() -> None:
    with pytest.raises(PolicyError):
        Chain()


def test_two_gates_with_one_name_are_a_policy_error() -> None:
    with pytest.raises(PolicyError, match="a, a"):
        Chain(Gate("a"), Gate("a"))


def test_tool_call_copies_its_arguments() -> None:
    given_arguments = {"path": "a.py"}
    call = ToolCall("read_file", given_arguments)
    given_arguments["path"] = "b.py"
    assert call.arguments == {"path": "a.py"}


@pytest.mark.parametrize("names", ["a.py", (1,), ("",)], ids=["single string", "number", "empty name"])
def test_reads_must_be_a_collection_of_names(names: Any) -> None:
    with pytest.raises(PolicyError):
        ToolCall("read_file", reads=names)


def test_passage_records_once_and_decide_records_nothing() -> None:
    rulings: list[Ruling] = []
    chain = Chain(Gate("a"), on_ruling=rulings.append, clock=lambda: 2.0)
    chain.decide(CALL)
    assert rulings == []
    with chain.passage(CALL) as passage:
        assert passage.may_run
        passage.result_id = "r"
        assert rulings == []
    assert rulings == [Ruling("read_file", "call-1", Decision.ALLOW, ("a",), 2.0, result_id="r")]


def test_refused_and_failed_calls_are_recorded() -> None:
    rulings: list[Ruling] = []
    with Chain(Gate("a", NO), on_ruling=rulings.append).passage(CALL) as passage:
        assert not passage.may_run
    with pytest.raises(KeyError), Chain(Gate("a"), on_ruling=rulings.append).passage(CALL):
        raise KeyError
    assert [ruling.decision for ruling in rulings] == [Decision.DENY, Decision.ALLOW]


def test_apassage_awaits_its_gates() -> None:
    async def go() -> bool:
        with await Chain(Gate("a", lambda: later(None))).apassage(CALL) as passage:
            return passage.may_run

    assert asyncio.run(go())


class Remembering(Gate):
    """A gate that records the beginning and the end of each call."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__("memory", answer)
        self.events: list[object] = []

    def before(self, call: ToolCall) -> str:
        self.events.append(("before", call.tool))
        return "state"

    def after(self, call: ToolCall, before: str, now: float) -> None:
        self.events.append(("after", before, now))


def test_gate_is_called_before_and_after_a_call() -> None:
    gate = Remembering()
    with Chain(gate, clock=lambda: 3.0).passage(CALL):
        assert gate.events == [("before", "read_file")]
    assert gate.events == [("before", "read_file"), ("after", "state", 3.0)]


def test_gate_does_not_remember_a_failed_call() -> None:
    gate = Remembering()
    with pytest.raises(KeyError), Chain(gate).passage(CALL):
        raise KeyError
    assert gate.events == [("before", "read_file")]


def test_gate_does_not_remember_a_refused_call() -> None:
    gate = Remembering(NO)
    with Chain(gate).passage(CALL):
        pass
    assert gate.events == []


def test_ruling_to_dict_is_json_ready() -> None:
    ruling = Chain(Gate("a"), Gate("b", NO), clock=lambda: 5.0).decide(CALL)
    assert ruling.to_dict() == {
        "tool": "read_file",
        "call_id": "call-1",
        "decision": "deny",
        "passed": ["a"],
        "decided_at": 5.0,
        "gate": "b",
        "rule": "gate-no",
        "reason": "It is closed.",
        "instead": "Go round.",
        "result_id": "",
    }


def test_is_last_gate_must_come_last() -> None:
    class Last(Gate):
        is_last = True

    gate = Last("last")
    Chain(Gate("a"), gate)
    with pytest.raises(PolicyError, match="last"):
        Chain(gate, Gate("a"))

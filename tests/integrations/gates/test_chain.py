"""A chain refuses exactly where a gate does, at the first that does, and says which; what goes wrong in a gate refuses."""

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
    """A gate with a fixed answer, which counts how often it was asked."""

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
def test_a_call_that_every_gate_lets_through_is_allowed(way: str) -> None:
    ruling = decide(Chain(Gate("a"), Gate("b"), clock=lambda: 7.0), CALL, way)
    assert ruling == Ruling("read_file", "call-1", Decision.ALLOW, ("a", "b"), 7.0)
    assert (ruling.allowed, ruling.message) == (True, "")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_refusal_names_gate_rule_reason_and_the_way_out(way: str) -> None:
    ruling = decide(Chain(Gate("a"), Gate("b", NO), Gate("c"), clock=lambda: 7.0), CALL, way)
    assert ruling == Ruling(
        "read_file", "call-1", Decision.DENY, ("a",), 7.0, "b", "gate-no", "It is closed.", "Go round."
    )
    assert ruling.message == "Refused by the b gate: It is closed. Go round."


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_a_chain_refuses_iff_some_gate_refuses_and_stops_at_the_first(pattern: list[bool]) -> None:
    gates = gates_of(pattern)
    ruling = Chain(*gates).decide(CALL)
    assert ruling.allowed is not any(pattern)
    first = pattern.index(True) if any(pattern) else len(pattern)
    assert ruling.passed == tuple(f"g{number}" for number in range(first))
    assert ruling.gate == (f"g{first}" if any(pattern) else "")
    assert [gate.asked for gate in gates] == [int(number <= first) for number in range(len(pattern))]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.booleans(), st.integers(0, 8))
def test_one_more_gate_never_lets_more_through(pattern: list[bool], refuses: bool, at: int) -> None:
    longer = [*pattern[:at], refuses, *pattern[at:]]
    assert Chain(*gates_of(longer)).decide(CALL).decision >= Chain(*gates_of(pattern)).decide(CALL).decision


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_both_ways_say_the_same(pattern: list[bool]) -> None:
    chain = Chain(*gates_of(pattern), clock=lambda: 1.0)
    assert asyncio.run(chain.adecide(CALL)) == chain.decide(CALL)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize(
    "answer",
    [raises, True, False, "no", 0, object],
    ids=["it raises", "true", "false", "text", "a number", "an object"],
)
def test_a_gate_that_fails_or_says_neither_yes_nor_no_refuses(answer: Any, way: str) -> None:
    ruling = decide(Chain(Gate("a", answer)), CALL, way)
    assert (ruling.decision, ruling.gate, ruling.rule) == (Decision.DENY, "a", "gate-crash")


def test_a_refusal_that_says_allow_is_no_way_through() -> None:
    ruling = Chain(Gate("a", NO.replace(decision=Decision.ALLOW))).decide(CALL)
    assert ruling.decision == Decision.ASK


def test_an_answer_to_be_awaited_is_awaited_in_a_loop() -> None:
    assert asyncio.run(Chain(Gate("a", lambda: later(None))).adecide(CALL)).allowed
    assert asyncio.run(Chain(Gate("a", lambda: later(NO))).adecide(CALL)).rule == "gate-no"


def test_an_answer_to_be_awaited_is_a_refusal_outside_a_loop() -> None:
    assert Chain(Gate("a", lambda: later(None))).decide(CALL).rule == "gate-crash"


def test_an_empty_chain_is_an_error() -> None:
    with pytest.raises(PolicyError, match="at least one gate"):
        Chain()


def test_two_gates_of_one_name_are_an_error() -> None:
    with pytest.raises(PolicyError, match="names of their own"):
        Chain(Gate("a"), Gate("a"))


def test_a_call_keeps_a_copy_of_its_arguments() -> None:
    given_arguments = {"path": "a.py"}
    call = ToolCall("read_file", given_arguments)
    given_arguments["path"] = "b.py"
    assert call.arguments == {"path": "a.py"}


@pytest.mark.parametrize("names", ["a.py", (1,), ("",)], ids=["one text", "a number", "an empty name"])
def test_what_a_call_reads_is_a_collection_of_names(names: Any) -> None:
    with pytest.raises(PolicyError):
        ToolCall("read_file", reads=names)


def test_deciding_records_nothing_and_a_passage_records_once() -> None:
    heard: list[Ruling] = []
    chain = Chain(Gate("a"), on_ruling=heard.append, clock=lambda: 2.0)
    chain.decide(CALL)
    assert heard == []
    with chain.passage(CALL) as passage:
        assert passage.may_run
        passage.result_id = "r"
        assert heard == []
    assert heard == [Ruling("read_file", "call-1", Decision.ALLOW, ("a",), 2.0, result_id="r")]


def test_a_passage_of_a_refused_or_failed_call_is_recorded_too() -> None:
    heard: list[Ruling] = []
    with Chain(Gate("a", NO), on_ruling=heard.append).passage(CALL) as passage:
        assert not passage.may_run
    with pytest.raises(KeyError), Chain(Gate("a"), on_ruling=heard.append).passage(CALL):
        raise KeyError
    assert [ruling.decision for ruling in heard] == [Decision.DENY, Decision.ALLOW]


def test_a_passage_in_a_loop_awaits_its_gates() -> None:
    async def go() -> bool:
        with await Chain(Gate("a", lambda: later(None))).apassage(CALL) as passage:
            return passage.may_run

    assert asyncio.run(go())


class Remembering(Gate):
    """A gate that notes when a call begins and ends."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__("memory", answer)
        self.noted: list[object] = []

    def before(self, call: ToolCall) -> str:
        self.noted.append(("before", call.tool))
        return "what it was"

    def after(self, call: ToolCall, before: str, now: float) -> None:
        self.noted.append(("after", before, now))


def test_a_gate_hears_of_the_beginning_and_the_end() -> None:
    gate = Remembering()
    with Chain(gate, clock=lambda: 3.0).passage(CALL):
        assert gate.noted == [("before", "read_file")]
    assert gate.noted == [("before", "read_file"), ("after", "what it was", 3.0)]


def test_of_a_call_that_failed_nothing_is_remembered() -> None:
    gate = Remembering()
    with pytest.raises(KeyError), Chain(gate).passage(CALL):
        raise KeyError
    assert gate.noted == [("before", "read_file")]


def test_of_a_call_that_was_refused_nothing_is_remembered() -> None:
    gate = Remembering(NO)
    with Chain(gate).passage(CALL):
        pass
    assert gate.noted == []


def test_a_ruling_is_json_ready() -> None:
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


def test_a_last_gate_is_last() -> None:
    class Last(Gate):
        is_last = True

    gate = Last("last")
    Chain(Gate("a"), gate)
    with pytest.raises(PolicyError, match="must be the last gate"):
        Chain(gate, Gate("a"))

"""Tests of the observation ledger and the budget gate."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import PolicyError
from corral.integrations.gates import (
    Budget,
    BudgetGate,
    ObservationLedger,
    Shown,
    ToolCall,
    approximate_tokens,
)
from corral.integrations.gates.token_budget import Entry
from golden import check

BUDGETS = st.builds(
    Budget,
    st.none() | st.integers(0, 200),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 100)),
    st.none() | st.integers(0, 100),
)
TOKENIZERS = st.sampled_from([approximate_tokens, len, lambda text: len(text.split()), lambda text: len(text) + 1])


def test_approximate_token_is_four_bytes() -> None:
    assert [approximate_tokens(text) for text in ("", "a", "abcd", "abcde", "é€", "\ud800")] == [0, 1, 1, 2, 2, 1]


def test_text_that_fits_is_shown_whole_and_charged() -> None:
    ledger = ObservationLedger(Budget(total=10))
    assert ledger.show("read", "abcdefgh", call_id="c") == Shown("read", "abcdefgh", 2, 0, "c")
    assert (ledger.spent, ledger.spent_by("read"), ledger.rooms("read")) == (2, 2, (8, None))
    assert ledger.entries == (Entry(1, "read", 2, 0, "c"),)


def test_long_text_keeps_head_and_tail_around_a_marker() -> None:
    ledger = ObservationLedger(Budget(total=100), len)
    shown = ledger.show("read", "a" * 500 + "z" * 500)
    assert f"[corral: {shown.omitted_characters} characters omitted, the observation budget is spent]" in shown.text
    assert shown.tokens == len(shown.text) <= 100
    assert (shown.text.count("aaaa"), shown.text.count("zzzz")) == (4, 4)


def test_nothing_is_shown_when_the_marker_does_not_fit() -> None:
    ledger = ObservationLedger(Budget(total=3), len)
    assert ledger.show("read", "abcd") == Shown("read", "", 0, 4)


def test_each_tool_has_its_own_budget() -> None:
    ledger = ObservationLedger(Budget(total=100, per_tool={"read": 4}, each_tool=50), len)
    assert ledger.rooms("read") == (100, 4)
    assert ledger.rooms("other") == (100, 50)
    ledger.show("read", "abcd")
    assert (ledger.rooms("read"), ledger.rooms("other")) == ((96, 0), (96, 50))


@given(BUDGETS, TOKENIZERS, st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=300))))
def test_ledger_only_grows_and_never_exceeds_the_budget(
    budget: Budget, tokenizer: Any, observations: list[tuple[str, str]]
) -> None:
    ledger = ObservationLedger(budget, tokenizer)
    for tool, text in observations:
        before = ledger.spent
        shown = ledger.show(tool, text)
        assert ledger.spent == before + shown.tokens >= before
        assert shown.text == text or shown.omitted_characters > 0
        assert not shown.text or shown.tokens == tokenizer(shown.text)
        assert budget.total is None or ledger.spent <= budget.total
        own = budget.of(tool)
        assert own is None or ledger.spent_by(tool) <= own
    assert ledger.spent == sum(entry.tokens for entry in ledger.entries)


@given(BUDGETS, st.lists(st.text(max_size=60)))
def test_exhausted_budget_keeps_refusing(budget: Budget, texts: list[str]) -> None:
    ledger = ObservationLedger(budget, len)
    gate = BudgetGate(ledger)
    refused = False
    for text in texts:
        refuses = gate.judge(ToolCall("a"), 0.0) is not None
        assert refuses or not refused
        refused = refuses
        ledger.show("a", text)


def test_concurrent_threads_never_exceed_the_budget() -> None:
    ledger = ObservationLedger(Budget(total=1000), len)
    start = threading.Barrier(8)

    def spend() -> None:
        start.wait()
        for _ in range(50):
            ledger.show("a", "x" * 7)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.spent == sum(entry.tokens for entry in ledger.entries)
    assert 1000 - 7 < ledger.spent <= 1000


@pytest.mark.parametrize("tokens", ["raise", -1, None, 2.5, True], ids=str)
def test_failing_tokenizer_counts_every_byte(tokens: Any) -> None:
    def tokenizer(text: str) -> Any:
        if tokens == "raise":
            raise ValueError
        return tokens

    assert ObservationLedger(Budget(), tokenizer).show("a", "é€").tokens == 5


def test_gate_refuses_when_the_budget_is_spent() -> None:
    ledger = ObservationLedger(Budget(total=4, per_tool={"read": 2}), len)
    gate = BudgetGate(ledger)
    assert gate.judge(ToolCall("read"), 0.0) is None
    ledger.show("read", "ab")
    assert refused(gate, "read") == "gate-budget-tool"
    assert gate.judge(ToolCall("other"), 0.0) is None
    ledger.show("other", "cd")
    assert refused(gate, "other") == "gate-budget-total"


def refused(gate: BudgetGate, tool: str) -> str:
    """Return the rule of a refusal, and check its message."""
    refusal = gate.judge(ToolCall(tool), 0.0)
    assert refusal is not None
    check("gate-messages", refusal.rule, f"{refusal.reason} {refusal.instead}")
    return refusal.rule


def test_gate_refuses_a_call_expected_to_exceed_the_budget() -> None:
    sizes = {"small": 10, "large": 1000}
    gate = BudgetGate(
        ObservationLedger(Budget(total=100)), expected=lambda call: sizes.get(str(call.arguments.get("path")))
    )
    assert gate.judge(ToolCall("read", {"path": "small"}), 0.0) is None
    assert gate.judge(ToolCall("read", {"path": "unknown"}), 0.0) is None
    refusal = gate.judge(ToolCall("read", {"path": "large"}), 0.0)
    assert refusal is not None
    assert refusal.rule == "gate-budget-total"
    assert refusal.instead.startswith("Ask for less")


@pytest.mark.parametrize("value", [-1, 1.5, True, "9"], ids=repr)
def test_budget_must_be_a_whole_number(value: Any) -> None:
    with pytest.raises(PolicyError):
        Budget(total=value)
    with pytest.raises(PolicyError):
        Budget(per_tool={"a": value})

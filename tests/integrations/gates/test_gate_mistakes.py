"""Gates that are put together wrongly are told at once, and not by the first call that they let pass."""

from collections.abc import Callable
from typing import Any

import pytest

from corral import PolicyError
from corral.integrations.gates import (
    Budget,
    BudgetGate,
    Chain,
    FileStates,
    ObservationLedger,
    Pattern,
    Patterns,
    Recency,
    ToolAllowlist,
    ToolCall,
)

NO_GATE = "a gate is an object with a name and judge(call, now), not "
NO_PATTERN = "patterns are given one by one, each a Pattern(rule, regex, reason), not "
NO_AGE = "max_age_seconds must be a number above 0, not "


def given(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(lambda: Chain(given(ToolAllowlist)), f"{NO_GATE}<class", id="a class for a gate"),
        pytest.param(lambda: Chain(given(len)), f"{NO_GATE}<built-in", id="a function for a gate"),
        pytest.param(lambda: Patterns(given([Pattern("r", "x", "y")])), f"{NO_PATTERN}[", id="a list of patterns"),
        pytest.param(lambda: Patterns(given("rm -rf")), f"{NO_PATTERN}'rm -rf'", id="a text for a pattern"),
        pytest.param(
            lambda: ObservationLedger(given(1000)), "a ledger needs a budget, as Budget(total=1000)", id="a number"
        ),
        pytest.param(
            lambda: BudgetGate(given(Budget(total=5))),
            "the budget gate needs a ledger, as ObservationLedger(Budget(total=5",
            id="a budget for a ledger",
        ),
        pytest.param(
            lambda: Recency(given(".")),
            "recency needs a function that gives versions, as FileStates('.') is one",
            id="a path for versions",
        ),
        pytest.param(
            lambda: FileStates("/no/such"), "'/no/such' is not an existing directory", id="a directory that is none"
        ),
        pytest.param(lambda: Recency(str, max_age_seconds=given("5")), f"{NO_AGE}'5'", id="an age as text"),
        pytest.param(lambda: Recency(str, max_age_seconds=-1), f"{NO_AGE}-1", id="an age below zero"),
    ],
)
def test_a_gate_that_is_put_together_wrongly_is_told_at_once(make: Callable[[], object], told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        make()
    assert str(caught.value).startswith(told)


def test_arguments_that_are_no_mapping_are_told() -> None:
    with pytest.raises(TypeError, match="arguments of a tool call must be a mapping, not 'ls'"):
        ToolCall("bash", given("ls"))

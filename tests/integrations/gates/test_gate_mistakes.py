"""Tests that a wrongly constructed gate raises at once, not at the first call. The messages are in tests/golden."""

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
from golden import check


def untyped(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("case", "make", "quoted"),
    [
        ("a function instead of a gate", lambda: Chain(untyped(len)), "<built-in function len>"),
        ("a list of patterns", lambda: Patterns(untyped([Pattern("r", "x", "y")])), "[Pattern("),
        ("a string instead of a pattern", lambda: Patterns(untyped("rm -rf")), "'rm -rf'"),
        ("a number instead of a budget", lambda: ObservationLedger(untyped(1000)), "Budget(total=1000)"),
        ("a budget instead of a ledger", lambda: BudgetGate(untyped(Budget(total=5))), "ObservationLedger(Budget("),
        ("a path instead of a function", lambda: Recency(untyped(".")), "FileStates('.')"),
        ("a missing directory", lambda: FileStates("/no/such"), "'/no/such'"),
        ("a string as max_age_seconds", lambda: Recency(str, max_age_seconds=untyped("5")), "'5'"),
        ("a negative max_age_seconds", lambda: Recency(str, max_age_seconds=-1), "-1"),
        ("an invalid regular expression", lambda: Pattern("bad", "(", ""), "bad"),
        ("an empty chain", Chain, ""),
        ("a string instead of tool names", lambda: ToolCall("read", reads=untyped("a.py")), "'a.py'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_argument_raises_at_once(case: str, make: Callable[[], object], quoted: str) -> None:
    with pytest.raises(PolicyError) as caught:
        make()
    assert quoted in str(caught.value)
    check("gate-messages", case, str(caught.value))


def test_class_instead_of_a_gate_raises() -> None:
    with pytest.raises(PolicyError, match="ToolAllowlist"):
        Chain(untyped(ToolAllowlist))


def test_arguments_must_be_a_mapping() -> None:
    with pytest.raises(TypeError, match="'ls'"):
        ToolCall("bash", untyped("ls"))

"""Tests of ToolAllowlist and Patterns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.integrations.gates import Pattern, Patterns, Refusal, ToolAllowlist, ToolCall
from corral.integrations.gates.patterns import MAX_DEPTH, MAX_TEXT
from golden import check

PRODUCTION = Pattern("no-production", r"\bprod\b", "It names production.", "Use the staging hosts.")
TREE = Pattern("no-tree", r"rm -rf", "It removes a tree.", tool="run_*")
REFUSED = Refusal("no-production", "It names production.", "Use the staging hosts.")


@pytest.mark.parametrize(
    ("tools", "tool", "passes"),
    [
        (("read_file",), "read_file", True),
        (("mcp__files__*",), "mcp__files__read", True),
        (("read_file",), "read_files", False),
        (("read_file",), "Read_File", False),
        (("mcp__files__*",), "mcp__shell__run", False),
        ((), "read_file", False),
    ],
    ids=["name", "wildcard", "longer name", "other case", "other server", "empty list"],
)
def test_only_listed_tools_pass(tools: tuple[str, ...], tool: str, passes: bool) -> None:
    assert (ToolAllowlist(*tools).judge(ToolCall(tool), 0.0) is None) is passes


def test_refusal_lists_the_allowed_tools() -> None:
    refusal = ToolAllowlist("read_file", "run_*").judge(ToolCall("shell"), 0.0)
    assert refusal is not None
    assert (refusal.rule, "'shell'" in refusal.reason) == ("gate-tool", True)
    assert "read_file, run_*" in refusal.instead
    check("gate-messages", "gate-tool", f"{refusal.reason} {refusal.instead}")


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), st.sampled_from("abcdef"))
def test_shorter_allowlist_never_allows_more(first: set[str], second: set[str], tool: str) -> None:
    both = ToolAllowlist(*(first & second)).judge(ToolCall(tool), 0.0) is None
    assert not both or all(ToolAllowlist(*tools).judge(ToolCall(tool), 0.0) is None for tools in (first, second))


@pytest.mark.parametrize(
    "arguments",
    [
        {"host": "db.prod.example"},
        {"argv": ["ssh", "prod"]},
        {"options": {"hosts": [{"name": "prod"}]}},
        {"prod": True},
        {"data": b"deploy prod"},
        {"hosts": {"prod", "staging"}},
    ],
    ids=["string", "list", "nested", "argument name", "bytes", "set"],
)
def test_pattern_matches_anywhere_in_the_arguments(arguments: dict[str, Any]) -> None:
    assert Patterns(PRODUCTION).judge(ToolCall("deploy", arguments), 0.0) == REFUSED


@pytest.mark.parametrize(
    "arguments", [{}, {"host": "products"}, {"count": 3, "nothing": None}], ids=["none", "longer word", "no text"]
)
def test_call_without_a_match_passes(arguments: dict[str, Any]) -> None:
    assert Patterns(PRODUCTION, TREE).judge(ToolCall("deploy", arguments), 0.0) is None


def test_pattern_matches_the_joined_words_of_a_list() -> None:
    call = ToolCall("run_command", {"argv": ["rm", "-rf", "x"]})
    assert Patterns(TREE).judge(call, 0.0) == Refusal("no-tree", "It removes a tree.", "")


def test_pattern_for_one_tool_ignores_other_tools() -> None:
    assert Patterns(TREE).judge(ToolCall("write_file", {"text": "rm -rf x"}), 0.0) is None


def test_pattern_for_one_argument_ignores_other_arguments() -> None:
    gate = Patterns(PRODUCTION.replace(argument="host"))
    assert gate.judge(ToolCall("deploy", {"note": "not prod"}), 0.0) is None
    assert gate.judge(ToolCall("deploy", {"host": "prod"}), 0.0) == REFUSED


def test_required_pattern_must_match() -> None:
    gate = Patterns(Pattern("ticket", r"^T-\d+$", "It names no ticket.", argument="ticket", required=True))
    assert gate.judge(ToolCall("deploy", {"ticket": "T-7"}), 0.0) is None
    for arguments in ({}, {"ticket": "seven"}, {"note": "T-7"}):
        assert gate.judge(ToolCall("deploy", arguments), 0.0) == Refusal("ticket", "It names no ticket.", "")


def test_too_long_or_too_deep_arguments_are_refused() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    for value in ("x" * (MAX_TEXT + 1), deep):
        refusal = Patterns(PRODUCTION).judge(ToolCall("deploy", {"value": value}), 0.0)
        assert refusal is not None
        assert refusal.rule == "gate-pattern-limit"


@given(st.recursive(st.text("prod x"), lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner)))
def test_additional_pattern_never_allows_more(value: Any) -> None:
    call = ToolCall("run_command", {"value": value})
    if Patterns(PRODUCTION).judge(call, 0.0) is not None:
        assert Patterns(TREE, PRODUCTION).judge(call, 0.0) is not None

"""Tests the structure axis: near misses first, then malformed calls and metacharacters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import Decision, SandboxConfig
from corral.axes import _check_shell_metachars
from corral.guard.axes.structure import MAX_ARGUMENT_BYTES, MAX_ARGUMENTS
from corral.guard.evaluate import vet
from corral.model.call import Axis, Call

METACHARACTERS = {
    "a semicolon": ";", "a pipe": "|", "an ampersand": "&", "greater": ">", "less": "<", "a backtick": "`",
    "a substitution": "$(", "an expansion": "${", "a newline": "\n",
}  # fmt: skip


@pytest.mark.parametrize("argument", ["a$b", "100%", "a#b", "(x)", "a=b", "$HOME", "*?[", "!x", "a\tb", "~"])
def test_other_characters_are_allowed(argument: str) -> None:
    assert _check_shell_metachars(["echo", argument]) is None


@pytest.mark.parametrize("mark", [pytest.param(m, id=name) for name, m in METACHARACTERS.items()])
def test_metacharacter_without_a_shell_is_refused(strict: SandboxConfig, mark: str) -> None:
    argv = ["echo", "ok", f"a{mark}b"]
    reason = _check_shell_metachars(argv)
    assert reason is not None
    finding = next(f for f in vet(Call(argv), strict).findings if f.axis is Axis.STRUCTURE)
    assert (finding.rule, finding.argument, finding.start, finding.length) == (
        "structure-metacharacter",
        2,
        1,
        len(mark),
    )


@pytest.mark.parametrize("argv", [["echo", "a;b"], ["a", "b|c", "$(d)"], ["echo", "a\nb"], [], "a; b"])
def test_metacharacters_are_allowed_with_a_shell(argv: list[str] | str) -> None:
    assert _check_shell_metachars(argv, shell=True) is None


def test_list_with_a_shell_is_refused_under_a_policy(strict: SandboxConfig) -> None:
    assert _check_shell_metachars(["echo", "a;b"], strict, shell=True) is not None


def test_metacharacters_are_allowed_in_shell_text() -> None:
    assert _check_shell_metachars(["echo a | cat"], shell=True) is None


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        pytest.param(Call([]), "empty", id="an empty list"),
        pytest.param(Call(""), "empty", id="an empty string"),
        pytest.param(Call("  ", shell=True), "empty", id="a blank string"),
        pytest.param(Call([""]), "empty", id="an empty name"),
        pytest.param(Call(["ls", 1]), "type", id="a number"),
        pytest.param(Call([b"ls"]), "type", id="bytes"),
        pytest.param(Call(None), "type", id="None"),  # type: ignore[arg-type]
        pytest.param(Call({"ls": 1}), "type", id="a dictionary"),  # type: ignore[arg-type]
        pytest.param(Call(["ls", "a\0b"]), "nul", id="a NUL byte"),
        pytest.param(Call("ls -la"), "string", id="a string without a shell"),
        pytest.param(Call(["ls", "-la"], shell=True), "list", id="a list with a shell"),
        pytest.param(Call(["x"] * (MAX_ARGUMENTS + 1)), "size", id="too many arguments"),
        pytest.param(Call(["x", "y" * (MAX_ARGUMENT_BYTES + 1)]), "size", id="too long an argument"),
        pytest.param(Call(["ls"], cwd="a\0"), "cwd", id="a NUL in cwd"),
        pytest.param(Call(["ls"], env={"A=B": "x"}), "env", id="a variable's name with ="),
        pytest.param(Call(["ls"], env={"A": 1}), "env", id="a variable that is a number"),  # type: ignore[dict-item]
    ],
)
def test_malformed_call_is_refused(strict: SandboxConfig, call: Call, rule: str) -> None:
    verdict = vet(call, strict)
    assert [(f.rule, f.decision) for f in verdict.findings] == [(f"structure-{rule}", Decision.DENY)]


def test_single_word_needs_no_list(strict: SandboxConfig) -> None:
    assert vet(Call("ls"), strict).allowed


@pytest.mark.parametrize(
    "text", ["ls &&", "if true; then", "echo 'x", "ls | | cat", "( ls", "echo \u202e x", "ls \x01", "}"]
)
def test_unparsable_text_is_not_allowed(strict: SandboxConfig, workspace: SandboxConfig, text: str) -> None:
    assert vet(Call(text, shell=True), strict).decision is Decision.DENY
    assert not vet(Call(text, shell=True), workspace).allowed


@given(st.lists(st.text()))
def test_check_never_raises(argv: list[str]) -> None:
    _check_shell_metachars(argv)

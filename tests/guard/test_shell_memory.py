"""Tests that a call in a shell that lasts is judged by everything that earlier calls of that shell may have changed."""

from pathlib import Path

import pytest

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.shell_memory import MAX_FUNCTIONS, MAX_NAMES, ShellMemory
from corral.model.call import Call, Decision, Verdict


@pytest.fixture
def root(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "notes.txt").write_text("notes")
    return project


def play(root: Path, *texts: str, profile: str = "workspace", says_yes: bool = False) -> list[Verdict]:
    """Judge texts as the calls of one shell. A call that is refused does not run, so it changes nothing."""
    config = SandboxConfig(project_root=str(root), profile=profile)
    machine, memory, verdicts = Machine.of(config), ShellMemory(), []
    for text in texts:
        verdict = vet(Call(text, True, str(root)), config, machine, memory)
        verdicts.append(verdict)
        if verdict.allowed or (says_yes and verdict.decision == Decision.ASK):
            memory = memory.after(config.rules.effects)
    return verdicts


def rules(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


UNPROVEN = {
    "a variable of an earlier call": ("d=notes.txt", "cat $d"),
    "a variable of which an earlier call may have ended early": ("d=/etc", ": $((1/0)); d=sub", "cat $d/x"),
    "a home that an earlier call has set": ("read -r HOME < notes.txt", "cat ~/x"),
    "a home that printf has set": ("printf -v HOME %s sub", "cat ~/x"),
    "a home that arithmetic has set": ("((HOME=1))", "cat ~/x"),
    "a directory that a loop has set": ("for PWD in sub; do :; done", "cat $PWD/x"),
    "fields that are split elsewhere": ("IFS=o", "x=notes; cat $x"),
    "text that arithmetic would run": ("x='a[$(sudo id)]'", "((x))"),
}


@pytest.mark.parametrize("texts", UNPROVEN.values(), ids=UNPROVEN.keys())
def test_state_of_earlier_calls_proves_nothing(root: Path, texts: tuple[str, ...]) -> None:
    *earlier, last = play(root, *texts, profile="strict")
    assert not last.allowed, earlier


DANGEROUS = {
    "a function with the name of a program": (
        {"path-read-secret"},
        "ls() { cat $1; }",
        "ls /etc/shadow",
    ),
    "a function that calls one that is defined later": (
        {"path-delete-outside"},
        "f() { g; }",
        "g() { rm -r ~/x; }",
        "f",
    ),
    "an earlier body of a function": ({"path-delete-outside"}, "g() { rm -r $1; }", "g() { echo $1; }", "g ~/x"),
    "a variable whose value is likely": ({"path-read-secret"}, "d=/etc", "cat $d/shadow"),
    "a home whose value is likely": ({"path-read-secret"}, "HOME=/etc", "cat ~/shadow"),
    "a function that bash calls": (
        {"path-read-secret"},
        "x() { cat $1; }",
        "command_not_found_handle() { x /etc/shadow; }",
    ),
    "a function in a child shell": ({"path-read-secret"}, "x() { cat $1; }", "export -f x", "f() { x /etc/shadow; }"),
}


@pytest.mark.parametrize(("expected", "texts"), [(v[0], v[1:]) for v in DANGEROUS.values()], ids=DANGEROUS.keys())
def test_danger_is_found_across_calls(root: Path, expected: set[str], texts: tuple[str, ...]) -> None:
    assert expected <= rules(play(root, *texts)[-1])


HARMLESS = {
    "a helper": ("build() { echo building $1; }", "build all"),
    "a virtual environment": ("source venv/bin/activate", "python -m pytest -q"),
    "a variable": ("version=3", "echo version $version"),
    "options": ("set -euo pipefail", "ls | wc -l"),
    "a job": ("sleep 1 &", "jobs; wait"),
    "a search path": ("export PATH=$PWD/bin:$PATH", "ls"),
}


@pytest.mark.parametrize("texts", HARMLESS.values(), ids=HARMLESS.keys())
def test_ordinary_sessions_are_allowed(root: Path, texts: tuple[str, ...]) -> None:
    assert [verdict.allowed for verdict in play(root, *texts)] == [True] * len(texts)


def test_call_that_was_refused_changes_nothing(root: Path) -> None:
    *_, last = play(root, "ls() { sudo $1; }", "ls notes.txt")
    assert last == Verdict()


def test_yes_to_a_changed_meaning_holds_for_one_call(root: Path) -> None:
    first, later, last = play(root, "shopt -s expand_aliases", "ls", "true", says_yes=True)
    assert [verdict.decision for verdict in (first, later, last)] == [Decision.ASK] * 3
    assert rules(later) == {"structure-unparsed"}


def test_function_that_the_session_needs_is_reported(root: Path) -> None:
    strict = play(root, "builtin() { :; }", profile="strict")[0]
    assert rules(strict) == {"structure-shadow"}


def test_too_many_functions_end_the_session(root: Path) -> None:
    text = "\n".join(f"f{number}() {{ :; }}" for number in range(MAX_FUNCTIONS + 1))
    first, last = play(root, text, "ls")
    assert (first.allowed, rules(last)) == (True, {"structure-limit"})


def test_too_many_variables_are_all_unknown(root: Path) -> None:
    text = "\n".join(f"v{number}=1" for number in range(MAX_NAMES + 1))
    assert [verdict.allowed for verdict in play(root, text, "echo hello", "cat ~/x", profile="strict")] == [
        True,
        True,
        False,
    ]


def test_findings_in_a_function_do_not_point_into_the_call(root: Path) -> None:
    *_, last = play(root, "f() {\n  true\n  cat $1\n}", "f /etc/shadow")
    found = {(finding.start, finding.length) for finding in last.findings}
    assert found <= {(0, 0), (2, 11)}

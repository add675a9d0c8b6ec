"""Whole envelopes of every host, and whole answers: files of golden/HOST, with ROOT, HOME and ids in place of what changes."""

import json
from pathlib import Path

import pytest
from hosting import HOSTS, Owner

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(GOLDEN.glob("*/*.in.json"))
# What the hosts' documents list, at the top and below what holds the answer; anything else lets the call run at Codex.
KEYS: dict[str, tuple[set[str], str, set[str]]] = {
    "claude": (
        {"hookSpecificOutput", "systemMessage", "continue", "stopReason"},
        "hookSpecificOutput",
        {"hookEventName", "permissionDecision", "permissionDecisionReason", "updatedInput", "additionalContext"},
    ),
    "codex": (
        {"hookSpecificOutput", "systemMessage"},
        "hookSpecificOutput",
        {"hookEventName", "permissionDecision", "permissionDecisionReason", "updatedInput", "additionalContext"},
    ),
    "gemini": (
        {"decision", "reason", "hookSpecificOutput", "systemMessage", "suppressOutput", "continue", "stopReason"},
        "hookSpecificOutput",
        {"tool_input"},
    ),
    "cursor": ({"permission", "user_message", "agent_message"}, "", set()),
    "opencode": ({"decision", "reason", "command"}, "", set()),
    "copilot": (
        {"permissionDecision", "permissionDecisionReason", "modifiedArgs", "additionalContext"},
        "",
        set(),
    ),
}
DECISIONS = {
    "claude": {"allow", "ask", "deny"},
    "codex": {"allow", "deny"},  # `ask` fails open there
    "gemini": {"allow", "deny"},
    "cursor": {None, "ask", "deny"},
    "opencode": {"allow", "deny"},
    "copilot": {"allow", "ask", "deny"},
}
NEEDED = {"allow", "ask", "deny", "other-tool", "no-command"}


def told(case: Path) -> dict[str, object]:
    """Return the answer of a case; empty where the hook is silent."""
    text = case.with_name(case.name.replace(".in.json", ".out.json")).read_text()
    answer: dict[str, object] = json.loads(text) if text else {}
    return answer


def decision(host: str, answer: dict[str, object]) -> object:
    """Return what an answer decides."""
    inner = answer.get("hookSpecificOutput")
    body = inner if host in ("claude", "codex") and isinstance(inner, dict) else answer
    return next((body[key] for key in ("permissionDecision", "decision", "permission") if key in body), None)


def ids(cases: list[Path]) -> list[str]:
    return [f"{case.parent.name}-{case.name.removesuffix('.in.json')}" for case in cases]


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_an_envelope_is_answered_to_the_letter(case: Path, tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    done = owner.hook(case.parent.name, owner.placed(case.read_text()).encode())
    said = owner.displaced(done.stdout.decode()), owner.displaced(done.stderr.decode()), f"{done.returncode}\n"
    stem = case.name.removesuffix(".in.json")
    assert said == tuple(case.with_name(f"{stem}.{kind}").read_text() for kind in ("out.json", "err", "status"))


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_no_key_is_said_that_the_host_does_not_list(case: Path) -> None:
    host, answer = case.parent.name, told(case)
    top, name, below = KEYS[host]
    inner = answer.get(name, {}) if name else {}
    assert isinstance(inner, dict)
    assert answer.keys() - top == set()
    assert inner.keys() - below == set()
    assert not answer or decision(host, answer) in DECISIONS[host]


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_a_refusal_is_json_and_words_and_exit_code_2_or_none_of_them(case: Path) -> None:
    stem = case.name.removesuffix(".in.json")
    err, status = (case.with_name(f"{stem}.{kind}").read_text() for kind in ("err", "status"))
    is_refusal = decision(case.parent.name, told(case)) == "deny"
    assert (bool(err.strip()), status) == (is_refusal, "2\n" if is_refusal else "0\n")


@pytest.mark.parametrize("host", HOSTS)
def test_every_host_has_a_case_of_each_kind(host: str) -> None:
    present = {case.name.removesuffix(".in.json") for case in CASES if case.parent.name == host}
    assert NEEDED - present == set()
    assert any(name.startswith("by-") for name in present)


def test_every_file_belongs_to_a_case() -> None:
    made = {
        case.with_name(case.name.replace(".in.json", kind))
        for case in CASES
        for kind in (".in.json", ".out.json", ".err", ".status")
    }
    assert {path for path in GOLDEN.rglob("*") if path.is_file()} == made

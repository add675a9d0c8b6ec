"""Compares whole payloads and answers of every host with golden/HOST.json.

ROOT, HOME and ID stand for values that differ between runs. Set CORRAL_UPDATE_GOLDEN=1 to rewrite the answers, and read the
difference before you keep it.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hosting import Owner

from corral.integrations.hooks.hosts import claude
from corral.integrations.hooks.registry import HOSTS

GOLDEN = Path(__file__).parent / "golden"
FILES = {host: json.loads((GOLDEN / f"{host}.json").read_text()) for host in HOSTS}
CASES = [(host, name) for host, file in FILES.items() for name in file["cases"]]
IDS = [f"{host}: {name}" for host, name in CASES]
NEEDED = {
    *("allow", "ask", "deny", "other tool", "no command"),
    *(f"question, default: {decision}" for decision in ("allow", "ask", "deny")),
}


def decision(host: str, answer: Any) -> object:
    """Return the decision of an answer."""
    inner = answer.get("hookSpecificOutput") if answer else None
    body = inner if isinstance(inner, dict) and "permissionDecision" in inner else answer or {}
    return next((body[key] for key in ("permissionDecision", "decision", "permission") if key in body), None)


def hook_answer(owner: Owner, host: str, case: dict[str, Any]) -> dict[str, Any]:
    """Run the hook on a case's payload; return its whole answer without what differs between runs."""
    owner.policy(case.get("policy", ""))
    given = case["in"]
    done = owner.hook(host, owner.placed(given if isinstance(given, str) else json.dumps(given)).encode())
    text = owner.displaced(done.stdout.decode())
    assert not text or text == json.dumps(json.loads(text)) + "\n"
    return {
        "stdout": json.loads(text) if text else "",
        "stderr": owner.displaced(done.stderr.decode()),
        "status": done.returncode,
    }


def update(host: str, name: str, answer: dict[str, Any]) -> None:
    path = GOLDEN / f"{host}.json"
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several workers of `pytest -n` write the same file
        data = json.load(file)
        data["cases"][name] |= answer
        file.seek(0)
        file.truncate()
        file.write(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize(("host", "name"), CASES, ids=IDS)
def test_payload_gets_exactly_the_golden_answer(host: str, name: str, tmp_path: Path) -> None:
    case = FILES[host]["cases"][name]
    answer = hook_answer(Owner(tmp_path), host, case)
    if os.environ.get("CORRAL_UPDATE_GOLDEN") == "1":
        update(host, name, answer)
        return
    assert answer == {key: case[key] for key in ("stdout", "stderr", "status")}


@pytest.mark.parametrize("host", HOSTS)
def test_answer_has_only_keys_that_the_host_documents(host: str) -> None:
    # Codex runs the call when the answer has an unknown key or `ask`.
    documented = FILES[host]["answer"]
    for name, case in FILES[host]["cases"].items():
        answer = case["stdout"] or {}
        inner = answer.get(documented["inner"], {}) if documented["inner"] else {}
        assert answer.keys() - set(documented["keys"]) == set(), name
        assert inner.keys() - set(documented["inner_keys"]) == set(), name
        assert not answer or decision(host, answer) in documented["decisions"], name


@pytest.mark.parametrize("host", HOSTS)
def test_refusal_is_json_and_stderr_and_exit_code_2(host: str) -> None:
    for name, case in FILES[host]["cases"].items():
        is_refusal = decision(host, case["stdout"]) == "deny"
        expected = (is_refusal, 2 if is_refusal else 0)
        assert (bool(case["stderr"].strip()), case["status"]) == expected, name


@pytest.mark.parametrize("host", HOSTS)
def test_every_host_has_a_case_of_each_kind(host: str) -> None:
    names = set(FILES[host]["cases"])
    assert NEEDED - names == set()
    assert any(name.startswith("by ") for name in names), "no payload of another host"
    assert any("opted in: ask" in name for name in names), "no question with host_questions set"


def test_every_golden_file_belongs_to_a_host() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{host}.json" for host in HOSTS}


def asking_modes(host: str) -> set[str]:
    """Return the modes in which the golden answer asks."""
    modes = {
        name[10:-5]: case
        for name, case in FILES[host]["cases"].items()
        if name.startswith("question, ") and name.endswith(": ask")
    }
    return {mode for mode, case in modes.items() if decision(host, case["stdout"]) == "ask"}


@pytest.mark.parametrize("host", HOSTS)
def test_hook_asks_only_where_a_person_answers(host: str) -> None:
    by_ability = {"nobody": set[str](), "unknown": {"opted in"}}
    in_person = {"default", "acceptEdits", "plan", "default, in a subagent"}
    assert asking_modes(host) == by_ability.get(HOSTS[host].questions, in_person)


@pytest.mark.parametrize("host", HOSTS)
def test_hook_asks_about_openings_only_if_the_user_opted_in(host: str) -> None:
    cases = {name: case for name, case in FILES[host]["cases"].items() if name.startswith("opening, ")}
    asking = {name[9:] for name, case in cases.items() if decision(host, case["stdout"]) == "ask"}
    modes = {"copilot": {"default"}, "claude": {"default", "acceptEdits", "plan", "default, in a subagent"}}
    assert asking == {f"{mode}, opted in" for mode in modes.get(host, ())}


def test_every_permission_mode_of_claude_code_has_cases() -> None:
    assert {f"question, {mode}: ask" for mode in claude._ANSWERS} <= set(FILES["claude"]["cases"])


def test_refused_question_leaves_no_pending_call(tmp_path: Path) -> None:
    for mode in ("auto", "default"):
        owner = Owner(tmp_path / mode)
        answer = hook_answer(owner, "claude", FILES["claude"]["cases"][f"question, {mode}: ask"])
        pending = owner.state / "pending"
        is_left = pending.exists() and any(pending.iterdir())
        assert (is_left, "corral go ID " in json.dumps(answer["stdout"])) == (mode == "default",) * 2

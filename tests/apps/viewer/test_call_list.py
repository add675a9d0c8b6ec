"""Records of calls have known fields and bounded sizes for any data."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.apps.viewer import call_list
from corral.apps.viewer.feed import dumps
from corral.model.call import Axis, Decision, Finding, Usage, Verdict, Violation
from corral.model.result import SandboxResult

ENTRY: dict[str, Any] = {
    "schema": "corral.audit/1", "seq": 7, "at": "2026-11-15T10:00:00.500Z", "id": "a" * 32, "event": "run", "root": "/p", "cwd": "/p/src",
    "profile": "strict", "argv": ["ls", "-l"], "decision": "allow", "findings": [], "pid": 3,
    "result": {
        "exit_code": 0, "signal": None, "timed_out": False, "denied": False, "truncated": True, "stdout_bytes": 9, "stderr_bytes": 0, "killed": 0, "backend": "warden",
        "enforcement": "partial", "started_at": "2026-11-15T10:00:00.000Z", "duration_ms": 1.5, "missing_layers": ["net"],
        "violations": [{"kind": "file", "target": "/x", "inferred": True}], "usage": {"user_seconds": 0.25, "peak_memory_bytes": 4096, "new_kind": 1},
    },
}  # fmt: skip


def test_log_entry_becomes_a_call() -> None:
    assert call_list.of_entry(ENTRY) == {
        "id": "a" * 32, "key": "a" * 32, "event": "run", "root": "/p", "cwd": "/p/src", "profile": "strict", "seq": 7, "at": 1794736800000, "decision": "allow",
        "argv": ["ls", "-l"], "outcome": "ok",
        "result": {
            "exit_code": 0, "stdout_bytes": 9, "stderr_bytes": 0, "killed": 0, "duration_ms": 1.5, "truncated": True, "backend": "warden", "enforcement": "partial",
            "missing_layers": ["net"], "violations": [{"kind": "file", "target": "/x", "inferred": True}], "usage": {"user_seconds": 0.25, "peak_memory_bytes": 4096},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"exit_code": 3}, "failed"),
        ({"exit_code": 137, "signal": 9}, "signal"),
        ({"exit_code": -101, "timed_out": True, "signal": 9}, "timeout"),
        ({"exit_code": -100, "denied": True}, "refused"),
    ],
)
def test_outcome_is_one_word(changes: dict[str, Any], outcome: str) -> None:
    assert call_list.of_entry(ENTRY | {"result": ENTRY["result"] | changes})["outcome"] == outcome


def test_entry_without_result_is_judged_refused_error_or_note() -> None:
    judged = {name: value for name, value in ENTRY.items() if name != "result"}
    assert call_list.of_entry(judged)["outcome"] == "judged"
    assert call_list.of_entry(judged | {"decision": "ask"})["outcome"] == "refused"
    assert call_list.of_entry(judged | {"error": "no keeper"})["outcome"] == "error"
    assert call_list.of_entry({"id": "b", "event": "trust"})["outcome"] == "note"


def test_axis_is_taken_from_the_rule_id() -> None:
    found = [
        call_list.finding({"rule": rule}).get("axis") for rule in ("path-outside-root", "name-rm", "gate-tool", "mine")
    ]
    assert found == ["path", "name", "gate", None]


def test_result_keeps_finding_positions_and_returns_output_apart() -> None:
    finding = Finding(Axis.PATH, "path-x", Decision.DENY, "why", "/x", 4, 2, None, "do y")
    result = SandboxResult(
        ("cat /x",), -100, b"printed", b"", denied=True, id="c", shell=True, verdict=Verdict((finding,)),
        started_at="2026-11-15T10:00:00.000Z", violations=(Violation("file", "/x", instead="z"),), usage=Usage(1.0, 0.5),
        full_output_path="/tmp/o",
    )  # fmt: skip
    call, output = call_list.of_result(result.to_dict(), root="/p")
    assert call["shell"] == "cat /x"
    assert call["findings"] == [
        {"rule": "path-x", "reason": "why", "text": "/x", "instead": "do y", "axis": "path", "decision": "deny", "start": 4, "length": 2}
    ]  # fmt: skip
    assert call["result"]["violations"] == [{"kind": "file", "target": "/x", "instead": "z"}]
    assert output == {"stdout": "printed", "stderr": "", "path": "/tmp/o"}
    assert "printed" not in dumps(call)


def test_denied_result_with_allow_verdict_is_a_denial() -> None:
    assert call_list.of_result({"exit_code": -100, "denied": True, "argv": ["ls"]})[0]["decision"] == "deny"


def test_hook_gates_and_run_are_merged() -> None:
    hook = {
        "id": "h" * 32,
        "event": "hook",
        "host": "claude",
        "shell": "ls",
        "decision": "allow",
        "at": "2026-11-15T09:59:59.000Z",
    }
    run = ENTRY | {"call": "h" * 32}
    gate = {
        "id": "g", "event": "gate", "tool": "run_command", "passed": ["tools"], "decision": "allow", "result_id": "h" * 32,
        "at": "2026-11-15T10:00:02.000Z",
    }  # fmt: skip
    parts = [call_list.of_entry(entry) for entry in (hook, run, gate)]
    assert {part["key"] for part in parts} == {"h" * 32}
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        made = call_list.merged(call_list.merged(parts[order[0]], parts[order[1]]), parts[order[2]])
        assert [step["event"] for step in made["chain"]] == ["hook", "gate", "run"]
        assert (made["outcome"], made["host"], made["at"]) == ("ok", "claude", 1794736800000)


def test_call_of_a_task_has_its_facts() -> None:
    facts = {
        "shell": "ls",
        "profile": "strict",
        "exit_code": 2,
        "decision": "deny",
        "rules": ["name-rm"],
        "violations": ["file"],
        "stdout": "x",
    }
    call, output = call_list.of_task("run", "task", 1, facts)
    assert (call["key"], call["task"], call["outcome"]) == ("run/task/1", "task", "failed")
    assert call["findings"] == [{"rule": "name-rm", "axis": "name", "decision": "deny"}]
    assert output == {"stdout": "x"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ENTRY, *ENTRY["result"], "rule", "passed", "tool", "kind"]), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([*ENTRY, "shell", "cut", "error", "call", "tool", "passed", "verdict"]), JSON))
def test_any_data_gives_a_json_record(data: dict[str, Any]) -> None:
    for call in (call_list.of_entry(data), call_list.of_result(data)[0], call_list.of_task("r", "t", 1, data)[0]):
        assert json.loads(dumps(call)) == call
        assert call["decision"] in call_list.DECISIONS
        assert call["outcome"]


def test_long_texts_are_cut() -> None:
    call = call_list.of_entry(
        ENTRY | {"argv": ["x" * 200_000] * 9000, "reason": "y" * 10_000, "findings": [{"rule": "a"}] * 1000}
    )
    assert len(call["argv"]) == call_list.MAX_WORDS
    assert len(call["argv"][0]) == call_list.MAX_TEXT + 1
    assert (len(call["reason"]), len(call["findings"])) == (call_list.MAX_WORD + 1, call_list.MAX_ITEMS)

"""Named destinations give the same answers in policy files, hooks, the audit log, MCP and evals."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosting import Owner, answering

from corral.apps.evals.run_task import Trials
from corral.apps.evals.task import Task
from corral.apps.evals.validate_tasks import problems
from corral.policy.loader import load


@pytest.fixture
def port() -> Iterator[int]:
    with answering() as port:
        yield port


@pytest.fixture
def owner(port: int) -> Iterator[Owner]:
    # Not in /tmp, which is the sandbox's scratch.
    with tempfile.TemporaryDirectory(prefix="corral-net-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        made = Owner(Path(folder))
        granted = f'network = ["own.example:{port}", "index.example:443"]\nhosts = ["own.example=127.0.0.1"]\n'
        made.policy(f'host_questions = ["cursor"]\n[containment]\n{granted}')
        yield made


def asked(owner: Owner, text: str) -> dict[str, Any]:
    payload = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": str(owner.root), "session_id": "x"}
    payload |= {"tool_input": {"command": text}}  # type: ignore[dict-item]
    done = owner.hook("claude", json.dumps(payload).encode())
    answer: dict[str, Any] = json.loads(done.stdout)["hookSpecificOutput"]
    return answer


def test_hook_allows_granted_destination_and_it_is_reached(owner: Owner, port: int) -> None:
    answer = asked(owner, f"curl -sS http://own.example:{port}/")
    assert answer["permissionDecision"] == "allow"
    command = answer["updatedInput"]["command"]
    done = subprocess.run(
        ["bash", "-c", command], cwd=owner.root, env=owner.environ, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("answered", 0), done.stderr
    lines = [json.loads(line) for line in (owner.state / "audit" / "log.jsonl").read_text().splitlines()]
    (run,) = [line for line in lines if line["event"] == "run"]
    assert [(c["target"], c["outcome"]) for c in run["result"]["connections"]] == [(f"own.example:{port}", "allowed")]


@pytest.mark.parametrize(
    "text", ["curl https://evil.example/", "git clone https://evil.example/r.git", "wget evil.example"]
)
def test_hook_refuses_ungranted_destination(owner: Owner, text: str) -> None:
    answer = asked(owner, text)
    assert answer["permissionDecision"] == "deny"
    assert "evil.example" in answer["permissionDecisionReason"]
    assert "corral allow " in answer["permissionDecisionReason"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("curl https://index.example/", "ask"), ("git fetch", "ask"), ("curl https://evil.example/", "deny")],
)
def test_host_without_containment_asks_about_the_network(owner: Owner, text: str, said: str) -> None:
    payload = {"hook_event_name": "beforeShellExecution", "command": text, "cwd": str(owner.root)}
    payload |= {"conversation_id": "c", "generation_id": "g", "workspace_roots": [str(owner.root)]}  # type: ignore[dict-item]
    done = owner.hook("cursor", json.dumps(payload).encode())
    assert json.loads(done.stdout)["permission"] == said


def test_project_may_remove_destinations_but_not_add_any(owner: Owner) -> None:
    file = owner.root / "corral.toml"
    for text, kept in (
        ('["index.example:443"]', True),
        ('["evil.example:443"]', False),
        ('"on"', False),
        ('"off"', True),
    ):
        file.write_text(f"[containment]\nnetwork = {text}\n")
        policy = load(str(owner.root), owner.environ)
        assert bool(policy.waiting) is not kept
        assert "evil.example:443" not in policy.config.containment.network
        assert (len(policy.config.containment.destinations) < 2) is kept


def test_shown_policy_includes_destinations(owner: Owner, port: int) -> None:
    from corral.policy.render_policy import to_dict

    shown = to_dict(load(str(owner.root), owner.environ))["settings"]["containment.network"]  # type: ignore[index]
    assert shown["value"] == [f"own.example:{port}", "index.example:443"]


def test_mcp_policy_includes_destinations(owner: Owner, port: int) -> None:
    pytest.importorskip("mcp", reason="the extra is not installed")
    from corral.integrations.mcp.schemas import policy_data

    data = json.loads(json.dumps(policy_data(load(str(owner.root), owner.environ))))
    assert data["containment"]["network"] == [f"own.example:{port}", "index.example:443"]


def test_shown_policy_hides_injected_credentials(owner: Owner) -> None:
    pytest.importorskip("mcp", reason="the extra is not installed")
    from corral.integrations.mcp.schemas import policy_data
    from corral.policy.render_policy import to_dict

    owner.policy(
        '[containment]\nnetwork = ["api.example:443"]\n'
        'inject = ["api.example:443 Authorization: Bearer s3cret", "api.example:443 X-Key: a-s3cret${OWN_KEY}"]\n'
    )
    policy = load(str(owner.root), owner.environ)
    assert "s3cret" in str(policy.config.containment.inject)
    shown = ["api.example:443 Authorization: ***", "api.example:443 X-Key: ${OWN_KEY}"]
    data = policy_data(policy)
    assert data["containment"]["inject"] == shown
    assert "s3cret" not in json.dumps(data)
    assert "s3cret" not in json.dumps(to_dict(policy))
    words = [sys.executable, "-m", "corral", "policy", "show"]
    told = subprocess.run(words, cwd=owner.root, env=owner.environ, capture_output=True, text=True, check=True)
    assert shown[1] in told.stdout
    assert "s3cret" not in told.stdout


def test_eval_task_may_be_granted_a_server(tmp_path: Path, port: int) -> None:
    data = {
        "id": "reaches",
        "profile": "workspace",
        "containment": {"network": [f"own.example:{port}"], "hosts": ["own.example=127.0.0.1"]},
        "calls": [
            {"shell": f"curl -sS http://own.example:{port}/", "expect": {"stdout": "answered", "decision": "allow"}},
            {"shell": "curl -sS http://evil.example/", "expect": {"decision": "deny"}},
        ],
    }
    assert problems(data) == []
    (outcome,) = Trials(str(tmp_path)).begin().do_all([Task("reaches", data)])
    assert (outcome.status, outcome.words) == ("passed", ())
    wrong = data | {"containment": {"network": ["own.example"]}}
    assert [place for place, _ in problems(wrong)] == [("containment", "network")]


def test_audit_log_entry_shows_connections(port: int) -> None:
    from corral.audit.render_log import _reached

    assert _reached({"target": "a.example:443", "outcome": "allowed", "address": "1.2.3.4", "count": 3}) == (
        "a.example:443, allowed, 1.2.3.4, 3 times"
    )
    assert _reached({"target": "b.example:443", "outcome": "refused", "detail": "it is not granted", "count": 1}) == (
        "b.example:443, refused, it is not granted"
    )
    would = {"target": "b.example:443", "outcome": "refused", "grant": "b.example:443", "count": 1}
    assert _reached(would) == "b.example:443, refused, the grant that would allow it is b.example:443"

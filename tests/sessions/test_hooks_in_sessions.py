"""The hook of an agent with a session gets its answer from the service: the same one, and its own where the service is silent."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import Owner
from session_world import Agent, working

pytestmark = pytest.mark.usefixtures("_full")
PAYLOADS = {
    "allowed": {"tool_name": "Bash", "tool_input": {"command": "echo hi | cat"}},
    "denied": {"tool_name": "Bash", "tool_input": {"command": "cat /etc/shadow; sudo id"}},
    "asked": {"tool_name": "Bash", "tool_input": {"command": "git reset --hard"}, "permission_mode": "default"},
    "opening": {"tool_name": "Bash", "tool_input": {"command": "curl https://example.org"}},
    "file": {"tool_name": "Write", "tool_input": {"file_path": "ROOT/.git/hooks/pre-commit", "content": ""}},
    "read": {"tool_name": "Read", "tool_input": {"file_path": "/etc/shadow"}},
    "unread": {"tool_name": "Bash", "tool_input": {}},
    "other tool": {"tool_name": "Task", "tool_input": {"prompt": "x"}},
}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with working(tmp_path / "in") as made:
        yield made


def payload(owner: Owner, name: str) -> dict[str, object]:
    given = {"hook_event_name": "PreToolUse", "session_id": "one", "cwd": str(owner.root), **PAYLOADS[name]}
    return dict(json.loads(json.dumps(given).replace("ROOT", str(owner.root))))


def plain(owner: Owner, text: bytes) -> str:
    shown = text.decode().replace(str(owner.home), "HOME")
    return re.sub(r"\b[0-9a-f]{4,32}\b", "ID", shown)


def judged_by(agent: Agent) -> int:
    """Return the process that wrote the last line about a hook."""
    lines = (agent.state / "audit" / "log.jsonl").read_text().splitlines()
    return int(next(entry["pid"] for line in reversed(lines) if (entry := json.loads(line)).get("event") == "hook"))


def test_answers_are_those_of_the_hook_itself(agent: Agent, tmp_path: Path) -> None:
    alone = Agent(tmp_path / "out", "")
    agent.run("true")
    for name in PAYLOADS:
        inside, outside = agent.answer(payload(agent, name)), alone.answer(payload(alone, name))
        found = [
            (done.returncode, plain(owner, done.stdout), plain(owner, done.stderr))
            for owner, done in ((agent, inside), (alone, outside))
        ]
        assert found[0] == found[1], name
        if name in ("allowed", "denied", "asked", "file"):
            assert [judged_by(agent)] == agent.services(), name


def test_silent_service_leaves_the_judgement_to_the_hook(agent: Agent) -> None:
    agent.run("true")
    (service,) = agent.services()
    os.kill(service, signal.SIGSTOP)
    try:
        denied = agent.answer(payload(agent, "denied"))
        assert (denied.returncode, judged_by(agent) != service) == (2, True)
        allowed = agent.answer(payload(agent, "allowed"))
        assert b'"allow"' in allowed.stdout
        assert judged_by(agent) != service
    finally:
        os.kill(service, signal.SIGCONT)


def test_killed_service_leaves_the_judgement_to_the_hook(agent: Agent) -> None:
    agent.run("true")
    os.kill(agent.services()[0], signal.SIGKILL)
    assert agent.answer(payload(agent, "denied")).returncode == 2


def test_changed_policy_holds_for_the_next_answer(agent: Agent) -> None:
    agent.run("true")
    assert agent.answer(payload(agent, "allowed")).returncode == 0
    agent.policy('sessions = true\ndenylist = ["cat"]\n')
    assert agent.answer(payload(agent, "allowed")).returncode == 2
    assert [judged_by(agent)] == agent.services()


def test_long_payload_is_judged_by_the_hook(agent: Agent) -> None:
    agent.run("true")
    call = payload(agent, "allowed") | {"tool_input": {"command": f"echo {'x' * 20_000}"}}
    done = agent.answer(call)
    assert (done.returncode, b'"allow"' in done.stdout) == (0, True)
    assert judged_by(agent) not in agent.services()


def test_false_alias_gives_no_answer(agent: Agent, tmp_path: Path) -> None:
    """A socket in a directory that others can enter is not asked."""
    agent.run("true")
    (service,) = agent.services()
    agent.sockets.chmod(0o777)
    assert agent.answer(payload(agent, "denied")).returncode == 2
    assert judged_by(agent) != service
    agent.sockets.chmod(0o700)

"""Tests for every host and mode whether the hook asks or refuses. envelopes.json has the whole answers.

`PYTHONPATH=tests python tests/integrations/hooks/test_hook_questions.py` writes that file anew; read the difference before you keep it.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hosting import HOSTS, Owner, payload

from corral.integrations.hooks.hosts import claude

ENVELOPES = Path(__file__).with_name("envelopes.json")
COMMANDS = {"allow": "git status", "ask": "git reset --hard @~1", "deny": "sudo id"}
CLAUDE_MODES: dict[str, dict[str, Any]] = {
    **{mode: {"permission_mode": mode} for mode in ("default", "acceptEdits", "plan")},
    **{mode: {"permission_mode": mode} for mode in ("auto", "dontAsk", "bypassPermissions")},
    "default, in a subagent": {"permission_mode": "default", "agent_id": "a1", "agent_type": "general-purpose"},
    "no mode": {},
    "unknown mode": {"permission_mode": "yolo"},
    "mode in other letters": {"permission_mode": "Default"},
    "mode that is no text": {"permission_mode": ["default"]},
}
CODEX_MODES = ("default", "acceptEdits", "plan", "dontAsk", "bypassPermissions")
OPTED = 'host_questions = ["copilot", "cursor"]\n'
MODES: dict[str, dict[str, tuple[dict[str, Any], str]]] = {
    "claude": {name: (given, "") for name, given in CLAUDE_MODES.items()}
    | {"auto, opted in": ({"permission_mode": "auto"}, OPTED)},
    "codex": {mode: ({"permission_mode": mode}, "") for mode in CODEX_MODES} | {"opted in": ({}, OPTED)},
    **{host: {"": ({}, ""), "opted in": ({}, OPTED)} for host in ("gemini", "cursor", "opencode", "copilot")},
}
CASES = [(host, mode, decision) for host in HOSTS for mode in MODES[host] for decision in COMMANDS]


def answered(owner: Owner, host: str, mode: str, decision: str) -> dict[str, Any]:
    """Return the whole answer of a hook, without what is this machine's."""
    given, policy = MODES[host][mode]
    owner.policy(policy)
    data = json.loads(payload(host, owner, command=COMMANDS[decision])) | given
    done = owner.hook(host, json.dumps(data).encode())
    said = owner.displaced(done.stdout.decode())
    return {
        "stdout": json.loads(said) if said else "",
        "stderr": owner.displaced(done.stderr.decode()),
        "status": done.returncode,
    }


@pytest.mark.parametrize(("host", "mode", "decision"), CASES, ids=[" ".join(filter(None, case)) for case in CASES])
def test_an_envelope_is_answered_to_the_letter(host: str, mode: str, decision: str, tmp_path: Path) -> None:
    known = json.loads(ENVELOPES.read_text())[host][mode][decision]
    assert answered(Owner(tmp_path), host, mode, decision) == known


def test_questions_are_asked_only_where_a_person_answers() -> None:
    known = json.loads(ENVELOPES.read_text())
    asked = {(host, mode) for host, mode, _ in CASES if '"ask"' in json.dumps(known[host][mode]["ask"]["stdout"])}
    assert asked == {
        *(("claude", mode) for mode in ("default", "acceptEdits", "plan", "default, in a subagent")),
        ("cursor", "opted in"),
        ("copilot", "opted in"),
    }


def test_a_refused_question_leaves_no_grant(tmp_path: Path) -> None:
    for name in ("auto", "default"):
        owner = Owner(tmp_path / name)
        said = answered(owner, "claude", name, "ask")
        pending = owner.state / "pending"
        left = [path.suffix for path in pending.iterdir()] if pending.exists() else []
        assert (bool(left), "--grant" in json.dumps(said["stdout"])) == (name == "default",) * 2


def test_every_mode_of_the_table_has_its_envelopes() -> None:
    assert claude._ANSWERS.keys() <= CLAUDE_MODES.keys()
    known = json.loads(ENVELOPES.read_text())
    assert [(host, mode, decision) for host in known for mode in known[host] for decision in known[host][mode]] == CASES


def main() -> None:
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for host, mode, decision in CASES:
        with tempfile.TemporaryDirectory() as folder:
            answer = answered(Owner(Path(folder)), host, mode, decision)
        made.setdefault(host, {}).setdefault(mode, {})[decision] = answer
    ENVELOPES.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()

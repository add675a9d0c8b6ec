"""A command that cannot be undone runs in a transaction if the policy says so, and its changes wait for the user."""

import json
import subprocess
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS, Owner

TRY = '[containment]\ndestructive = "try"\n'
RESET = "git reset --hard && echo done"


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """A user with a repository that has uncommitted changes."""
    owner = Owner(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(owner.root)]
    (owner.root / "notes.txt").write_text("committed\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (owner.root / "notes.txt").write_text("not committed\n")
    return owner


def answered(owner: Owner, text: str, host: str = "claude") -> tuple[str, str]:
    """Return the hook's decision and the rewritten command."""
    envelope = {
        "hook_event_name": "PreToolUse",
        "permission_mode": "default",
        "cwd": str(owner.root),
        "tool_name": "Bash",
        "tool_input": {"command": text},
    }
    said = json.loads(owner.hook(host, json.dumps(envelope).encode()).stdout)["hookSpecificOutput"]
    return said["permissionDecision"], said.get("updatedInput", {}).get("command", "")


def ran(owner: Owner, command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", command],
        env=owner.environ,
        cwd=owner.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )


def log(owner: Owner) -> list[dict[str, object]]:
    files = sorted(Path(owner.environ["HOME"]).rglob("audit/log*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_destructive_command_asks_by_default(owner: Owner) -> None:
    assert answered(owner, RESET)[0] == "ask"


def test_try_policy_runs_it_and_keeps_the_changes_waiting(owner: Owner) -> None:
    owner.policy(TRY)
    decision, command = answered(owner, RESET)
    assert decision == "allow"
    done = ran(owner, command)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done"), done.stderr
    assert "corral apply" in done.stderr
    assert (owner.root / "notes.txt").read_text() == "not committed\n"
    ours = [line for line in log(owner) if "transaction" in line]
    assert [line["event"] for line in ours] == ["run", "transaction"]
    assert len({str(line["transaction"]) for line in ours}) == 1


def test_other_questions_are_still_asked(owner: Owner) -> None:
    owner.policy(TRY)
    assert answered(owner, '"$x" --hard')[0] == "ask"
    assert answered(owner, f'{RESET}; "$x"')[0] == "ask"


def test_denied_command_stays_denied(owner: Owner) -> None:
    owner.policy(TRY + "[effects]\ndiscard = 'deny'\n")
    assert answered(owner, RESET)[0] == "deny"
    assert answered(owner, "sudo id")[0] == "deny"


def test_project_file_cannot_turn_transactions_on(owner: Owner) -> None:
    (owner.root / "corral.toml").write_text(TRY)
    assert answered(owner, RESET)[0] == "ask"


def test_project_file_can_turn_transactions_off(owner: Owner) -> None:
    owner.policy(TRY)
    (owner.root / "corral.toml").write_text('[containment]\ndestructive = "ask"\n')
    assert answered(owner, RESET)[0] == "ask"


def test_harmless_command_needs_no_transaction(owner: Owner) -> None:
    owner.policy(TRY)
    decision, command = answered(owner, "ls")
    done = ran(owner, command)
    assert (decision, done.returncode, "corral apply" in done.stderr) == ("allow", 0, False)

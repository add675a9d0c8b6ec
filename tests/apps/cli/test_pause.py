"""`corral pause`: only the user at a terminal stops the guard of one project, everything that shows the state says so, and `resume` ends it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS, Owner, payload
from screen import Screen

from corral.integrations.hooks.registry import HOSTS
from corral.policy.paused import pause, paused_since

CORRAL = [sys.executable, "-m", "corral"]
DENIED = "sudo id"


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def corral(owner: Owner, *words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*CORRAL, *words],
        env=owner.environ,
        cwd=owner.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )


def decided(owner: Owner, host: str) -> int:
    return owner.hook(host, payload(host, owner, DENIED)).returncode


@pytest.mark.parametrize("host", sorted(set(HOSTS) - {"opencode"}))
def test_hooks_let_every_call_of_a_paused_project_pass(owner: Owner, host: str) -> None:
    judged = owner.hook(host, payload(host, owner, DENIED))
    pause(str(owner.root), owner.environ)
    passed = owner.hook(host, payload(host, owner, DENIED))
    assert b"sudo" in judged.stdout + judged.stderr
    assert (passed.returncode, b"sudo" in passed.stdout, passed.stderr) == (0, False, b"")
    last = json.loads((owner.state / "audit" / "log.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["decision"]) == ("hook", "allow")
    assert "paused" in last["reason"]
    assert corral(owner, "resume").returncode == 0
    assert owner.hook(host, payload(host, owner, DENIED)).returncode == judged.returncode


def test_pause_is_of_one_project(owner: Owner) -> None:
    (owner.home / "second").mkdir()
    pause(str(owner.home / "second"), owner.environ)
    assert decided(owner, "claude") == 2
    assert paused_since(str(owner.home / "second"), owner.environ) > 0
    assert not paused_since(str(owner.root), owner.environ)


def test_status_doctor_and_ps_say_so(owner: Owner) -> None:
    pause(str(owner.root), owner.environ)
    (check,) = [
        one for one in json.loads(corral(owner, "status", "--json").stdout)["checks"] if one["about"] == "paused"
    ]
    assert (check["status"], check["command"].split()[-2:]) == ("fail", ["corral", "resume"])
    assert b"paused" in corral(owner, "doctor").stdout
    assert b"paused" in corral(owner, "ps").stdout
    assert corral(owner, "resume").returncode == 0
    assert b"paused" not in corral(owner, "ps").stdout


def test_without_a_terminal_nothing_is_paused(owner: Owner) -> None:
    done = corral(owner, "pause")
    assert (done.returncode, b"only a person at a terminal" in done.stderr) == (125, True)
    assert not paused_since(str(owner.root), owner.environ)


@pytest.mark.parametrize(("answer", "status"), [(b"y\r", 0), (b"\r", 1), (b"maybe\r", 1)], ids=["yes", "no", "unclear"])
def test_user_at_the_terminal_decides(owner: Owner, answer: bytes, status: int) -> None:
    shown = Screen([*CORRAL, "pause"], owner.root, environ=owner.environ | {"XDG_STATE_HOME": ""})
    try:
        shown.until(b"[N]o")
        shown.type(answer)
        assert shown.status() == status
    finally:
        shown.close()
    assert bool(paused_since(str(owner.root), owner.environ)) == (status == 0)


@pytest.mark.parametrize(
    "command",
    [
        "corral pause",
        "corral resume",
        "python3 -m corral pause",
        "corral stop",
        "corral session start",
        "corral attach 3f2a",
        "corral publish 3000",
        "corral run --background --publish 3000 -- npm run dev",
    ],
)
def test_agent_cannot_run_it(owner: Owner, command: str) -> None:
    assert owner.hook("claude", payload("claude", owner, command)).returncode == 2


def test_file_that_others_can_write_is_refused(owner: Owner) -> None:
    pause(str(owner.root), owner.environ)
    (owner.state / "paused").chmod(0o777)
    assert decided(owner, "claude") == 2
    (owner.state / "paused").chmod(0o700)
    assert decided(owner, "claude") == 0
    for file in (owner.state / "paused").iterdir():
        os.link(file, owner.home / "second name")
    assert decided(owner, "claude") == 2

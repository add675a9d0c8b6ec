"""Tests that a command in the sandbox cannot read, write, remove or lock the user's audit log, nor get access to it by a grant."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import run_attack

from corral import Containment, PolicyError, Sandbox
from corral.audit.audit_log import Log, directory
from corral.audit.query import verify
from corral.model.call import Call, Verdict

ATTEMPTS = {
    "read it": "return open(facts['log']).read()",
    "read it by a link": """
os.path.lexists('link') or os.symlink(facts['log'], 'link')
return open('link').read()
""",
    "read it through another process": """
for pid in os.listdir('/proc'):
    try:
        if pid.isdigit() and pid != str(os.getpid()):
            return open(f'/proc/{pid}/root{facts["log"]}').read()
    except OSError:
        pass
return False
""",
    "list it": "return os.listdir(os.path.dirname(facts['log']))",
    "append a line": "open(facts['log'], 'a').write('{}\\n'); return True",
    "change it in place": "f = open(facts['log'], 'r+b'); f.write(b'['); f.close(); return True",
    "cut it": "os.truncate(facts['log'], 10); return True",
    "remove it": "os.unlink(facts['log']); return True",
    "rename it": "os.rename(facts['log'], facts['log'] + '.old'); return True",
    "rename its directory": "d = os.path.dirname(facts['log']); os.rename(d, d + '.old'); return True",
    "lock it": "f = os.open(facts['head'], os.O_RDWR); os.lockf(f, os.F_LOCK, 0); return True",
    "link it into the project": "os.link(facts['log'], 'hard'); return True",
    "open it to others": "os.chmod(facts['log'], 0o666); return True",
}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with one line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Log().note({"decision": "allow"})
    return Path(directory(os.environ), "log.jsonl")


@pytest.mark.parametrize("body", ATTEMPTS.values(), ids=ATTEMPTS)
def test_command_cannot_access_the_log(body: str, log: Path, held: Sandbox, loose: Sandbox) -> None:
    facts = {"log": str(log), "head": str(log.with_name("head"))}
    before = {file.name: (file.read_bytes(), file.stat().st_mode) for file in log.parent.iterdir()}
    contained = run_attack(held, body, **facts)
    assert contained.stdout_text.startswith("held:"), contained.stderr_text
    after = {file.name: (file.read_bytes(), file.stat().st_mode) for file in log.parent.iterdir()}
    assert after == before
    assert verify(str(log.parent)).problems == ()
    bare = run_attack(loose, body, **facts)
    assert bare.stdout_text == "succeeded\n", bare.stdout_text + bare.stderr_text


@pytest.mark.parametrize("name", ["read", "write"])
@pytest.mark.parametrize("below", ["", "/audit", "/audit/log.jsonl", "/.."])
def test_no_grant_exposes_the_log(log: Path, open_sandbox: Callable[..., Sandbox], name: str, below: str) -> None:
    path = os.path.normpath(f"{log.parent.parent}{below}")
    with pytest.raises(PolicyError, match=rf"containment\.{name} names"):
        open_sandbox(containment=Containment(**{name: (path,)})).run(["true"])


def test_output_of_a_command_is_not_logged(log: Path, held: Sandbox) -> None:
    held.on_result = Log(held.config).result
    held.run(["sh", "-c", "echo out$((40+2)); echo err$((40+2)) >&2"])
    text = log.read_text()
    assert "out42" not in text
    assert "err42" not in text
    assert json.loads(text.splitlines()[-1])["result"]["stdout_bytes"] == 6


def test_log_is_written_while_commands_run(log: Path, held: Sandbox) -> None:
    held.on_result = Log(held.config).result
    with held.start(["sleep", "60"]):
        Log(held.config, event="check").verdict(Call(("ls",)), Verdict())
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["run", "check", "run"]

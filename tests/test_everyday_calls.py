"""The guard and the kernel agree on an ordinary day: a call that the guard allows ends inside the sandbox as it ends outside."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from everyday_world import CALLS, EverydayWorld, calls, state
from granting import HookReply
from hosting import Owner

from corral import Decision, Sandbox, SandboxConfig

SECONDS = 120
ALLOWED = list(calls("allow"))
ASKED = list(calls("ask"))
# The ordinary run takes one call of eight; `make test-real` takes them all.
SAMPLED = [
    pytest.param(text, id=text[:60], marks=() if number % 8 == 0 else pytest.mark.real)
    for number, text in enumerate(ALLOWED)
]
REWRITTEN = [(shell, text) for text in ALLOWED for shell in ("bash", "zsh")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, _full: None) -> EverydayWorld:
    return EverydayWorld(tmp_path_factory.mktemp("everyday"))


@pytest.fixture
def above() -> Iterator[Path]:
    """An empty directory. Not below /tmp, because every sandbox has its own /tmp."""
    with tempfile.TemporaryDirectory(prefix="corral-everyday-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(os.path.realpath(folder))


@pytest.fixture
def home(world: EverydayWorld, above: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the project, for this test alone."""
    world.copy(above / "home")
    for name, value in world.environ(above / "home").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return above / "home"


@pytest.fixture
def box(home: Path) -> Iterator[Sandbox]:
    with Sandbox(SandboxConfig(str(home / "project"), profile="workspace", posture="balanced")) as made:
        yield made


def bare(world: EverydayWorld, text: str, home: Path) -> "tuple[subprocess.CompletedProcess[bytes], dict[str, object]]":
    """Run a call without corral in a copy of the project; return how it ended, and what it left."""
    project = world.copy(home)
    environ = world.environ(home)
    done = subprocess.run(["bash", "-c", text], cwd=project, env=environ, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=SECONDS)  # fmt: skip
    return done, state(project)


@pytest.mark.parametrize("text", SAMPLED)
def test_allowed_call_ends_inside_as_outside(
    text: str, world: EverydayWorld, box: Sandbox, home: Path, above: Path
) -> None:
    verdict = box.check(text, shell=True)
    assert (verdict.decision, [found.reason for found in verdict.findings]) == (Decision.ALLOW, [])
    done, left = bare(world, text, above / "bare" / "home")
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-500:])
    result = box.run(text, shell=True, timeout_seconds=SECONDS)
    assert (result.exit_code, result.enforcement) == (0, "full"), (result.stdout_text[-500:], result.stderr_text[-500:], result.violations)  # fmt: skip
    assert state(home / "project") == left


@pytest.mark.parametrize("text", ASKED)
def test_call_at_the_edge_of_the_project_is_asked_about(text: str, box: Sandbox) -> None:
    verdict = box.check(text, shell=True)
    assert verdict.decision is Decision.ASK, verdict.findings


@pytest.mark.real
@pytest.mark.parametrize(("shell", "text"), REWRITTEN, ids=[f"{shell}: {text[:60]}" for shell, text in REWRITTEN])
def test_call_that_a_hook_rewrote_ends_as_outside(
    shell: str, text: str, world: EverydayWorld, home: Path, above: Path
) -> None:
    owner = Owner(above / "host")
    owner.home, owner.root = home, home / "project"
    owner.environ |= world.environ(home) | {"CLAUDE_PROJECT_DIR": str(owner.root)}
    envelope = {
        "hook_event_name": "PreToolUse",
        "cwd": str(owner.root),
        "tool_name": "Bash",
        "tool_input": {"command": text},
    }
    answer = HookReply(owner.hook("claude", json.dumps(envelope).encode()))
    assert answer.decision == "allow", answer
    done = subprocess.run([shell, "-c", answer.command], cwd=owner.root, env=owner.environ, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=SECONDS)  # fmt: skip
    expected, left = bare(world, text, above / "bare" / "home")
    assert (done.returncode, expected.returncode) == (0, 0), (done.stdout[-500:], done.stderr[-500:])
    assert state(owner.root) == left


def test_table_has_the_calls_of_a_day() -> None:
    counts = {group: len(found["allow"]) + len(found["ask"]) for group, found in CALLS.items()}
    assert sum(counts.values()) >= 150
    least = {"git": 50, "packages": 40, "languages": 40, "others": 20}
    assert [group for group, count in counts.items() if count < least[group]] == []

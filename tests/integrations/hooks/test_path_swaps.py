"""A command in the background swaps parts of a path with a link. The hook allows no path that the host would open elsewhere."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from attempt import program
from hosting import Owner, payload
from observe import eventually

from corral import Sandbox
from corral.containment.filesystem import running_sandboxes
from corral.containment.filesystem.protected import Protected
from corral.integrations.hooks import path_swaps
from corral.integrations.hooks.file_tools import judge_files
from corral.integrations.hooks.protocol import READ, WRITE, ToolCall
from corral.policy.loader import load
from golden import check

DEADLINE_SECONDS = 30
TRIES = 200
EXCHANGE = """
import time
while True:
    call(316 if X86 else 276, -100, facts['one'].encode(), -100, facts['other'].encode(), 2)
    open('ready', 'w').close()
    time.sleep(float(facts['pause']))
"""
# A link comes and goes in the place of a file that does not exist otherwise.
APPEAR = """
import time
while True:
    os.rename(facts['other'], facts['one'])
    time.sleep(float(facts['pause']))
    os.rename(facts['one'], facts['other'])
    open('ready', 'w').close()
    time.sleep(float(facts['pause']))
"""
SWAPS = {
    "a directory": ("d", "l", "d/f", EXCHANGE),
    "a directory above": ("d", "l", "d/deep/f", EXCHANGE),
    "a directory below": ("d/deep", "ll", "d/deep/f", EXCHANGE),
    "the file": ("d/f", "lf", "d/f", EXCHANGE),
    "the file at the top": ("f", "lf", "f", EXCHANGE),
    "a link": ("link", "l", "link/f", EXCHANGE),
    "a new file": ("d/new", "lf", "d/new", APPEAR),
}


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Owner:
    made = Owner(tmp_path)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    # The hook does not have this variable, and must find the record of the sandbox, which this process makes.
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(path_swaps, "WAIT_SECONDS", 0.0)
    (made.home / ".cache" / "corral" / "scratch").mkdir(parents=True, mode=0o700)
    (made.root / "d" / "deep").mkdir(parents=True)
    for file in ("d/f", "d/deep/f", "f"):
        (made.root / file).write_text("inside")
    outside = made.home / "outside"
    (outside / "deep").mkdir(parents=True)
    for file in ("f", "deep/f"):
        (outside / file).write_text("secret")
    (made.root / "l").symlink_to(outside)
    (made.root / "ll").symlink_to(outside)
    (made.root / "lf").symlink_to(outside / "f")
    (made.root / "link").symlink_to("d")
    return made


@pytest.fixture
def running(owner: Owner, open_sandbox: Callable[..., Sandbox]) -> Callable[..., AbstractContextManager[object]]:
    """A function that runs code in a sandbox of the project, as a command in the background."""

    def start(code: str, **facts: str) -> AbstractContextManager[object]:
        (owner.root / "run.py").write_text(program(code))
        box = open_sandbox(project_root=str(owner.root))
        return box.start([sys._base_executable, "-S", "run.py", json.dumps(facts)], timeout_seconds=120)

    return start


Running = Callable[..., AbstractContextManager[object]]


def is_allowed(owner: Owner, kind: str, path: str) -> bool:
    config = load(str(owner.root), owner.environ).config
    call = ToolCall(kind, str(owner.root), str(owner.root), paths=(path,))
    return judge_files(call, config, owner.environ).decision == "allow"


def reaches_outside(owner: Owner, kind: str, path: str) -> bool:
    """Let a host open the path if the hook allows it. Say whether it read or wrote a file outside."""
    if not is_allowed(owner, kind, path):
        return False
    try:
        if kind == READ:
            return (owner.root / path).read_text() == "secret"
        (owner.root / path).write_text("written by the host")
    except OSError:
        return False
    return any(file.read_text() != "secret" for file in (owner.home / "outside").rglob("*") if file.is_file())


def until(attack: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not attack():
        assert time.monotonic() < end, "the attack never worked without the check"


@pytest.mark.parametrize("kind", [READ, WRITE])
@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_swapped_path_is_refused(
    owner: Owner, running: Running, monkeypatch: pytest.MonkeyPatch, kind: str, swap: tuple[str, ...]
) -> None:
    one, other, path, code = swap
    with running(code, one=one, other=other, pause="0.001"):
        eventually((owner.root / "ready").exists)
        assert [number for number in range(TRIES) if reaches_outside(owner, kind, path)] == []
        monkeypatch.setattr(running_sandboxes, "is_sandbox_running", lambda tops, environ: False)
        until(lambda: reaches_outside(owner, kind, path))


def test_slow_swaps_are_refused_until_the_path_is_quiet(owner: Owner, running: Running) -> None:
    with running(EXCHANGE, one="d", other="l", pause="0.2"):
        eventually((owner.root / "ready").exists)
        assert not any(is_allowed(owner, WRITE, "d/f") for _ in range(TRIES))


BUSY = """
import time
open('ready', 'w').close()
while True:
    open('temporary', 'w').close()
    os.unlink('temporary')
    time.sleep(0.001)
"""


def test_edits_go_on_while_a_server_runs(owner: Owner, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_swaps, "QUIET_NS", 200_000_000)
    monkeypatch.setattr(path_swaps, "WAIT_SECONDS", 3.0)
    with running(BUSY):
        eventually((owner.root / "ready").exists)
        for _ in range(3):
            assert is_allowed(owner, WRITE, "d/f")
            # Editors write a new file and rename it.
            (owner.root / "d" / "f.new").write_text("x")
            (owner.root / "d" / "f.new").rename(owner.root / "d" / "f")
            assert is_allowed(owner, READ, "d/f")
        assert is_allowed(owner, WRITE, "d/new/deep/file")
        assert is_allowed(owner, READ, "run.py")


def is_running(owner: Owner, directory: Path | None = None) -> bool:
    return running_sandboxes.is_sandbox_running([str(directory or owner.root)], owner.environ)


def test_nothing_is_checked_when_no_sandbox_runs(
    owner: Owner, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_running(owner)
    (owner.root / "d" / "f").write_text("x")
    assert is_allowed(owner, WRITE, "d/f")
    with running("import time; time.sleep(600)"):
        related = (owner.root, owner.root / "d" / "deep", owner.home)
        assert [is_running(owner, each) for each in related] == [True] * 3
        assert not is_running(owner, owner.home / "outside")
        next(owner.home.glob(".cache/corral/scratch/*/open-*")).write_bytes(b"damaged")
        assert is_running(owner, owner.home / "outside")
    monkeypatch.setattr(running_sandboxes, "all_scratch_paths", lambda environ: None)
    assert is_running(owner)  # it is not known: no sandbox has a place for its record


def test_records_have_the_directories_at_the_expected_place() -> None:
    assert Protected._fields[running_sandboxes.DIRECTORIES] == "directories"


def test_wording_of_a_swapped_path(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_sandboxes, "all_scratch_paths", lambda environ: None)
    config = load(str(owner.root), owner.environ).config
    (owner.root / "fresh").mkdir()
    call = ToolCall(WRITE, str(owner.root), str(owner.root), paths=("fresh/file",))
    answer = judge_files(call, config, owner.environ)
    check("refusals", "hook: a path that changes while a command runs", owner.displaced(answer.reason))


def test_rewritten_background_command_counts_as_running(owner: Owner) -> None:
    (owner.root / "wait.sh").write_text("touch ready; sleep 600")
    given = {"command": "sh wait.sh", "run_in_background": True}
    said = owner.hook("claude", payload("claude", owner, **given))
    command = json.loads(said.stdout)["hookSpecificOutput"]["updatedInput"]["command"]
    with subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=owner.root, env=owner.environ) as host:
        eventually((owner.root / "ready").exists)
        assert is_running(owner)
        host.kill()
    eventually(lambda: not is_running(owner))

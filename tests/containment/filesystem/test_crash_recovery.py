"""If corral is killed, the next sandbox of the project quarantines the files that the command planted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from corral import Containment, Sandbox, SandboxConfig

PLANT = """
import pathlib, time
pathlib.Path("new").mkdir()
for name in (".envrc", "new/.envrc"):
    pathlib.Path(name).write_text("planted")
pathlib.Path("planted").touch()
time.sleep(60)
"""
PLANTED = (".envrc", "new/.envrc")
DEADLINE_SECONDS = 30


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (project / "plant.py").write_text(PLANT)
    (project / ".bashrc").write_text("the user's")


@pytest.fixture
def planting(project: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A `corral run` whose command has planted files and is still running."""
    words = [sys.executable, "-m", "corral", "run", "--root", str(project), "--no-tty", "--", "python3", "plant.py"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        give_up_at = monotonic() + DEADLINE_SECONDS
        while not (project / "planted").exists():
            assert process.poll() is None
            assert monotonic() < give_up_at
            sleep(0.01)
        yield process
        if process.poll() is None:
            process.kill()


def planted_files(project: Path) -> list[str]:
    return [name for name in PLANTED if (project / name).exists()]


def found_by_next_sandbox(project: Path) -> list[str]:
    config = SandboxConfig(project, containment=Containment(scratch="project"))
    with Sandbox(config) as box:
        first, second = box.run(["true"]), box.run(["true"])
    assert first.enforcement == "full", first.missing_layers
    assert second.violations == ()
    return sorted(os.path.relpath(v.target, project) for v in first.violations if v.kind == "planted")


def markers(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").glob("corral/scratch/*/open-*"))


def test_next_sandbox_quarantines_files_of_a_killed_one(
    planting: "subprocess.Popen[bytes]", project: Path, tmp_path: Path
) -> None:
    os.killpg(planting.pid, signal.SIGKILL)
    planting.wait(DEADLINE_SECONDS)
    assert planted_files(project) == [*PLANTED]
    assert found_by_next_sandbox(project) == sorted(PLANTED)
    assert planted_files(project) == []
    assert (project / ".bashrc").read_text() == "the user's"
    assert markers(tmp_path) == []
    assert found_by_next_sandbox(project) == []


def test_project_file_cannot_disable_the_marker(project: Path, tmp_path: Path) -> None:
    # The first sandbox of a user: no directory for markers exists yet.
    config = SandboxConfig(project, containment=Containment(scratch="sandbox"))
    with Sandbox(config) as box:
        box.run(["true"])
        assert len(markers(tmp_path)) == 1
    assert list((tmp_path / "cache" / "corral" / "scratch").iterdir()) == []


def test_user_is_not_taken_for_a_command_in_the_first_sandbox(project: Path) -> None:
    with Sandbox(SandboxConfig(project, containment=Containment(scratch="sandbox"))) as box:
        box.run(["true"])
        (project / ".envrc").write_text("the user's")
        subprocess.run(["git", "init", "-q", project / "own"], check=True)
        inode = (project / "own" / ".git").stat().st_ino
        assert box.run(["true"]).violations == ()
    assert planted_files(project) == [".envrc"]
    assert (project / "own" / ".git").stat().st_ino == inode


def test_marker_of_running_sandbox_is_left_alone(
    planting: "subprocess.Popen[bytes]", project: Path, tmp_path: Path
) -> None:
    assert found_by_next_sandbox(project) == []
    assert len(markers(tmp_path)) == 1
    planting.terminate()
    planting.wait(DEADLINE_SECONDS)
    assert planted_files(project) == []
    assert markers(tmp_path) == []


def test_file_the_user_adds_between_sandboxes_stays(project: Path, tmp_path: Path) -> None:
    assert found_by_next_sandbox(project) == []
    assert markers(tmp_path) == []
    (project / ".envrc").write_text("the user's")
    assert found_by_next_sandbox(project) == []
    assert planted_files(project) == [".envrc"]


def test_unclosed_sandbox_leaves_no_marker(project: Path, tmp_path: Path) -> None:
    box = Sandbox(SandboxConfig(project, containment=Containment(scratch="project")))
    box.run(["true"])
    assert len(markers(tmp_path)) == 1
    del box
    assert markers(tmp_path) == []


AGENT = """
import sys
from corral import Containment, Sandbox, SandboxConfig
project, settings = sys.argv[1:]
config = SandboxConfig(project, profile="workspace", containment=Containment(scratch="project", settings=(settings,)))
Sandbox(config).run(["sh", "plant.sh"])
"""


def test_planted_agent_settings_are_quarantined_after_a_kill(project: Path, tmp_path: Path) -> None:
    settings = tmp_path / "home" / ".claude"
    settings.mkdir()
    (project / "plant.sh").write_text(f"echo planted >{settings}/settings.json; touch planted; sleep 60\n")
    with subprocess.Popen([sys.executable, "-c", AGENT, project, settings], start_new_session=True) as process:
        give_up_at = monotonic() + DEADLINE_SECONDS
        while not (project / "planted").exists():
            assert process.poll() is None
            assert monotonic() < give_up_at
            sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert (settings / "settings.json").exists()
    assert found_by_next_sandbox(project) == [os.path.relpath(settings / "settings.json", project)]
    assert not (settings / "settings.json").exists()

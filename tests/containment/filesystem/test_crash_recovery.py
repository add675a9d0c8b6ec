"""What a command planted is moved away even if corral was killed before it could look: by the next sandbox of the project."""

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
def _owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (project / "plant.py").write_text(PLANT)
    (project / ".bashrc").write_text("the owner's")


@pytest.fixture
def planting(project: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A `corral run` whose command has planted something and goes on."""
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


def there(project: Path) -> list[str]:
    return [name for name in PLANTED if (project / name).exists()]


def next_result(project: Path) -> list[str]:
    config = SandboxConfig(project, containment=Containment(scratch="project"))
    with Sandbox(config) as box:
        first, second = box.run(["true"]), box.run(["true"])
    assert first.enforcement == "full", first.missing_layers
    assert second.violations == ()
    return sorted(os.path.relpath(v.target, project) for v in first.violations if v.kind == "planted")


def marks(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").glob("corral/scratch/*/open-*"))


def test_the_next_sandbox_moves_away_what_one_that_was_killed_left(
    planting: "subprocess.Popen[bytes]", project: Path, tmp_path: Path
) -> None:
    os.killpg(planting.pid, signal.SIGKILL)
    planting.wait(DEADLINE_SECONDS)
    assert there(project) == [*PLANTED]
    assert next_result(project) == sorted(PLANTED)
    assert there(project) == []
    assert (project / ".bashrc").read_text() == "the owner's"
    assert marks(tmp_path) == []
    assert next_result(project) == []


def test_a_project_is_not_rid_of_that_by_its_own_file(project: Path, tmp_path: Path) -> None:
    (tmp_path / "cache" / "corral" / "scratch").mkdir(parents=True, mode=0o700)
    config = SandboxConfig(project, containment=Containment(scratch="sandbox"))
    with Sandbox(config) as box:
        box.run(["true"])
        assert len(marks(tmp_path)) == 1
    assert list((tmp_path / "cache" / "corral" / "scratch").iterdir()) == []


def test_one_that_lives_is_left_to_look_itself(
    planting: "subprocess.Popen[bytes]", project: Path, tmp_path: Path
) -> None:
    assert next_result(project) == []
    assert len(marks(tmp_path)) == 1
    planting.terminate()
    planting.wait(DEADLINE_SECONDS)
    assert there(project) == []
    assert marks(tmp_path) == []


def test_what_the_owner_puts_there_between_two_sandboxes_stays(project: Path, tmp_path: Path) -> None:
    assert next_result(project) == []
    assert marks(tmp_path) == []
    (project / ".envrc").write_text("the owner's")
    assert next_result(project) == []
    assert there(project) == [".envrc"]


def test_a_sandbox_that_nobody_closed_leaves_no_mark(project: Path, tmp_path: Path) -> None:
    box = Sandbox(SandboxConfig(project, containment=Containment(scratch="project")))
    box.run(["true"])
    assert len(marks(tmp_path)) == 1
    del box
    assert marks(tmp_path) == []


AGENT = """
import sys
from corral import Containment, Sandbox, SandboxConfig
project, settings = sys.argv[1:]
config = SandboxConfig(project, profile="workspace", containment=Containment(scratch="project", settings=(settings,)))
Sandbox(config).run(["sh", "plant.sh"])
"""


def test_what_an_agent_planted_in_its_settings_is_moved_away_too(project: Path, tmp_path: Path) -> None:
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
    assert next_result(project) == [os.path.relpath(settings / "settings.json", project)]
    assert not (settings / "settings.json").exists()

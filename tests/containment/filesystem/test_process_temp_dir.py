"""Temporary directories end with their process, and others are left alone."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from corral.containment.filesystem.process_temp_dir import ProcessTempDir

KILLED = "import os; from corral.containment.filesystem.process_temp_dir import ProcessTempDir; print(ProcessTempDir('corral-test-').path, flush=True); os.kill(os.getpid(), 9)"


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "room"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_tempdir_is_removed_by_close(room: Path) -> None:
    with ProcessTempDir("corral-test-") as place:
        (Path(place.path) / "x").write_text("x")
    assert list(room.iterdir()) == []


def test_tempdir_of_a_killed_process_is_swept(room: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False).stdout.strip()
    (room / "corral-test-mine").mkdir()
    (room / "other").mkdir()
    assert Path(dead).is_dir()
    with ProcessTempDir("corral-test-") as alive, ProcessTempDir("corral-test-") as second:
        found = sorted(path.name for path in room.iterdir())
        assert found == sorted(["corral-test-mine", "other", Path(alive.path).name, Path(second.path).name])


def test_tempdir_with_unreadable_content_is_removed(room: Path) -> None:
    with ProcessTempDir("corral-test-") as place:
        inner = Path(place.path, "a/b")
        inner.mkdir(parents=True)
        (inner / "c").write_text("x")
        inner.chmod(0)
        inner.parent.chmod(0)
    assert list(room.iterdir()) == []

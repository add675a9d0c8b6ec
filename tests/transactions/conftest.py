"""Fixtures with a project and a transaction over it."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds import World, owner


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A filled project with a transaction without changes."""
    made = World(tmp_path, owner(tmp_path))
    made.fill()
    made.begin()
    return made


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on a tmpfs, where fsync(2) takes no time."""
    folder = tempfile.mkdtemp(prefix="corral-test-", dir="/dev/shm")
    yield Path(folder)
    subprocess.run(["chmod", "-R", "u+rwx", folder], check=True)
    shutil.rmtree(folder)


@pytest.fixture(params=["one disk", "two disks"])
def state(request: pytest.FixtureRequest, memory: Path, tmp_path: Path) -> Path:
    """The user's state directory, on the same file system as `memory` or on another."""
    return (memory if request.param == "one disk" else tmp_path) / "state"

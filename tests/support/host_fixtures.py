"""Fixtures for the tests of installed hooks: a user's home directory, and a project."""

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory."""
    place = tmp_path / "home"
    place.mkdir()
    return place


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A project with nothing but the file that marks it as one."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "pyproject.toml").touch()
    return place

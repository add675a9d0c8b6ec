"""Tests against the frameworks themselves: run by `make test-frameworks`, in an environment of their own."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# mini-swe-agent greets, and makes a directory in the user's own config, when it is imported.
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", tempfile.mkdtemp())


@pytest.fixture(scope="session", autouse=True)
def _owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Policy, log and scratch lie in places of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CACHE", "CONFIG", "STATE"):
            patch.setenv(f"XDG_{kind}_HOME", str(tmp_path_factory.mktemp(kind.lower())))
        yield


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project."""
    root = tmp_path / "project"
    root.mkdir()
    return root

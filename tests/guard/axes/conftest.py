"""Fixtures: a project on disk, and configs for both profiles."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from corral import SandboxConfig

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> str:
    """A project with a few files, and links that lead out of it and to a denied program."""
    root = tmp_path / "proj"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print('hello')\n")
    (root / "script.py").write_text("print('hello')\n")
    (root / "build.js").write_text("console.log(1)\n")
    (root / "notes.txt").write_text("rm -rf /\n")
    (tmp_path / "proj_evil").mkdir()
    (tmp_path / "proj_evil" / "f").write_text("secret\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    os.symlink(tmp_path / "secret.txt", root / "leak")
    os.symlink(tmp_path, root / "up")
    os.symlink("/bin/rm", root / "tidy")
    os.symlink("src", root / "lib")
    return str(root)


@pytest.fixture
def strict(project: str) -> SandboxConfig:
    """The library's default profile over the project."""
    return SandboxConfig(project_root=project)


@pytest.fixture
def workspace(project: str) -> SandboxConfig:
    """The contained profile over the project."""
    return SandboxConfig(project_root=project, profile="workspace")

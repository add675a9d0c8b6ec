"""Tests of the git index parser: entries ignore file times and cover everything else."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, owner

from corral.transactions.git_index import parse_entries
from corral.transactions.undo import undo


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with staged files."""
    git(tmp_path, "init", "-q")
    for name in ("a", "name-of-seven", "deep/er/leaf", "x" * 200):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    git(tmp_path, "add", ".")
    return tmp_path


def git(root: Path, *words: str) -> str:
    words = ("git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e@example.org", *words)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def index(root: Path) -> bytes:
    return (root / ".git" / "index").read_bytes()


def test_entries_ignore_file_times(root: Path) -> None:
    before = index(root)
    for path in root.glob("[a-z]*"):
        os.utime(path, (1, 1))
    git(root, "status")
    assert index(root) != before
    assert parse_entries(index(root)) == parse_entries(before) != b""


@pytest.mark.parametrize(
    "words",
    [
        ("rm", "-q", "--cached", "a"),
        ("update-index", "--chmod=+x", "a"),
        ("update-index", "--assume-unchanged", "a"),
        ("update-index", "--skip-worktree", "a"),
    ],
    ids=["a file less", "another mode", "a flag", "a flag of version 3"],
)
def test_entries_cover_names_modes_and_flags(words: tuple[str, ...], root: Path) -> None:
    before = index(root)
    git(root, *words)
    assert parse_entries(index(root)) not in (b"", parse_entries(before))


def test_entries_cover_contents(root: Path) -> None:
    before = index(root)
    (root / "a").write_text("other")
    git(root, "add", "a")
    assert parse_entries(index(root)) not in (b"", parse_entries(before))


def test_unknown_index_formats_have_no_entries(root: Path) -> None:
    git(root, "update-index", "--index-version", "4")
    assert parse_entries(index(root)) == b""
    git(root, "update-index", "--index-version", "2")
    git(root, "update-index", "--split-index")
    assert parse_entries(index(root)) == b""


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_without_error(data: bytes) -> None:
    parse_entries(data)
    parse_entries(b"DIRC\0\0\0\2\0\0\0\1" + data)


def test_undo_works_after_git_status(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    git(world.root, "init", "-q")
    (world.root / "file").write_text("one\n")
    (world.root / "other").touch()
    git(world.root, "add", ".")
    layer = world.begin()
    (layer / "file").write_text("two\n")
    git(layer, "add", ".")
    assert world.apply().ok
    applied = index(world.root)
    os.utime(world.root / "other", (1, 1))
    git(world.root, "status")
    assert index(world.root) != applied
    assert undo(str(world.root), world.environ).ok
    assert git(world.root, "diff", "--name-only") == ""

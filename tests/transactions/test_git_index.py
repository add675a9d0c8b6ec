"""What an index of git says: other times of the files are nothing new, all else is."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, owner

from corral.transactions.apply import undo
from corral.transactions.git_index import parsed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with files of several kinds, all of them staged."""
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


def test_other_times_are_nothing_new(root: Path) -> None:
    before = index(root)
    for path in root.glob("[a-z]*"):
        os.utime(path, (1, 1))
    git(root, "status")
    assert index(root) != before
    assert parsed(index(root)) == parsed(before) != b""


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
def test_all_else_is(words: tuple[str, ...], root: Path) -> None:
    before = index(root)
    git(root, *words)
    assert parsed(index(root)) not in (b"", parsed(before))


def test_another_content_is(root: Path) -> None:
    before = index(root)
    (root / "a").write_text("other")
    git(root, "add", "a")
    assert parsed(index(root)) not in (b"", parsed(before))


def test_what_is_not_known_says_nothing(root: Path) -> None:
    git(root, "update-index", "--index-version", "4")
    assert parsed(index(root)) == b""
    git(root, "update-index", "--index-version", "2")
    git(root, "update-index", "--split-index")
    assert parsed(index(root)) == b""


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(data: bytes) -> None:
    parsed(data)
    parsed(b"DIRC\0\0\0\2\0\0\0\1" + data)


def test_what_git_looked_at_since_is_undone_all_the_same(tmp_path: Path) -> None:
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

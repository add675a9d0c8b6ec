"""What is mounted over itself is found to be replaced or removed as soon as it is, and as long as it is."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.containment.filesystem.directory_tracker import NO_CTIME, SETTLED_NS, comparable_ctime
from corral.containment.filesystem.replaced_mounts import MountedPaths, file_identity
from corral.containment.kernel.syscalls import handle

LOOKS = 3  # after which a directory that does not change is no longer looked into


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    git = tmp_path / ".git"
    (git / "hooks").mkdir(parents=True)
    (git / "config").write_text("[core]")
    (tmp_path / ".git-other").write_text("")
    return [git / "hooks", git / "config", tmp_path / ".git-other", git]


def settle() -> None:
    time.sleep(2 * SETTLED_NS / 1e9)


def replace(path: Path) -> None:
    path.with_name("new").write_text("another")
    path.with_name("new").rename(path)


def remove(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


@pytest.mark.parametrize("change", [replace, remove, link])
@pytest.mark.parametrize("settles", [False, True])
def test_what_was_changed_is_told_until_it_is_looked_at_anew(
    paths: list[Path], change: Callable[[Path], None], settles: bool
) -> None:
    kept = MountedPaths(str(paths[-1].parent), map(str, paths))
    for _ in range(LOOKS):
        assert kept.replaced() == ""
        if settles:
            settle()
    config = paths[1]
    change(config)
    for _ in range(LOOKS):
        assert kept.replaced() == str(config)
        if settles:
            settle()
    again = MountedPaths(str(paths[-1].parent), map(str, paths))
    assert again.replaced() == ""


def test_a_directory_that_is_another_is_told(paths: list[Path]) -> None:
    kept = MountedPaths(str(paths[-1].parent), map(str, paths))
    for _ in range(LOOKS):
        assert kept.replaced() == ""
        settle()
    git = paths[3]
    git.rename(git.with_name("away"))
    assert kept.replaced() == str(git)
    git.mkdir()
    assert kept.replaced() == str(git)


def test_in_a_directory_that_does_not_change_nothing_is_looked_at(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MountedPaths(str(paths[-1].parent), map(str, paths))
    for _ in range(LOOKS):
        settle()
        kept.replaced()
    asked: list[str] = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: asked.append(str(path)) or lstat(path))
    assert kept.replaced() == ""
    assert asked == [str(paths[3].parent), str(paths[3])]
    (paths[3] / "index.lock").touch()
    asked.clear()
    assert kept.replaced() == ""
    assert {str(path) for path in (*paths, paths[3].parent)} - set(asked) == {str(paths[2])}


def again(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
        path.mkdir()
    else:
        path.unlink()
        path.touch()


@pytest.mark.parametrize("number", [0, 1], ids=["directory", "file"])
@pytest.mark.parametrize("settles", [False, True])
def test_one_that_was_made_anew_with_the_same_number_is_another(paths: list[Path], number: int, settles: bool) -> None:
    path = paths[number]
    if not handle(str(path)):
        pytest.skip("this file system knows things by their numbers alone")
    reused = 0
    for _ in range(20):
        kept = MountedPaths(str(paths[-1].parent), map(str, paths))
        before = file_identity(str(path))
        for _ in range(LOOKS if settles else 1):
            assert kept.replaced() == ""
            if settles:
                settle()
        again(path)
        reused += file_identity(str(path)) == before
        assert kept.replaced() == str(path)
        if reused or settles:
            break
    # On most file systems the number comes again; where it does not, nothing has to be told apart.


def test_a_time_in_whole_seconds_is_young_for_longer() -> None:
    second = 1_000_000_000
    now = time.time_ns()
    assert comparable_ctime(now // second * second - second) == NO_CTIME
    assert comparable_ctime(now // second * second - 3 * second) != NO_CTIME
    assert comparable_ctime(now - SETTLED_NS // 2 | 1) == NO_CTIME
    assert comparable_ctime(now - 2 * SETTLED_NS | 1) != NO_CTIME


def test_what_was_not_there_is_not_kept(tmp_path: Path) -> None:
    assert MountedPaths(str(tmp_path), [str(tmp_path / "nothing")]).replaced() == ""


def test_a_project_that_cannot_be_looked_at_is_told(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(paths[-1].parent)
    kept = MountedPaths(root, map(str, paths))

    def shut(_: str) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "lstat", shut)
    assert kept.replaced() == root


def relink(path: Path) -> None:
    other = path.with_name("other")
    other.hardlink_to(path)
    path.unlink()
    other.rename(path)


def restore(path: Path) -> None:
    """Put a snapshot, in which each file is the same, in the place of the directory."""
    folder, old = path.parent, path.parent.with_name("old")
    folder.rename(old)
    folder.mkdir()
    path.hardlink_to(old / path.name)


@pytest.mark.parametrize("change", [relink, restore])
@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("is_linked", [False, True])
def test_the_same_file_by_another_link_is_another(
    tmp_path: Path, change: Callable[[Path], None], settles: bool, is_linked: bool
) -> None:
    path = tmp_path / "a" / "settings.json"
    path.parent.mkdir()
    path.write_text("{}")
    if is_linked:
        (tmp_path / "snapshot").hardlink_to(path)
        settle()
    kept = MountedPaths(str(tmp_path), [str(path)])
    for _ in range(LOOKS):
        assert kept.replaced() == ""
        if settles:
            settle()
    before = file_identity(str(path))
    change(path)
    assert file_identity(str(path)) == before
    assert kept.replaced() != ""


def test_the_project_is_asked_first(tmp_path: Path) -> None:
    root, granted = tmp_path / "project", tmp_path / "another" / "config"
    root.mkdir()
    granted.parent.mkdir()
    granted.write_text("")
    kept = MountedPaths(str(root), [str(granted)])
    root.rename(tmp_path / "moved")
    granted.unlink()
    assert kept.replaced() == str(root)

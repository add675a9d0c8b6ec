"""A mounted path that is replaced or removed on the host is reported at once, and as long as it is so."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corral._lib.nofollow import file_identity
from corral.containment.filesystem.directory_tracker import NO_CTIME, SETTLED_NS, comparable_ctime
from corral.containment.filesystem.replaced_mounts import MountedPaths
from corral.containment.kernel.syscalls import handle

SCANS = 3  # after these, entries of an unchanged directory are no longer examined


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
def test_replaced_file_is_reported_until_a_new_snapshot(
    paths: list[Path], change: Callable[[Path], None], settles: bool
) -> None:
    mounted = MountedPaths(str(paths[-1].parent), map(str, paths))
    for _ in range(SCANS):
        assert mounted.first_replaced() == ""
        if settles:
            settle()
    config = paths[1]
    change(config)
    for _ in range(SCANS):
        assert mounted.first_replaced() == str(config)
        if settles:
            settle()
    again = MountedPaths(str(paths[-1].parent), map(str, paths))
    assert again.first_replaced() == ""


def test_replaced_directory_is_reported(paths: list[Path]) -> None:
    mounted = MountedPaths(str(paths[-1].parent), map(str, paths))
    for _ in range(SCANS):
        assert mounted.first_replaced() == ""
        settle()
    git = paths[3]
    git.rename(git.with_name("away"))
    assert mounted.first_replaced() == str(git)
    git.mkdir()
    assert mounted.first_replaced() == str(git)


def test_entries_of_unchanged_directory_are_not_examined(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = MountedPaths(str(paths[-1].parent), map(str, paths))
    for _ in range(SCANS):
        settle()
        mounted.first_replaced()
    asked: list[str] = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: asked.append(str(path)) or lstat(path))
    assert mounted.first_replaced() == ""
    assert asked == [str(paths[3].parent), str(paths[3])]
    (paths[3] / "index.lock").touch()
    asked.clear()
    assert mounted.first_replaced() == ""
    assert {str(path) for path in (*paths, paths[3].parent)} - set(asked) == {str(paths[2])}


def recreate(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
        path.mkdir()
    else:
        path.unlink()
        path.touch()


@pytest.mark.parametrize("number", [0, 1], ids=["directory", "file"])
@pytest.mark.parametrize("settles", [False, True])
def test_recreated_path_with_reused_inode_is_reported(paths: list[Path], number: int, settles: bool) -> None:
    path = paths[number]
    if not handle(str(path)):
        pytest.skip("this file system has no file handles")
    reused = 0
    for _ in range(20):
        mounted = MountedPaths(str(paths[-1].parent), map(str, paths))
        before = file_identity(str(path))
        for _ in range(SCANS if settles else 1):
            assert mounted.first_replaced() == ""
            if settles:
                settle()
        recreate(path)
        reused += file_identity(str(path)) == before
        assert mounted.first_replaced() == str(path)
        if reused or settles:
            break
    # Most file systems reuse the inode number. Where it is not reused, there is nothing to tell apart.


def test_whole_second_ctime_settles_later() -> None:
    second = 1_000_000_000
    now = time.time_ns()
    assert comparable_ctime(now // second * second - second) == NO_CTIME
    assert comparable_ctime(now // second * second - 3 * second) != NO_CTIME
    assert comparable_ctime(now - SETTLED_NS // 2 | 1) == NO_CTIME
    assert comparable_ctime(now - 2 * SETTLED_NS | 1) != NO_CTIME


def test_missing_path_is_not_tracked(tmp_path: Path) -> None:
    assert MountedPaths(str(tmp_path), [str(tmp_path / "nothing")]).first_replaced() == ""


def test_unreadable_project_is_reported(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(paths[-1].parent)
    mounted = MountedPaths(root, map(str, paths))

    def shut(_: str) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "lstat", shut)
    assert mounted.first_replaced() == root


def relink(path: Path) -> None:
    other = path.with_name("other")
    other.hardlink_to(path)
    path.unlink()
    other.rename(path)


def restore(path: Path) -> None:
    """Replace the directory by a copy that has hard links to the same files."""
    folder, old = path.parent, path.parent.with_name("old")
    folder.rename(old)
    folder.mkdir()
    path.hardlink_to(old / path.name)


@pytest.mark.parametrize("change", [relink, restore])
@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("is_linked", [False, True])
def test_file_restored_by_hard_link_is_reported(
    tmp_path: Path, change: Callable[[Path], None], settles: bool, is_linked: bool
) -> None:
    path = tmp_path / "a" / "settings.json"
    path.parent.mkdir()
    path.write_text("{}")
    if is_linked:
        (tmp_path / "snapshot").hardlink_to(path)
        settle()
    mounted = MountedPaths(str(tmp_path), [str(path)])
    for _ in range(SCANS):
        assert mounted.first_replaced() == ""
        if settles:
            settle()
    before = file_identity(str(path))
    change(path)
    assert file_identity(str(path)) == before
    assert mounted.first_replaced() != ""


def test_replaced_project_is_reported_first(tmp_path: Path) -> None:
    root, granted = tmp_path / "project", tmp_path / "another" / "config"
    root.mkdir()
    granted.parent.mkdir()
    granted.write_text("")
    mounted = MountedPaths(str(root), [str(granted)])
    root.rename(tmp_path / "moved")
    granted.unlink()
    assert mounted.first_replaced() == str(root)

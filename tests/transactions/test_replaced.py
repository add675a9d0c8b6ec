"""Tests of replaced directories: a transaction changes only the directories in which it began."""

import os
import shutil
from pathlib import Path

import pytest
from worlds import World, owner, tree

from corral.model.errors import TransactionError
from corral.transactions import undo_store
from corral.transactions.undo import history, undo
from corral.transactions.workspace import directory_identity


def folders(root: Path, *names: str) -> None:
    """Make directories with a file in each that holds its name."""
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text(f"{name}\n")


def replace_project(world: World) -> None:
    """Replace the project with an empty directory."""
    world.root.rename(world.top / "aside")
    world.root.mkdir()


def test_recreated_directory_has_another_identity(tmp_path: Path) -> None:
    seen = set()
    for _ in range(50):
        (tmp_path / "made").mkdir()
        descriptor = os.open(tmp_path / "made", os.O_RDONLY)
        seen.add(directory_identity(descriptor))
        os.close(descriptor)
        (tmp_path / "made").rmdir()
    # The file system reuses the inode at once.
    assert len(seen) == 50


def test_apply_refuses_another_project_at_the_same_path(world: World) -> None:
    (Path(world.held.layer) / "added").write_text("added\n")
    replace_project(world)
    with pytest.raises(TransactionError, match="is not the directory in which transaction"):
        world.apply()
    assert os.listdir(world.root) == []
    world.root.rmdir()
    (world.top / "aside").rename(world.root)
    assert world.apply().ok


def test_undo_refuses_another_project_at_the_same_path(world: World) -> None:
    world.change()
    before = history(str(world.root), world.environ)
    assert world.apply().ok
    replace_project(world)
    with pytest.raises(TransactionError, match="nothing to undo"):
        undo(str(world.root), world.environ)
    assert (before, history(str(world.root), world.environ)) == ([], [])
    assert os.listdir(world.root) == []
    world.root.rmdir()
    (world.top / "aside").rename(world.root)
    assert undo(str(world.root), world.environ).ok


def test_recovery_waits_for_the_original_project(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(world.held.layer) / "added").write_text("added\n")
    expected = world.expected()

    world.apply_and_be_killed(monkeypatch)
    replace_project(world)
    assert history(str(world.root), world.environ) == []
    assert os.listdir(world.root) == []
    world.root.rmdir()
    (world.top / "aside").rename(world.root)
    assert [entry.state for entry in history(str(world.root), world.environ)] == ["applied"]
    assert tree(world.root) == expected


def test_canary_undo_without_identity_writes_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo_store, "directory_identity", lambda _: "")
    (Path(world.held.layer) / "deleted").unlink()
    assert world.apply().ok
    replace_project(world)
    assert undo(str(world.root), world.environ).ok
    assert os.listdir(world.root) == ["deleted"]


def test_file_in_a_replaced_directory_is_a_conflict(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    folders(world.root, "one", "two")
    layer = world.begin()
    (layer / "one" / "file").write_text("by a call\n")
    (layer / "two" / "file").unlink()
    # The renames change the ctime of neither file.
    (world.root / "one").rename(world.root / "old")
    (world.root / "two").rename(world.root / "one")
    (world.root / "old").rename(world.root / "two")
    found = tree(world.root)
    assert [conflict.path for conflict in world.apply().conflicts] == ["one/file", "two/file"]
    assert tree(world.root) == found


def test_exchanged_directories_are_applied(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    folders(world.root, "one", "two")
    layer = world.begin()
    (layer / "one").rename(layer / "between")
    (layer / "two").rename(layer / "one")
    (layer / "between").rename(layer / "two")
    expected = world.expected()
    assert world.changes() == {"one/file": "changed", "two/file": "changed"}
    assert world.apply().ok
    assert tree(world.root) == expected


def test_directory_moved_over_another_is_applied(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    folders(world.root, "one", "two", "two/inner")
    layer = world.begin()
    shutil.rmtree(layer / "one")
    (layer / "two").rename(layer / "one")
    expected = world.expected()
    assert world.apply().ok
    assert tree(world.root) == expected


def test_chosen_path_without_change_is_an_error(world: World) -> None:
    world.change()
    before = tree(world.root)
    with pytest.raises(TransactionError, match="has not changed 'kept'"):
        world.apply(["kept"])
    with pytest.raises(TransactionError, match="'emptied/old' was deleted"):
        world.apply(["added", "emptied/old/file"])
    assert tree(world.root) == before

"""Tests of waiting transactions: they are found, bounded, and removed whatever commands put there."""

import os
from pathlib import Path

import pytest
from worlds import World

from corral.containment.filesystem import scratch
from corral.model.errors import TransactionError
from corral.transactions import workspace
from corral.transactions.undo import history, undo
from corral.transactions.undo_store import UndoStore


def leave(world: World, size: int = 0, writable: tuple[str, ...] = ()) -> str:
    """Leave a transaction waiting, and return its id."""
    made = workspace.make(str(world.root), writable, world.environ)
    made.begin()
    made.keep({"commands": [], "changes": [], "bytes": size})
    made.release()
    return made.id


def ids(world: World) -> set[str]:
    found = workspace.pending(str(world.root), world.environ)
    for each in found:
        each.release()
    return {each.id for each in found}


def test_number_of_waiting_transactions_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MAX_WAITING", 3)
    for _ in range(3):
        workspace.refuse_more(str(world.root), world.environ)
        leave(world)
    with pytest.raises(TransactionError, match=r"3 transactions with 0 MiB wait .* corral discard --all"):
        workspace.refuse_more(str(world.root), world.environ)
    # Another project has its own bound.
    other = World(world.top / "other", world.environ)
    workspace.refuse_more(str(other.root), world.environ)


def test_bytes_of_waiting_transactions_are_bounded(world: World) -> None:
    leave(world, 1 << 30)
    leave(world, 1 << 30)
    workspace.refuse_more(str(world.root), world.environ)
    leave(world, 1)
    with pytest.raises(TransactionError, match="3 transactions with 2048 MiB wait"):
        workspace.refuse_more(str(world.root), world.environ)


def test_transactions_outside_the_cache_are_found(world: World, tmp_path: Path) -> None:
    environ = {**world.environ, "HOME": str(tmp_path / "home")}
    world.environ = environ
    first = leave(world)
    second = leave(world, writable=(environ["XDG_CACHE_HOME"],))
    assert ids(world) == {first, second}


def test_unreadable_waiting_transaction_is_ignored(world: World) -> None:
    left = workspace.make(str(world.root), (), world.environ)
    (Path(left.path) / "pending").write_bytes(b"no such thing")
    left.release()
    assert ids(world) == set()


def test_names_chosen_by_commands_do_not_block_removal(tmp_path: Path) -> None:
    # `scratch.remove` uses such names for directories that it moves up.
    for number in range(1, 5):
        (tmp_path / "top" / f"{number}.moved" / "in" / "ner").mkdir(parents=True)
        (tmp_path / "top" / f"z{number}" / "in" / "ner").mkdir(parents=True)
    (tmp_path / "top" / "5.moved").touch()
    scratch.remove(str(tmp_path / "top"))
    assert os.listdir(tmp_path) == []


def test_ambiguous_id_undoes_nothing(world: World) -> None:
    for name in ("added", "more"):
        world.begin()
        (Path(world.held.layer) / name).write_text("added\n")
        assert world.apply().ok
    with UndoStore(str(world.root), world.environ) as store:
        for number, entry in enumerate(store.entries()):
            os.rename(f"{store.path}/{entry.id}", f"{store.path}/abc{number}-0000")
    with pytest.raises(TransactionError, match="several transactions have an id that begins with 'abc'"):
        undo(str(world.root), world.environ, "abc")
    assert undo(str(world.root), world.environ, "abc1").ok
    assert sorted(entry.state for entry in history(str(world.root), world.environ)) == ["applied", "undone"]


def test_directory_not_yet_locked_is_not_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    above = os.path.dirname(world.held.path)
    lock = workspace.flock

    def cleaned_meanwhile(descriptor: int, how: int) -> None:
        monkeypatch.setattr(workspace, "flock", lock)
        workspace.clean(above)
        lock(descriptor, how)

    monkeypatch.setattr(workspace, "flock", cleaned_meanwhile)
    made = workspace.make(str(world.root), (), world.environ)
    assert Path(made.path, "upper").is_dir()
    made.remove()
    (Path(above) / ".00").mkdir()
    os.utime(Path(above) / ".00", (1, 1))
    workspace.clean(above)
    assert os.listdir(above) == [world.held.id]

"""Kills apply and undo at every step: the next process finds all changes or none."""

import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from steps import at_step, is_clean, made
from worlds import World, owner, tree

from corral.transactions.undo import history, undo
from corral.transactions.undo_store import recover

pytestmark = pytest.mark.real


def killed(step: int, doing: Any) -> bool:
    """Do something in a process that is killed at a step. Return false if the process ended before."""
    child = os.fork()
    if child == 0:
        try:
            at_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
            doing()
            sys.setprofile(None)
            os._exit(0)
        except BaseException:  # noqa: BLE001  the last frame of this process
            sys.setprofile(None)
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def test_apply_survives_sigkill_at_every_step(memory: Path, state: Path) -> None:
    seen: set[str] = set()
    for step in range(1, 2000):
        world, before, after = made(memory / str(step), state)
        dies = killed(step, world.apply)
        entries = history(str(world.root), world.environ)
        found = tree(world.root)
        assert found == (after if entries else before), step
        assert [entry.state for entry in entries] in ([], ["applied"])
        assert is_clean(world), step
        seen.add("done" if entries else "never")
        if not dies:
            break
        if entries:
            assert undo(str(world.root), world.environ).ok, step
            assert tree(world.root) == before, step
    assert seen == {"done", "never"}


def test_undo_survives_sigkill_at_every_step(memory: Path, state: Path) -> None:
    seen: set[str] = set()
    for step in range(1, 2000):
        world, before, after = made(memory / str(step), state)
        assert world.apply().ok
        dies = killed(step, partial(undo, str(world.root), world.environ))
        (entry,) = history(str(world.root), world.environ)
        assert tree(world.root) == (before if entry.state == "undone" else after), step
        assert is_clean(world), step
        seen.add(entry.state)
        if not dies:
            break
    assert seen == {"applied", "undone"}


def test_recovery_completes_a_half_applied_project(memory: Path) -> None:
    top, state = memory / "world", memory / "state"
    world, before, after = made(top, state)
    # A kill in the middle of the renames.
    for step in range(1, 2000):
        if not killed(step, world.apply):
            raise AssertionError("it came to its end without a half-applied project in between")
        if tree(world.root) not in (before, after):
            break
        shutil.rmtree(top)
        shutil.rmtree(state, ignore_errors=True)
        world, before, after = made(top, state)
    recover(str(world.root), world.environ)
    assert tree(world.root) == after


def test_removed_slots_do_not_block_the_undo_store(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(memory, owner(memory, tmp_path / "state"))
    world.fill()
    world.begin()
    world.change()

    world.apply_and_be_killed(monkeypatch)
    (slots,) = world.root.glob(".corral-slots-*")
    slots.rename(world.root / "aside")
    outside = tmp_path / "outside"
    (outside / "0").mkdir(parents=True)
    slots.symlink_to(outside)
    before = tree(world.root)
    assert history(str(world.root), world.environ) == []
    assert tree(world.root) == before
    assert [path.name for path in outside.iterdir()] == ["0"]

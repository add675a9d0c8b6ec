"""Fails apply and undo at every step, as a full disk does: all changes are done or none, and the message is true."""

import errno
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from steps import at_step, is_clean, made
from worlds import tree

from corral.model.errors import TransactionError
from corral.transactions.undo import history, undo

pytestmark = pytest.mark.real


def said(step: int, doing: Any) -> tuple[str, bool]:
    """Do something with a failure at one step. Return the message, and whether that step was reached."""
    reached = []

    def fail() -> None:
        reached.append(step)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    try:
        at_step(step, fail)
        done = doing()
    except TransactionError as error:
        return str(error), True
    finally:
        sys.setprofile(None)
    return "ok" if done.ok else "conflict", bool(reached)


def test_apply_survives_a_failure_at_every_step(memory: Path, state: Path) -> None:
    told: set[tuple[str, bool]] = set()
    for step in range(1, 2000):
        world, before, after = made(memory / str(step), state)
        words, has_failed = said(step, world.apply)
        entries = history(str(world.root), world.environ)
        assert tree(world.root) == (after if entries else before), step
        assert is_clean(world), step
        told.add((words.partition(" cannot")[0], bool(entries)))
        if not has_failed:
            break
    assert {done for words, done in told if words == "ok"} == {True}
    assert {done for words, done in told if words == "conflict"} == {False}
    assert {done for words, done in told if words.startswith("nothing was changed")} == {False}
    assert {done for words, done in told if words.startswith("the changes are applied, but")} == {True}


def test_undo_survives_a_failure_at_every_step(memory: Path, state: Path) -> None:
    told: set[tuple[str, str]] = set()
    for step in range(1, 2000):
        world, before, after = made(memory / str(step), state)
        assert world.apply().ok
        words, has_failed = said(step, partial(undo, str(world.root), world.environ))
        (entry,) = history(str(world.root), world.environ)
        assert tree(world.root) == (before if entry.state == "undone" else after), step
        assert is_clean(world), step
        told.add((words.partition(" cannot")[0], entry.state))
        if not has_failed:
            break
    assert {state for words, state in told if words == "ok"} == {"undone"}
    assert {state for words, state in told if words == "conflict"} == {"applied"}
    assert {state for words, state in told if words.startswith("nothing was changed")} == {"applied"}


@pytest.mark.parametrize("full", ["project", "state", "both"])
def test_full_disk_leaves_all_changes_or_none(full: str, tmp_path: Path) -> None:
    words = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        str(Path(__file__).parents[1] / "support" / "filling.py"),
    ]
    done = subprocess.run([*words, str(tmp_path), full], capture_output=True, text=True, check=False, timeout=120)
    if "unshare" in done.stderr and os.environ.get("CORRAL_MUST_CONTAIN") != "1":
        pytest.skip("needs user namespaces to mount a disk")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row for row in found if not row[3]] == []
    # Without free space nothing is done; with enough, everything.
    assert (found[0][2], found[-1][2], found[-1][5]) == ("nothing", "applied", "undone"), found
    for _, words_, became, _, _, _ in found:
        is_done = words_ == "ok" or words_.startswith("the changes are applied, but")
        assert is_done == (became == "applied"), words_

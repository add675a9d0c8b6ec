"""A disk that is full, and any other failure, at every step: all of it is done or nothing, and what is said is true."""

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
from corral.transactions.apply import history, undo

pytestmark = pytest.mark.real


def said(step: int, doing: Any) -> tuple[str, bool]:
    """Do something of which one step fails; return what is said of it, and whether it came to that step."""
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


def test_what_fails_at_any_step_of_applying_is_done_or_was_never_begun(memory: Path, state: Path) -> None:
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
    assert {done for words, done in told if words.startswith("the project is as it is to be (applied)")} == {True}


def test_what_fails_at_any_step_of_undoing_is_undone_or_still_there(memory: Path, state: Path) -> None:
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
def test_on_a_disk_that_is_full_all_is_done_or_nothing(full: str, tmp_path: Path) -> None:
    words = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        str(Path(__file__).with_name("filling.py")),
    ]
    done = subprocess.run([*words, str(tmp_path), full], capture_output=True, text=True, check=False, timeout=120)
    if "unshare" in done.stderr and os.environ.get("CORRAL_MUST_CONTAIN") != "1":
        pytest.skip("there are no namespaces here to have a disk in")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row for row in found if not row[3]] == []
    # With no room at all nothing is done, with enough of it all is.
    assert (found[0][2], found[-1][2], found[-1][5]) == ("nothing", "applied", "undone"), found
    for _, words_, became, _, _, _ in found:
        is_done = words_ == "ok" or words_.startswith("the project is as it is to be (applied)")
        assert is_done == (became == "applied"), words_

"""What the kernel tells of directories: names that appeared and stayed, whatever happened to them in between."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.containment.filesystem.inotify import MAX_TOLD, InotifyWatches
from corral.containment.kernel.syscalls import libc

RENAME_EXCHANGE = 2
AT_FDCWD = -100


@pytest.fixture
def notices(tmp_path: Path) -> Iterator[InotifyWatches]:
    made = InotifyWatches()
    made.add(str(tmp_path), removals=True)
    yield made
    made.close()


def exchange(one: Path, other: Path) -> None:
    done = libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    if done < 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def come_and_go(place: Path) -> None:
    (place / "lock").touch()
    (place / "lock").unlink()


def come_go_and_come(place: Path) -> None:
    come_and_go(place)
    (place / "lock").touch()


def exchanged(place: Path) -> None:
    (place / "one").touch()
    (place / "two").touch()
    exchange(place / "one", place / "two")


def moved_over(place: Path) -> None:
    (place / "one").touch()
    (place / "two").touch()
    (place / "one").rename(place / "two")


def linked(place: Path) -> None:
    (place / "one").touch()
    (place / "two").hardlink_to(place / "one")
    (place / "one").unlink()


def remade(place: Path) -> None:
    (place / "it").touch()
    (place / "it").unlink()
    (place / "it").mkdir()


CHANGES: list[Callable[[Path], None]] = [come_and_go, come_go_and_come, exchanged, moved_over, linked, remade]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("times", [1, 3])
def test_every_name_that_stays_is_told(
    notices: InotifyWatches, tmp_path: Path, change: Callable[[Path], None], times: int
) -> None:
    for _ in range(times):
        change(tmp_path)
        told = notices.changed()
        assert told is not None
        appeared, gone = told
        assert not gone
        names = {os.fsdecode(name) for name in appeared.get(str(tmp_path), ())}
        stayed = {path.name for path in tmp_path.iterdir()}
        assert stayed <= names
        assert bool(names) == bool(stayed)
        for path in tmp_path.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        assert notices.changed() is not None


def test_the_same_events_in_another_directory_are_told_of_that_one(notices: InotifyWatches, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        notices.add(str(tmp_path / name))
    notices.changed()
    for name in ("a", "b", "a"):
        (tmp_path / name / "x").touch()
        assert notices.changed() == ({str(tmp_path / name): {b"x"}}, set())
        (tmp_path / name / "x").unlink()
    assert notices.changed() == ({}, set())


def test_what_is_said_again_is_known_whatever_was_said_before(notices: InotifyWatches, tmp_path: Path) -> None:
    for number in range(2 * MAX_TOLD):
        (tmp_path / str(number)).touch()
        assert notices.changed() == ({str(tmp_path): {str(number).encode()}}, set())
        assert len(notices._told) <= MAX_TOLD
    come_and_go(tmp_path)
    once = notices.changed()
    come_and_go(tmp_path)
    assert notices.changed() is once

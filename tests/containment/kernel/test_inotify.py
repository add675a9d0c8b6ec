"""Inotify events name the entries that appeared and stayed, whatever happened to them in between."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.containment.kernel.inotify import MAX_CACHED, InotifyWatches
from corral.containment.kernel.syscalls import libc

RENAME_EXCHANGE = 2
AT_FDCWD = -100


@pytest.fixture
def watches(tmp_path: Path) -> Iterator[InotifyWatches]:
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
def test_every_remaining_name_is_reported(
    watches: InotifyWatches, tmp_path: Path, change: Callable[[Path], None], times: int
) -> None:
    for _ in range(times):
        change(tmp_path)
        changes = watches.changed()
        assert changes is not None
        appeared, gone = changes
        assert not gone
        names = {os.fsdecode(name) for name in appeared.get(str(tmp_path), ())}
        stayed = {path.name for path in tmp_path.iterdir()}
        assert stayed <= names
        assert bool(names) == bool(stayed)
        for path in tmp_path.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        assert watches.changed() is not None


def test_equal_events_are_reported_per_directory(watches: InotifyWatches, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        watches.add(str(tmp_path / name))
    watches.changed()
    for name in ("a", "b", "a"):
        (tmp_path / name / "x").touch()
        assert watches.changed() == ({str(tmp_path / name): {b"x"}}, set())
        (tmp_path / name / "x").unlink()
    assert watches.changed() == ({}, set())


def test_repeated_events_come_from_the_cache(watches: InotifyWatches, tmp_path: Path) -> None:
    for number in range(2 * MAX_CACHED):
        (tmp_path / str(number)).touch()
        assert watches.changed() == ({str(tmp_path): {str(number).encode()}}, set())
        assert len(watches._cache) <= MAX_CACHED
    come_and_go(tmp_path)
    once = watches.changed()
    come_and_go(tmp_path)
    assert watches.changed() is once


def test_counted_events_are_not_among_the_names(watches: InotifyWatches, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    watches.add_counted(str(inner))
    before = watches.count()
    (tmp_path / "one").touch()
    assert watches.count() == before
    (inner / "lock").touch()
    (tmp_path / "two").touch()
    assert watches.count() > before
    # Events that were read to be counted are still there.
    assert watches.changed() == ({str(tmp_path): {b"inner", b"one", b"two"}}, set())


def test_lost_events_are_counted(watches: InotifyWatches, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    watches.add_counted(str(inner))
    before = watches.count()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(most // 2 + 2):
        (tmp_path / f"{number}").touch()
        (tmp_path / f"{number}").unlink()
    (inner / "lock").touch()
    assert watches.count() > before
    assert watches.changed() is None


def test_directory_is_not_watched_for_two_purposes(watches: InotifyWatches, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="another purpose"):
        watches.add_counted(str(tmp_path))
    inner = tmp_path / "inner"
    inner.mkdir()
    watches.add_counted(str(inner))
    with pytest.raises(OSError, match="another purpose"):
        watches.add(str(inner))

"""The private store: safe directory, atomic writes, expiry and lock."""

import os
import threading
from pathlib import Path

import pytest

from corral.model.errors import PolicyError
from corral.policy import store as store_module
from corral.policy.store import Store


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def store(environ: dict[str, str]) -> Store:
    made = Store("state", "a/b", environ)
    made.create()
    return made


def test_directories_and_files_are_private(store: Store, tmp_path: Path) -> None:
    store.write("x", b"one", sync=True)
    assert store.path == str(tmp_path / "state" / "corral" / "a" / "b")
    assert [os.stat(path).st_mode & 0o777 for path in (store.path, f"{store.path}/x")] == [0o700, 0o600]
    assert (store.read("x", 3), store.read("y", 3), store.names()) == (b"one", None, ["x"])


def test_missing_directory_does_not_exist(environ: dict[str, str], tmp_path: Path) -> None:
    assert not Store("state", "a", environ).exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("level", ["corral", "corral/a", "corral/a/b"])
def test_directory_writable_by_others_is_an_error(store: Store, tmp_path: Path, level: str) -> None:
    (tmp_path / "state" / level).chmod(0o777)
    for use in (store.exists, store.create):
        with pytest.raises(PolicyError, match="chmod go-w"):
            use()


def test_directory_inside_the_project_is_an_error(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        Store("state", "a", environ, str(tmp_path))


@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "/nonexistent"}])
def test_missing_home_directory_is_not_created(home: dict[str, str]) -> None:
    with pytest.raises(PolicyError, match="set HOME or XDG_CACHE_HOME"):
        Store("cache", "corral-test", home).create()
    assert not Path("/nonexistent").exists()


def test_long_linked_or_shared_file_is_an_error(store: Store) -> None:
    store.write("x", b"one")
    with pytest.raises(PolicyError):
        store.read("x", 2)
    os.link(f"{store.path}/x", f"{store.path}/y")
    assert store.read("x", 3) == b"one"
    with pytest.raises(PolicyError):
        store.read("x", 3, allows_hard_links=False)
    os.symlink("x", f"{store.path}/z")
    with pytest.raises(PolicyError):
        store.read("z", 3)


def test_failed_write_leaves_the_old_file_and_no_other(store: Store) -> None:
    os.mkdir(f"{store.path}/x")
    with pytest.raises(OSError, match="x"):
        store.write("x", b"two")
    assert store.names() == ["x"]


def test_file_is_taken_once(store: Store) -> None:
    store.write("x", b"one")
    assert (store.take("x", 9), store.take("x", 9), store.names()) == (b"one", None, [])


def test_remove_is_idempotent(store: Store) -> None:
    store.write("x", b"one")
    store.remove("x")
    store.remove("x")
    assert store.names() == []


def test_expired_and_future_files_are_removed(store: Store) -> None:
    for name, moved in (("old", -100), ("new", 0), ("future", 100)):
        store.write(name, b"")
        found = os.stat(f"{store.path}/{name}")
        os.utime(f"{store.path}/{name}", (found.st_atime + moved, found.st_mtime + moved))
    store.remove_expired(50)
    assert store.names() == ["new"]


def test_oldest_files_are_removed(store: Store) -> None:
    for number in range(5):
        store.write(str(number), b"")
        os.utime(f"{store.path}/{number}", (number, number))
    store.remove_oldest(2)
    assert sorted(store.names()) == ["3", "4"]


def test_lock_excludes_others_until_it_is_released(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LOCK_SECONDS", 0.01)
    with store.lock(), pytest.raises(PolicyError, match="lock"), store.lock():
        raise AssertionError
    with store.lock():
        other = threading.Thread(target=lambda: store.write("x", b"one"))
        other.start()
        other.join()
    assert store.read("x", 3) == b"one"

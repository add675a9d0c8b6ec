"""Files of the project that have other names outside it are never changed in place."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import Containment, Sandbox
from corral.containment import state
from corral.containment.filesystem import protected, shared_files
from corral.containment.filesystem.shared_files import Survey, make_own_copies, survey

PLACES = [
    "node_modules/lib.js",
    "node_modules/.pnpm/a@1/node_modules/a/lib.js",
    "packages/x/node_modules/a/lib.js",
    ".venv/lib/python3.11/site-packages/a/lib.js",
    "target/debug/lib.js",
    "src/deep/lib.js",
    "lib.js",
    "a name\n\udcff/lib.js",
]
WRITES = {
    "append": "echo EVIL >> {path}",
    "truncate": ": > {path}",
    "by another name": "ln {path} other && echo EVIL >> other",
    "mode": "chmod 600 {path}",
    "time": "touch -d 2001-01-01 {path}",
}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def link(store: Path, path: Path, text: str = "good\n") -> Path:
    """Make a file in the store, and a second name for it as a package manager does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    original = store / f"{len(list(store.iterdir()))}"
    original.write_text(text)
    original.chmod(0o644)
    os.link(original, path)
    return original


def facts(path: Path) -> tuple[object, ...]:
    status = path.stat()
    return path.read_bytes(), stat.S_IMODE(status.st_mode), status.st_mtime_ns


@pytest.mark.parametrize("place", PLACES)
def test_file_with_another_name_outside_is_not_changed(
    place: str, store: Path, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    original = link(store, project / place)
    before = facts(original)
    box = open_sandbox()
    result = box.run(["python3", "-c", f"open({place!r}.encode('utf-8', 'surrogateescape'), 'a').write('EVIL')"])
    assert result.ok, result.stderr_text
    assert facts(original) == before
    assert (project / place).read_text() == "good\nEVIL"


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("protects", [True, False], ids=["", "control"])
def test_no_way_of_writing_reaches_the_other_name(
    write: str, store: Path, open_sandbox: Callable[..., Sandbox], request: pytest.FixtureRequest, *, protects: bool
) -> None:
    project, monkeypatch = request.getfixturevalue("project"), request.getfixturevalue("monkeypatch")
    if not protects:
        monkeypatch.setattr(state, "make_own_copies", lambda *_: ())
    original = link(store, project / "node_modules" / "lib.js")
    before = facts(original)
    result = open_sandbox().run(write.format(path="node_modules/lib.js"), shell=True)
    assert result.ok, result.stderr_text
    assert (facts(original) == before) is protects


@pytest.mark.parametrize("bound", ["MAX_COPIED_FILES", "MAX_COPIED_BYTES"])
def test_tree_that_is_too_large_to_copy_is_read_only(
    bound: str,
    store: Path,
    project: Path,
    open_sandbox: Callable[..., Sandbox],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_files, bound, 2)
    path = project / "node_modules" / ".pnpm" / "a" / "lib.js"
    originals = [link(store, path.with_name(f"{number}.js")) for number in range(3)]
    (project / "node_modules" / ".cache").mkdir()
    before = [facts(each) for each in originals]
    box = open_sandbox()
    result = box.run("echo EVIL >> node_modules/.pnpm/a/0.js", shell=True)
    assert not result.ok
    (violation,) = result.violations
    assert (violation.kind, violation.target) == ("protected", str(path.with_name("0.js")))
    assert "package-import-method=copy" in violation.instead
    assert not box.run("mv node_modules/.pnpm x", shell=True).ok
    assert not box.run("mv node_modules x", shell=True).ok
    assert box.run("echo x > node_modules/.cache/x; echo y > y", shell=True).ok
    assert [facts(each) for each in originals] == before
    assert all((store / name).stat().st_nlink == 2 for name in ("0", "1", "2"))


def test_tree_whose_files_cannot_be_replaced_is_read_only(
    store: Path, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    original = link(store, project / "node_modules" / "lib.js")
    original.chmod(0o4755)  # no copy of a set-id file is made
    result = open_sandbox().run("echo EVIL >> node_modules/lib.js", shell=True)
    assert not result.ok
    assert original.read_text() == "good\n"


def test_project_that_is_read_only_is_left_alone(
    store: Path, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    original = link(store, project / "node_modules" / "lib.js")
    box = open_sandbox(containment=Containment(project="read-only"))
    assert not box.run("echo EVIL >> node_modules/lib.js", shell=True).ok
    assert (original.read_text(), original.stat().st_nlink) == ("good\n", 2)


def test_directory_that_looks_like_a_repository_is_looked_at(
    store: Path, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    original = link(store, project / "node_modules" / "lib.js")
    for name in ("HEAD", "objects", "refs"):
        (project / "node_modules" / name).mkdir()
    assert open_sandbox().run("echo EVIL >> node_modules/lib.js", shell=True).ok
    assert original.read_text() == "good\n"


def test_links_within_the_project_stay(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    folder = project / "target" / "debug" / "deps"
    folder.mkdir(parents=True)
    (folder / "a-1").write_text("a")
    os.link(folder / "a-1", project / "target" / "debug" / "a")
    assert open_sandbox().run("echo b >> target/debug/a", shell=True).ok
    assert (folder / "a-1").read_text() == "ab\n"


def test_copy_keeps_what_the_file_has(store: Path, project: Path) -> None:
    path = project / "node_modules" / "run"
    original = link(store, path, "x" * 100_000)
    original.chmod(0o750)
    os.utime(original, ns=(1_000_000_001, 2_000_000_003))
    before = facts(original)
    (path.parent / "link").symlink_to(original)
    assert make_own_copies(str(project), [str(path)]) == ()
    assert facts(path) == before == facts(original)
    assert (path.stat().st_nlink, original.stat().st_nlink) == (1, 1)
    assert sorted(each.name for each in path.parent.iterdir()) == ["link", "run"]
    assert survey(str(project)) == Survey()


def test_links_in_place_of_directories_are_not_followed(store: Path, project: Path, tmp_path: Path) -> None:
    original = link(store, tmp_path / "outside" / "lib.js")
    (project / "node_modules").symlink_to(tmp_path / "outside")
    # As if a command of another sandbox had put the link there after the look.
    assert shared_files._shared_below(str(project / "node_modules"))
    assert make_own_copies(str(project), [f"{project}/node_modules/lib.js"]) == (f"{project}/node_modules",)
    assert original.stat().st_nlink == 2
    assert os.listdir(tmp_path / "outside") == ["lib.js"]


def test_large_project_is_sampled(store: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "MAX_LOOKED_AT", 10)
    for number in range(30):
        (project / f"{number}").touch()
    for number in range(30):
        link(store, project / "node_modules" / f"{number % 3}" / f"{number}")
    found = protected.find(str(project)).shared
    assert 2 <= len(found) <= 10
    assert make_own_copies(str(project), found) == ()
    assert survey(str(project)) == Survey()


def test_many_directories_are_read_only_together(store: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "MAX_TREES", 4)
    monkeypatch.setattr(shared_files, "MAX_COPIED_FILES", 0)
    for number in range(10):
        link(store, project / "src" / f"{number}" / "file")
    found = protected.find(str(project)).shared
    assert make_own_copies(str(project), found) == (f"{project}/src",)


def test_only_directories_with_shared_files_are_read_only(
    store: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "MAX_COPIED_FILES", 0)
    (project / "target").mkdir()
    (project / "target" / "a").write_text("a")
    os.link(project / "target" / "a", project / "target" / "b")
    link(store, project / "node_modules" / "file")
    found = protected.find(str(project)).shared
    assert len(found) == 3
    assert make_own_copies(str(project), found) == (f"{project}/node_modules",)


def test_tree_with_too_many_bytes_is_not_copied_in_part(
    store: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "MAX_COPIED_BYTES", 25)
    for number in range(30):
        link(store, project / "node_modules" / f"{number}", "12345")
    found = protected.find(str(project)).shared
    readonly = make_own_copies(str(project), found)
    if readonly:  # the file system does not share blocks
        assert survey(str(project)).files == 29


def test_survey_counts_shared_files(store: Path, project: Path) -> None:
    for number in range(5):
        link(store, project / "node_modules" / f"{number}", "12345")
    (project / "own").write_text("x")
    (project / ".git" / "objects").mkdir(parents=True)
    link(store, project / ".git" / "objects" / "x")
    assert survey(str(project)) == Survey(5, 25, (f"{project}/node_modules",))


def test_tree_that_the_user_replaces_is_looked_at_again(
    store: Path, project: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "MAX_COPIED_FILES", 0)
    folder = project / "node_modules"
    link(store, folder / "a.js")
    box = open_sandbox()
    assert not box.run("echo EVIL >> node_modules/a.js", shell=True).ok
    shutil.rmtree(folder)
    original = link(store, folder / "b.js")
    assert not box.run("echo EVIL >> node_modules/b.js", shell=True).ok
    assert original.read_text() == "good\n"

"""A change of a git directory is noticed, and a lock that comes and goes is not taken for one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import git, start_from

from corral import Sandbox
from corral.containment.kernel.inotify import InotifyWatches
from corral.git import changes
from corral.git.changes import WatchedDirectory
from corral.git.safe_files import SafeTree

Change = Callable[[Path], object]
CHANGES: dict[str, Change] = {
    "commit": lambda project: git(project, "commit", "-q", "--allow-empty", "-m", "new"),
    "branch": lambda project: git(project, "branch", "deep/new"),
    "tag": lambda project: git(project, "tag", "new"),
    "switch": lambda project: git(project, "switch", "-q", "side"),
    "stage": lambda project: ((project / "a.txt").write_text("new"), git(project, "add", "a.txt")),
    "setting": lambda project: git(project, "config", "user.name", "new"),
    "pack": lambda project: git(project, "pack-refs", "--all"),
    "excluded file": lambda project: os.replace(project / ".git" / "info" / "exclude", project / ".git" / "x"),
    "file written in place": lambda project: ((project / ".git" / "HEAD").write_text("x"), git_touch(project)),
    "file replaced by one of the same size and time": lambda project: replace_equal(project / ".git" / "HEAD"),
    "git directory gone": lambda project: os.rename(project / ".git", project / "elsewhere"),
}


def git_touch(project: Path) -> None:
    """Change the directory, as the lock of another command does."""
    (project / ".git" / "x.lock").touch()
    (project / ".git" / "x.lock").unlink()


def replace_equal(path: Path) -> None:
    """Put a file with the same size and time in the place of another."""
    found = path.stat()
    other = path.with_name("other")
    other.write_text(path.read_text().swapcase())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.replace(other, path)


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    """A repository of the user's."""
    return start_from(git_template, "history", tmp_path / "place")


def noted(project: Path) -> WatchedDirectory:
    """Return the git directory as it is now."""
    found = WatchedDirectory(str(project / ".git"))
    with SafeTree(str(project / ".git")) as tree:
        found.remember(tree)
    return found


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("has_fine_times", [True, False])
def test_change_is_noticed(name: str, has_fine_times: bool, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "HAS_FINE_TIMES", has_fine_times)
    found = noted(project)
    assert not found.is_changed()
    git_touch(project)
    assert not found.is_changed()
    CHANGES[name](project)
    assert found.is_changed()


def test_status_is_no_change(project: Path) -> None:
    for path in git(project, "ls-files").splitlines():
        # Else git reads files that are as new as the index, and writes the index again.
        os.utime(project / path, (0, 0))
    git(project, "status")
    found = noted(project)
    before = (project / ".git").stat().st_ctime_ns
    git(project, "status")
    assert (project / ".git").stat().st_ctime_ns != before
    assert not found.is_changed()


def test_forgotten_directory_counts_as_changed(project: Path) -> None:
    found = noted(project)
    found.forget()
    assert found.is_changed()
    assert found.is_changed()


@pytest.mark.parametrize("name", [*CHANGES, "setting appended in place"])
def test_change_grows_the_number_of_events(name: str, project: Path) -> None:
    watches = InotifyWatches()
    try:
        for path in noted(project).watched:
            watches.add_counted(path)
        before = watches.count()
        assert watches.count() == before
        if name in CHANGES:
            CHANGES[name](project)
        else:
            with (project / ".git" / "config").open("a") as file:
                file.write("[a]\nb = c\n")
        assert watches.count() > before
    finally:
        watches.close()


def test_sandbox_that_ran_many_commands_notices_changes_of_both_sides(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    (project / "inner").mkdir()
    box = open_sandbox()
    for number in range(8):
        # From the third command on inotify tells whether a git directory was left alone.
        assert box.run(["true"]).ok
        git(project, "tag", f"user{number}")
        with (project / ".git" / "config").open("a") as file:
            file.write(f"[user{number}]\nset = yes\n")
        setting = f'[branch "command{number}"]\\n\\tdescription = {number}\\n'
        step = (
            f"git tag command{number} user{number} && git config user{number}.set && printf '{setting}' >>.git/config"
        )
        assert box.run(step, shell=True).exit_code == 0
        assert git(project, "tag", "-l", f"command{number}") == f"command{number}"
        assert git(project, "config", f"branch.command{number}.description") == str(number)


def test_fork_notices_changes_without_the_events_of_its_parent(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    for _ in range(5):
        assert box.run(["true"]).ok
    state = box._state.containment
    assert state._snapshot is not None
    assert state._snapshot.watcher.other_changes((str(project / ".git"),)) is not None
    child = os.fork()
    if child == 0:
        os._exit(state._snapshot.watcher.other_changes((str(project / ".git"),)) is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

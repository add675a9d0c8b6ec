"""A lock, a repack or a change at the wrong moment delays what crosses, and loses nothing."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from git_world import environment, git, start_from, words

from corral import Sandbox, SandboxResult
from corral.git.membrane import Membrane
from corral.git.mirror import Mirror
from corral.git.objects import PrivateObjects
from corral.git.safe_files import SafeTree
from corral.git.worktree import Worktree


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


@pytest.fixture
def box(project: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A sandbox that compares only before and after commands."""
    monkeypatch.setattr(Membrane, "compare_meanwhile", lambda *_: None)
    box = open_sandbox()
    run(box, "true")
    return box


def run(box: Sandbox, step: str) -> SandboxResult:
    result = box.run(words(step), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    return result


@pytest.mark.parametrize("name", ["refs/heads/main", "HEAD"])
def test_ref_that_is_locked_crosses_with_the_next_command(name: str, project: Path, box: Sandbox) -> None:
    before = git(project, "rev-parse", "main")
    lock = project / ".git" / f"{name}.lock"
    lock.touch()
    step = "git switch -q --detach && " if name == "HEAD" else ""
    result = run(box, f"{step}echo x >x.txt && git add x.txt && git commit -qm command")
    assert "lock" in repr(result.violations)
    assert git(project, "rev-parse", "HEAD") == before
    if name != "HEAD":
        # Neither does the index cross, which would show the commit as a staged change.
        assert git(project, "diff", "--cached", "--name-only") == ""
    lock.unlink()
    run(box, "true")
    assert git(project, "log", "-1", "--format=%s", "HEAD") == "command"
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "for-each-ref", "refs/corral") == ""


def test_stash_that_is_locked_crosses_with_the_next_command(project: Path, box: Sandbox) -> None:
    lock = project / ".git" / "refs" / "stash.lock"
    lock.touch()
    result = run(box, "echo x >>a.txt && git stash push -qm mine")
    assert "a stash stays in the sandbox until the next command" in repr(result.violations)
    lock.unlink()
    assert "mine" in run(box, "git stash list").stdout_text
    assert "mine" in git(project, "stash", "list")


def test_ref_that_git_refuses_twice_stays_and_does_not_stop_others(project: Path, box: Sandbox) -> None:
    lock = project / ".git" / "refs" / "heads" / "side.lock"
    lock.touch()
    run(box, "git branch -f side main && git branch new main")
    run(box, "true")
    assert git(project, "rev-parse", "new") == git(project, "rev-parse", "main")
    assert run(box, "git rev-parse side").stdout_text.strip() == git(project, "rev-parse", "main")


def test_objects_that_are_packed_meanwhile_cross(project: Path, box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    reachable, copies = PrivateObjects.reachable, list(Path(os.environ["XDG_STATE_HOME"]).rglob("dir/HEAD"))
    env = os.environ | {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(project / ".git" / "objects")}

    def packed(objects: PrivateObjects, roots: Iterable[str]) -> Iterator[str]:
        # As a command's git does, at any time.
        for head in copies:
            subprocess.run(["git", "--git-dir", str(head.parent), "repack", "-q", "-d", "-l"], env=env, check=False)
        yield from reachable(objects, roots)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateObjects, "reachable", packed)
        result = run(box, "echo x >x.txt && git add x.txt && git commit -qm command")
    assert result.violations == ()
    assert git(project, "log", "-1", "--format=%s") == "command"
    git(project, "fsck", "--full")


def test_entry_that_a_command_stages_again_crosses(
    project: Path, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # As if the command's git had the lock of its index.
        patch.setattr(Worktree, "_copy_index", lambda _: False)
        handle = box.start(
            words("until [ -e build/go ]; do sleep 0.01; done; echo x >x.txt; git add x.txt"), env=environment()
        )
        git(project, "update-index", "--add", "--cacheinfo", f"100644,{git(project, 'rev-parse', 'main:b.txt')},y.txt")
        (project / "build" / "go").touch()
        assert handle.wait().exit_code == 0
        assert git(project, "show", ":x.txt") == "x"
        run(box, "echo again >x.txt && git add x.txt")
    assert git(project, "show", ":x.txt") == "again"
    assert git(project, "ls-files", "y.txt") == "y.txt"
    assert run(box, "git ls-files y.txt && git show :x.txt").stdout_text == "y.txt\nagain\n"


ENDING = [
    ("git rebase -q -i v1", "rm -r $GIT_DIR/rebase-merge", "a command ended a rebase"),
    (
        "git stash push -qm one && echo x >>b.txt && git stash push -qm two",
        "git reflog delete --rewrite stash@{1}",
        "a command dropped the stash 'On main: one'",
    ),
    ("true", "git config user.name other", "a command set user.name"),
    ("true", "echo a.txt >>$GIT_DIR/info/exclude", ".git/info/exclude stays"),
]


@pytest.mark.parametrize("case", ENDING, ids=["rebase", "stash", "config", "exclude"])
def test_change_at_the_end_of_a_comparison_is_not_missed(
    case: tuple[str, str, str], project: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, late, told = case
    monkeypatch.setattr(Membrane, "compare_meanwhile", lambda *_: None)
    editor = {"GIT_SEQUENCE_EDITOR": "sed -i 1ibreak"}
    with (project / "a.txt").open("a") as file:
        file.write("changed\n" if "stash" in before else "")
    subprocess.run(["bash", "-c", before], cwd=project, env=os.environ | environment() | editor, check=True)
    box, earlier = open_sandbox(), {*Path(os.environ["XDG_STATE_HOME"]).rglob("dir/HEAD")}
    run(box, "git status >build/said")
    (copy,) = {*Path(os.environ["XDG_STATE_HOME"]).rglob("dir/HEAD")} - earlier
    remember, todo = Mirror._remember, [late]

    def remember_late(mirror: Mirror, user: SafeTree, private: SafeTree) -> None:
        # As a command that still runs, when all was read.
        env = os.environ | environment() | {"GIT_DIR": str(copy.parent)}
        subprocess.run(["bash", "-c", todo.pop() if todo else "true"], cwd=project, env=env, check=True)
        remember(mirror, user, private)

    monkeypatch.setattr(Mirror, "_remember", remember_late)
    run(box, "git branch new")
    assert told in repr(run(box, "true").violations)


def test_change_of_the_users_at_the_end_of_a_comparison_is_not_missed(
    project: Path, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember, todo = Mirror._remember, ["git config user.name other"]

    def remember_late(mirror: Mirror, user: SafeTree, private: SafeTree) -> None:
        subprocess.run(["bash", "-c", todo.pop() if todo else "true"], cwd=project, check=True)
        remember(mirror, user, private)

    monkeypatch.setattr(Mirror, "_remember", remember_late)
    run(box, "git branch new")
    assert run(box, "git config user.name").stdout_text == "other\n"


def test_no_comparison_begins_after_the_last_command_has_ended(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    """The user's git would meet the locks of one that was about to begin."""
    box, earlier = open_sandbox(), {*Path(os.environ["XDG_STATE_HOME"]).rglob("dir/config")}
    run(box, "git status >build/said")
    (copy,) = {*Path(os.environ["XDG_STATE_HOME"]).rglob("dir/config")} - earlier
    git(project, "config", "user.name", "other")
    state = box._state
    assert state.containment._git is not None
    state.containment._git.compare_meanwhile(state.pool.is_busy)
    assert "other" not in copy.read_text()
    state.containment._git.compare_meanwhile(lambda: True)
    assert "other" in copy.read_text()


def test_result_waits_for_a_comparison_that_began_before_its_command_ended(
    project: Path, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    membrane, compare, began, may_end = box._state.containment._git, Mirror.compare, Event(), Event()
    assert membrane is not None

    def slow(mirror: Mirror) -> list[str]:
        began.set()
        assert may_end.wait(60)
        return compare(mirror)

    git(project, "config", "user.name", "other")
    monkeypatch.undo()
    monkeypatch.setattr(Mirror, "compare", slow)
    thread = Thread(target=membrane.compare_meanwhile, args=(lambda: True,))
    thread.start()
    assert began.wait(60)
    settled = Thread(target=box._state.pool.settle)
    settled.start()
    settled.join(0.1)
    assert settled.is_alive()
    may_end.set()
    thread.join(60)
    settled.join(60)
    assert not settled.is_alive()

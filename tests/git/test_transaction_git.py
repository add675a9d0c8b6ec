"""Apply and undo of a transaction's work in git: repositories that it made, locks of the user's, and killed processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Sandbox, SandboxConfig
from corral.transactions.apply import Applied
from corral.transactions.undo import history

COMMIT = (
    "echo x >x.txt && git add x.txt && git commit -qm 'in a transaction' && git branch more && git switch -qc topic"
)
MAKE = "git init -q -b main sub && cd sub && echo x >x.txt && git add x.txt && git commit -qm made"
# A host process that is killed when it comes to a function.
KILLED = """
import os, sys
from importlib import import_module
from corral import Sandbox, SandboxConfig
from corral.transactions.undo import undo
project, step, module, place, name, *words = sys.argv[1:]
def kill(*_, **__):
    os.kill(os.getpid(), 9)
def prepare():
    target = import_module(module)
    setattr(getattr(target, place) if place else target, name, kill)
if step == "undo":
    prepare()
    undo(project, os.environ)
else:
    with Sandbox(SandboxConfig(project, profile="workspace")) as box, box.transaction() as tx:
        result = tx.run(words, env={name: os.environ[name] for name in os.environ if name.startswith("GIT_")})
        assert result.exit_code == 0, result
        prepare()
        tx.apply()
"""
PLACES = {
    "before git": ("corral.transactions.undo_store", "UndoStore", "finish_git"),
    "before the refs": ("corral.git.comparison", "Comparison", "_write_refs"),
    "before the index": ("corral.git.worktree", "Worktree", "replace_index"),
    "before the history": ("corral.transactions.undo_store", "UndoStore", "note"),
}


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


def applied(box: Sandbox, step: str) -> Applied:
    """Run a step in a transaction, and apply it."""
    with box.transaction() as tx:
        result = tx.run(words(step), env=environment(), timeout_seconds=60)
        assert result.exit_code == 0, (result.stderr_text, result)
        return tx.apply()


def killed(project: Path, step: str, at: tuple[str, str, str], command: str = "true") -> None:
    """Apply or undo in a process that is killed."""
    given = [str(project), step, *at, *words(command)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *given], env=os.environ | environment(), capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr.decode()


def shown(project: Path) -> tuple[str, ...]:
    """Return refs, HEAD, index and status of the user's repository."""
    asked = (["for-each-ref"], ["symbolic-ref", "HEAD"], ["ls-files", "-s"], ["status", "--porcelain"])
    return tuple(git(project, *each) for each in asked)


@pytest.mark.parametrize(
    "step", [MAKE, f"mkdir outer && cd outer && {MAKE}", f"{MAKE} && cd .. && git init -q --bare b"]
)
def test_repository_that_a_transaction_made_is_undone(
    step: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    before = shown(project)
    done = applied(box, step)
    assert (done.ok, done.refused) == (True, ())
    sub = next(project.rglob("sub"))
    assert git(sub, "log", "--format=%s") == "made"
    # Git writes the index again.
    git(sub, "status")

    undone = box.undo()
    assert (undone.ok, undone.refused) == (True, ())
    assert not sub.exists()
    assert not (project / "b").exists()
    assert shown(project) == before


def test_repository_in_the_project_itself_is_undone(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    shutil.rmtree(project / ".git")
    before = sorted(os.listdir(project))
    box = open_sandbox()
    assert applied(box, "git init -q -b main . && git add . && git commit -qm made").ok
    assert git(project, "log", "--format=%s") == "made"
    assert box.undo().ok
    assert sorted(os.listdir(project)) == before


@pytest.mark.parametrize(
    "change", ["git commit -q --allow-empty -m user", "git config user.name x", "echo '#' >.git/hooks-of-mine"]
)
def test_repository_that_the_user_changed_is_not_undone(
    change: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    assert applied(box, MAKE).ok
    assert outside(change, project / "sub").returncode == 0
    undone = box.undo()
    assert [each.why for each in undone.conflicts] == ["it was changed since"]
    assert (project / "sub" / "x.txt").exists()
    assert git(project / "sub", "log", "-1", "--format=%s", "main").startswith(("made", "user"))


def test_lock_of_the_users_stops_undo(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    before = shown(project)
    assert applied(box, COMMIT).ok
    after = shown(project)
    lock = project / ".git" / "index.lock"
    lock.touch()
    undone = box.undo()
    assert not undone.ok
    assert "index.lock" in undone.conflicts[0].why
    lock.unlink()
    assert shown(project) == after
    assert box.undo().ok
    assert shown(project) == before


def test_ref_that_git_cannot_restore_is_reported(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    assert applied(box, COMMIT).ok
    lock = project / ".git" / "refs" / "heads" / "main.lock"
    lock.touch()
    undone = box.undo()
    assert "main.lock" in repr(undone.refused)
    # Without the refs, the index of before would show their changes as staged.
    assert not (project / ".git" / "index.lock").exists()
    assert "x.txt" in git(project, "ls-files")


@pytest.mark.parametrize("place", PLACES)
def test_killed_apply_is_completed_in_git(place: str, project: Path) -> None:
    before = shown(project)
    killed(project, "apply", PLACES[place], COMMIT)
    assert (project / "x.txt").exists()
    # Another sandbox cleans up behind killed processes first.
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        with box.transaction():
            assert git(project, "log", "-1", "--format=%s", "more") == "in a transaction"
        assert shown(project)[1:] == ("refs/heads/topic", git(project, "ls-files", "-s"), "")
        assert "x.txt" in git(project, "ls-files")
        assert [entry.state for entry in history(str(project), os.environ)] == ["applied"]
        assert box.undo().ok
    assert shown(project) == before
    assert sorted((project / ".git").rglob("*.lock")) == []


MAKING = {
    "before git": PLACES["before git"],
    "after the move": ("corral.git.made_repositories", "", "_remake"),
    "before it is in its place": ("corral.git.made_repositories", "", "_place"),
    "when it is in its place": ("corral.git.mirror", "Mirror", "note_place"),
}


@pytest.mark.parametrize("place", MAKING)
def test_killed_apply_of_a_new_repository_is_completed(place: str, project: Path) -> None:
    killed(project, "apply", MAKING[place], MAKE)
    assert [entry.state for entry in history(str(project), os.environ)] == ["applied"]
    assert git(project / "sub", "log", "--format=%s") == "made"
    assert git(project / "sub", "status", "--porcelain") == ""
    git(project / "sub", "fsck", "--full")
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        assert box.undo().ok
    assert not (project / "sub").exists()


UNDOING = {
    "before the files": ("corral.transactions.undo_store", "UndoStore", "complete"),
    "before git": PLACES["before git"],
    "before the refs": ("corral.git.restore", "", "_restore_refs"),
}


@pytest.mark.parametrize("place", UNDOING)
def test_killed_undo_is_completed_in_git(place: str, project: Path) -> None:
    before = shown(project)
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        assert applied(box, COMMIT).ok
    killed(project, "undo", UNDOING[place])
    assert [entry.state for entry in history(str(project), os.environ)] == ["undone"]
    assert shown(project) == before

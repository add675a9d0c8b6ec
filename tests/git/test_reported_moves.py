"""The result reports what a command took away from the user's branches, tags and work in progress, with the way back."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Sandbox

BEGIN = 'GIT_SEQUENCE_EDITOR="sed -i 1ibreak" git rebase -q -i v1'
OWN = "git commit -q --allow-empty -m one && git commit -q --allow-empty -m two"


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


def notes(box: Sandbox, step: str) -> list[str]:
    """Run a step as a contained command, and return what its result says of git."""
    result = box.run(words(step), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    return [each.detail for each in result.violations if each.kind == "git"]


def way_back(note: str, project: Path) -> None:
    """Type what a note says."""
    assert outside(note.partition("To restore it: ")[2], project).returncode == 0


@pytest.mark.parametrize(
    "step",
    [
        "git reset -q --hard v1",
        "git commit -q --amend -m other",
        "git rebase -q --onto side v1",
        f"{OWN} && git reset -q --hard v1",
        "git switch -q side && git branch -q -f main v1",
        "git update-ref refs/heads/main side",
    ],
)
def test_branch_that_loses_a_commit_of_the_users_is_reported(
    step: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    before = git(project, "rev-parse", "main")
    (note,) = notes(box, step)
    left = note.partition("a command moved refs/heads/main from ")[2][: len(before)]
    # On a busy machine corral compares while the command runs: then it has brought the command's own commits to the user before.
    assert before in git(project, "rev-list", left).split()
    assert git(project, "rev-parse", "main") != left
    way_back(note, project)
    assert git(project, "rev-parse", "main") == left


def test_tag_that_moves_is_reported(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    before = git(project, "rev-parse", "v1")
    (note,) = notes(open_sandbox(), "git tag -f v1 main >build/said")
    way_back(note, project)
    assert git(project, "rev-parse", "v1") == before


@pytest.mark.parametrize(
    "step",
    [
        OWN,
        "git merge -q --no-edit side",
        "git switch -q clash && git merge -q -s ours --no-edit main && git branch -q -f main clash",
        "git commit -q --allow-empty -m one && git pack-refs --all && git gc -q && git commit -q --allow-empty -m two",
    ],
)
def test_branch_that_moves_forward_is_not_reported(
    step: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    assert notes(open_sandbox(), step) == []


def test_commit_of_a_commands_own_may_be_replaced_without_a_note(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    assert notes(box, OWN) == []
    assert notes(box, "git commit -q --amend --allow-empty -m three") == []
    assert notes(box, "git reset -q --hard HEAD~2") == []
    (note,) = notes(box, "git reset -q --hard HEAD~1")
    assert "refs/heads/main" in note


@pytest.mark.parametrize("end", ["git rebase --abort", "git rebase --quit", "rm -rf .git/rebase-merge"])
def test_end_of_a_rebase_of_the_users_is_reported(
    end: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    assert outside(BEGIN, project).returncode == 0
    state = {path.name: path.read_bytes() for path in (project / ".git" / "rebase-merge").iterdir()}
    box = open_sandbox()
    assert notes(box, "git status >build/said") == []
    (note,) = notes(box, end)
    assert note.startswith("a command ended a rebase that the user began")
    assert not (project / ".git" / "rebase-merge").exists()
    way_back(note, project)
    assert {path.name: path.read_bytes() for path in (project / ".git" / "rebase-merge").iterdir()} == state
    if "abort" not in end:
        assert outside("git rebase --continue", project).returncode == 0
        assert git(project, "log", "-1", "--format=%s", "main") == "third"


def test_rebase_of_the_users_can_be_continued_by_a_command(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    assert outside(BEGIN, project).returncode == 0
    found = notes(open_sandbox(), "git commit -q --allow-empty -m between && git rebase --continue 2>build/said")
    assert [note for note in found if note.startswith("a command ended a rebase")]
    assert git(project, "log", "-2", "--format=%s", "main") == "third\nbetween"
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(project, "status", "--porcelain") == ""


def test_end_of_a_bisection_of_the_users_is_reported(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    assert outside("git bisect start main main~2", project).returncode == 0
    log = re.sub("#.*\n", "", (project / ".git" / "BISECT_LOG").read_text())
    (note,) = notes(open_sandbox(), "git bisect reset -q 2>build/said || git bisect reset >build/said 2>&1")
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/main"
    way_back(note, project)
    assert re.sub("#.*\n", "", (project / ".git" / "BISECT_LOG").read_text()) == log


def test_states_that_are_kept_do_not_pile_up(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    for _ in range(7):
        assert outside(BEGIN, project).returncode == 0
        assert len(notes(box, "git rebase --abort")) == 1
    assert len(list((project / ".git").glob(".corral-ended-*"))) == 5


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("git update-index --skip-worktree a.txt", "git inside does not show changes of a.txt"),
        ("git update-index --assume-unchanged a.txt", "git inside does not show changes of a.txt"),
        ("git update-index --index-version 4 --skip-worktree a.txt", "git inside does not show changes of a.txt"),
        ("echo a.txt >>.git/info/exclude", ".git/info/exclude stays in the sandbox"),
        ("echo '* -diff' >.git/info/attributes", ".git/info/attributes stays in the sandbox"),
    ],
)
def test_what_hides_changes_from_a_review_is_reported_once(
    step: str, told: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    notes(box, "git status")
    (note,) = notes(box, step)
    assert note.startswith(told)
    assert notes(box, "echo x >>a.txt; git status") == []
    # The user's git shows the change.
    assert " M a.txt" in git(project, "status", "--porcelain").splitlines() or "a.txt" in git(project, "diff")


def test_remote_that_is_written_into_the_file_crosses_at_once(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    notes(box, "git status")
    text = '[remote "elsewhere"]\n\turl = https://example.org/x.git\n'
    (note,) = notes(box, f"printf '{text}' >>.git/config")
    assert "remote.elsewhere.url" in note
    assert git(project, "remote").split() == ["elsewhere"]

"""The user's git and contained git commands work on one repository at the same time, and no commit of either is lost."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, outside, start_from, words
from observe import eventually
from sampling import sampled

from corral import Sandbox, SandboxResult

LOOP = r"""
n=0
until [ -e ../stop ]; do
    n=$((n + 1))
    git commit -q --allow-empty -m "user $n"
    if [ $((n % 10)) = 0 ]; then git pack-refs --all 2>/dev/null || true; git tag "t$n"; fi
done
echo $n >../count
"""
WAIT = "touch build/ready && until [ -e build/go ]; do sleep 0.01; done"


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    """A repository of the user's, with a branch for a second worktree."""
    project = start_from(git_template, "history", tmp_path / "place")
    git(project, "config", "gc.autoDetach", "false")
    return project


def run(box: Sandbox, step: str) -> SandboxResult:
    """Run a step as a contained command."""
    return box.run(words(step), env=environment(), timeout_seconds=60)


def meanwhile(box: Sandbox, command: str, user: str, project: Path) -> SandboxResult:
    """Run a step of the user's after a contained command has done its work and before it ends."""
    handle = box.start(words(f"{command} && {WAIT}"), env=environment(), timeout_seconds=60)
    eventually((project / "build" / "ready").exists)
    done = outside(user, project)
    (project / "build" / "go").touch()
    result = handle.wait()
    assert (done.returncode, result.exit_code) == (0, 0), (done.stderr, result.stderr_text)
    for name in ("ready", "go"):
        (project / "build" / name).unlink()
    return result


def kept(project: Path) -> list[str]:
    """Return the commits that corral kept aside."""
    return git(project, "for-each-ref", "--format=%(objectname)", "refs/corral").split()


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.real)])
def test_user_and_commands_commit_at_the_same_time(
    seconds: int, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    git(project, "worktree", "add", "-q", "-b", "mine", "../beside", "v1")
    env = os.environ | environment()
    user = subprocess.Popen(words(LOOP), cwd=project.parent / "beside", env=env, stderr=subprocess.PIPE)
    done = 0
    try:
        give_up_at = time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            done += 1
            result = run(box, f"echo {done} >>log.txt && git add log.txt && git commit -qm 'command {done}'")
            assert result.ok, (result.stderr_text, result)
    finally:
        (project.parent / "stop").touch()
        _, told = user.communicate()
    assert (user.returncode, told) == (0, b"")
    count = int((project.parent / "count").read_text())
    assert git(project, "log", "--reverse", "--format=%s", "v1..mine") == "\n".join(
        f"user {n + 1}" for n in range(count)
    )
    assert git(project, "log", "--reverse", "--format=%s", "v1..main").splitlines()[1:] == [
        f"command {n + 1}" for n in range(done)
    ]
    assert len(git(project, "tag", "--list", "t*").split()) == count // 10
    assert git(project, "status", "--porcelain") == ""
    assert kept(project) == []
    git(project, "fsck", "--full")


# The step of the command's, the step of the user's, the reference, and the revision that it must have afterwards.
CONFLICTS = {
    "both commit": ("git commit -q --allow-empty -m command", "git commit -q --allow-empty -m user", "main", "user"),
    "both make a branch": ("git branch new $NEW", "git branch new v1", "refs/heads/new", "v1"),
    "both make a tag": ("git tag new $NEW", "git tag new v1", "refs/tags/new", "v1"),
    "both move a branch": ("git branch -f side $NEW", "git branch -f side v1", "side", "v1"),
    "the user deletes what the command moves": ("git branch -f side $NEW", "git branch -q -D side", "side", ""),
}
NEW = "export NEW=$(git commit-tree -m new HEAD^{tree})"


@pytest.mark.parametrize("name", CONFLICTS)
def test_reference_that_both_change_stays_the_users(
    name: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    command, user, reference, revision = CONFLICTS[name]
    made = f"{NEW}; {command}; case '{command}' in *NEW*) echo $NEW;; *) git rev-parse HEAD;; esac >build/made"
    base = git(project, "rev-parse", "main")
    result = meanwhile(open_sandbox(), made, user, project)
    found = outside(f"git rev-parse -q --verify {reference}^{{commit}}", project).stdout.decode().strip()
    if revision == "user":
        assert git(project, "log", "-2", "--format=%s", reference) == "user\nthird"
        assert git(project, "rev-parse", f"{reference}~1") == base
    else:
        assert found == (git(project, "rev-parse", f"{revision}^{{commit}}") if revision else "")
    assert kept(project) == [(project / "build" / "made").read_text().strip()]
    assert "refs/corral/" in repr(result)
    git(project, "fsck", "--full")


def test_branch_that_the_user_moves_is_not_deleted(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    meanwhile(open_sandbox(), "git branch -q -D side", "git branch -f side v1", project)
    assert git(project, "rev-parse", "side") == git(project, "rev-parse", "v1")


def test_both_stage_and_both_are_staged(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    command = "echo x >x.txt && git add x.txt && git rm -q --cached b.txt"
    meanwhile(open_sandbox(), command, "echo y >y.txt && git add y.txt && git rm -q dir/c.txt", project)
    staged = git(project, "diff", "--cached", "--name-status").splitlines()
    assert staged == ["D\tb.txt", "D\tdir/c.txt", "A\tx.txt", "A\ty.txt"]


def test_entry_that_both_stage_stays_the_users(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    command = "echo command >a.txt && git add a.txt && echo x >x.txt && git add x.txt"
    meanwhile(open_sandbox(), command, "echo user >a.txt && git add a.txt", project)
    assert git(project, "show", ":a.txt") == "user"
    assert git(project, "show", ":x.txt") == "x"


def test_command_switches_while_the_user_commits(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    command = "git switch -q -c topic && echo x >x.txt && git add x.txt && git commit -qm command"
    meanwhile(
        open_sandbox(),
        command,
        "git update-ref refs/heads/main $(git commit-tree -p main -m user main^{tree})",
        project,
    )
    assert git(project, "log", "-1", "--format=%s", "main") == "user"
    assert git(project, "log", "-1", "--format=%s", "topic") == "command"
    assert kept(project) == []
    git(project, "fsck", "--full")


COMMITS = "for n in $(seq 100); do echo $n >f$n && git add f$n && git commit -qm $n && git tag t$n || exit 1; sleep 0.01; done; touch build/done"
# Commands that end while another one commits. Each of them makes the host compare both git directories.
MEANWHILE = {
    "nothing": "",
    "true": "true",
    "git status": "git --no-optional-locks status",
    "git branch": "git branch -f other HEAD",
    "git stash": "git stash list",
}


@pytest.mark.parametrize("name", sampled(MEANWHILE, keep=["git branch"]))
def test_long_command_loses_no_commit_to_others(name: str, project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box, step = open_sandbox(), MEANWHILE[name]
    assert run(box, "true").ok
    handle = box.start(words(COMMITS), env=environment(), timeout_seconds=120)
    while step and not (project / "build" / "done").exists() and handle.poll() is None:
        assert run(box, step).exit_code == 0
    result = handle.wait()
    assert result.exit_code == 0, result.stderr_text
    assert run(box, "true").ok
    expected = [str(n + 1) for n in range(100)]
    assert git(project, "log", "--reverse", "--format=%s", "v1..main").split()[1:] == expected
    assert sorted(git(project, "tag", "--list", "t*").split()) == sorted(f"t{n}" for n in expected)
    assert git(project, "status", "--porcelain") == ""
    assert kept(project) == []
    git(project, "fsck", "--full")


def test_commands_of_two_sandboxes_lose_nothing(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    one, two = open_sandbox(), open_sandbox()
    commands = [one.start(words(f"for n in 1 2 3 4 5; do git tag tag-{name}$n && git commit-tree -m {name}$n HEAD^{{tree}} "
                                f"| xargs git update-ref refs/heads/{name}$n; done && {WAIT}"), env=environment(), timeout_seconds=60)
                for name in ("a", "b")]  # fmt: skip
    commands.append(
        two.start(words(f"git branch c1 && git stash list && {WAIT}"), env=environment(), timeout_seconds=60)
    )
    eventually((project / "build" / "ready").exists)
    (project / "build" / "go").touch()
    assert [command.wait().exit_code for command in commands] == [0, 0, 0]
    assert run(one, "true").ok
    names = [f"{name}{n}" for name in "ab" for n in range(1, 6)]
    assert git(project, "tag", "--list", "tag-*").split() == [f"tag-{name}" for name in names]
    assert git(project, "branch", "--list", "--format=%(refname:lstrip=2)", "[abc][0-9]").split() == [*names, "c1"]
    git(project, "fsck", "--full")


def test_lock_of_the_users_is_reported_and_nothing_is_lost(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    lock = project / ".git" / "index.lock"
    before = git(project, "rev-parse", "main")
    assert run(box, "true").ok
    lock.touch()
    result = run(box, "echo x >x.txt && git add x.txt && git commit -qm 'under a lock' && touch build/made")
    assert (project / "build" / "made").exists(), result.stderr_text
    assert "index.lock" in f"{result.violations} {result.reason}"
    assert lock.exists()
    # All of an import crosses, or nothing.
    assert git(project, "rev-parse", "main") == before
    lock.unlink()
    assert run(box, "true").ok
    assert git(project, "log", "-1", "--format=%s") == "under a lock"
    assert git(project, "status", "--porcelain") == ""
    git(project, "fsck", "--full")


def test_lock_that_is_gone_soon_is_waited_for(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    assert run(box, "true").ok
    lock = project / ".git" / "index.lock"
    lock.touch()
    with subprocess.Popen(["sh", "-c", 'sleep 0.5; rm "$0"', str(lock)]):
        result = run(box, "echo x >x.txt && git add x.txt && git commit -qm 'after a lock'")
    assert result.ok, (result.stderr_text, result)
    assert git(project, "log", "-1", "--format=%s") == "after a lock"

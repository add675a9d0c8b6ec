"""Tests that replacing commits is asked about if a remote may have them, and allowed if none has."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from corral import Decision, SandboxConfig
from corral.guard.cache import VerdictCache
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Call

if TYPE_CHECKING:
    from pathlib import Path

ALLOW, ASK = Decision.ALLOW, Decision.ASK
AMEND = "git commit --amend -m y"


class Repository:
    """A repository for one test, and the guard's decisions on commands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def git(self, *words: str) -> str:
        settings = (
            "user.name=a",
            "user.email=a@example.org",
            "init.defaultBranch=main",
            "gc.auto=0",
            "commit.gpgSign=false",
        )
        options = [part for setting in settings for part in ("-c", setting)]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        done = subprocess.run(
            ["git", *options, *words], cwd=self.path, env=environment, capture_output=True, text=True, check=True
        )
        self._tick()
        return done.stdout.strip()

    def _tick(self) -> None:
        """Wait until the file system's clock has moved on, so that the next file is newer."""
        probe = self.path.parent / "probe"
        probe.write_text("")
        start = probe.stat().st_mtime_ns
        while probe.stat().st_mtime_ns == start:
            probe.write_text("")

    def commit(self, *options: str) -> None:
        self.git("commit", "--allow-empty", "-m", "x", *options)

    def says(self, command: str, root: Path | None = None) -> Decision:
        config = SandboxConfig(str(root or self.path), profile="workspace")
        return vet(Call(command, shell=True), config).decision


@pytest.fixture
def local(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "work")
    made.git("init", "-q")
    made.commit()
    made.commit()
    return made


@pytest.fixture
def pushed(tmp_path: Path, local: Repository) -> Repository:
    Repository(tmp_path / "origin").git("init", "-q", "--bare")
    local.git("remote", "add", "origin", "../origin")
    local.git("push", "-q", "-u", "origin", "main")
    return local


def test_commits_without_a_remote_are_unpushed(local: Repository) -> None:
    for command in (
        AMEND,
        "git commit --amend --no-edit",
        "git reset --soft HEAD~1",
        "git reset HEAD~1",
        "git reset --soft HEAD^",
    ):
        assert (command, local.says(command)) == (command, ALLOW)
    local.git("gc", "-q")
    assert local.says(AMEND) is ALLOW


def test_commits_with_an_unused_remote_are_unpushed(local: Repository) -> None:
    local.git("remote", "add", "origin", "../origin")
    assert local.says(AMEND) is ALLOW


def test_pushed_commit_is_asked_about(pushed: Repository) -> None:
    for command in (AMEND, "git reset --soft HEAD~1", "git reset HEAD~1", "git reset --soft @~"):
        assert (command, pushed.says(command)) == (command, ASK)


def test_only_commits_after_the_push_are_unpushed(pushed: Repository) -> None:
    pushed.commit()
    assert [pushed.says(c) for c in (AMEND, "git reset --soft HEAD~1", "git reset --soft HEAD~2")] == [
        ALLOW,
        ALLOW,
        ASK,
    ]
    pushed.commit("--amend")
    pushed.commit("--amend", "--no-edit")
    assert pushed.says(AMEND) is ALLOW
    pushed.commit()
    assert [pushed.says(f"git reset --soft HEAD~{n}") for n in (1, 2, 3)] == [ALLOW, ALLOW, ASK]
    pushed.git("push", "-q", "origin", "main")
    assert pushed.says(AMEND) is ASK


def test_lost_work_is_asked_about_without_a_remote(local: Repository) -> None:
    for command in (
        "git reset --hard HEAD~1",
        "git reset --soft ORIG_HEAD",
        "git reset --soft main",
        "git rebase main",
        "git branch -D x",
    ):
        assert (command, local.says(command)) == (command, ASK)


def test_fetched_commit_is_asked_about(tmp_path: Path, pushed: Repository) -> None:
    other = Repository(tmp_path / "other")
    other.git("clone", "-q", "../origin", ".")
    assert other.says(AMEND) is ASK
    pushed.commit()
    pushed.git("push", "-q", "origin", "main")
    other.git("pull", "-q", "--ff-only")
    assert other.says(AMEND) is ASK
    other.commit()
    assert other.says(AMEND) is ALLOW


def test_commit_fetched_by_url_is_asked_about(tmp_path: Path, pushed: Repository) -> None:
    other = Repository(tmp_path / "other")
    other.git("init", "-q")
    other.git("fetch", "-q", "../origin", "main")
    other.git("checkout", "-q", "--detach", "FETCH_HEAD")
    assert other.says(AMEND) is ASK
    other.commit()
    assert other.says(AMEND) is ALLOW


def test_packed_refs_and_packed_commits_count(pushed: Repository) -> None:
    pushed.git("pack-refs", "--all")
    assert pushed.says(AMEND) is ASK
    pushed.commit()
    assert pushed.says(AMEND) is ALLOW
    pushed.git("gc", "-q")
    assert pushed.says(AMEND) is ASK


def test_push_to_any_remote_counts(tmp_path: Path, pushed: Repository) -> None:
    Repository(tmp_path / "second").git("init", "-q", "--bare")
    pushed.git("remote", "add", "second", "../second")
    pushed.commit()
    assert pushed.says(AMEND) is ALLOW
    pushed.git("push", "-q", "second", "HEAD:refs/heads/topic/deep")
    assert pushed.says(AMEND) is ASK


def test_worktree_with_detached_head_has_its_own_commits(tmp_path: Path, pushed: Repository) -> None:
    pushed.git("worktree", "add", "-q", "--detach", "trees/a")
    tree = Repository(pushed.path / "trees" / "a")
    for root in (tree.path, pushed.path):
        assert tree.says(f"cd {tree.path} && {AMEND}", root) is ASK
    tree.commit()
    for root in (tree.path, pushed.path):
        assert tree.says(f"cd {tree.path} && {AMEND}", root) is ALLOW
    assert pushed.says(AMEND) is ASK
    assert pushed.says("git -C trees/a commit --amend -m y") is ALLOW


def test_new_branch_is_unpushed_until_its_push(pushed: Repository) -> None:
    pushed.git("checkout", "-q", "-b", "feature")
    pushed.commit()
    assert pushed.says(AMEND) is ALLOW
    pushed.git("push", "-q", "origin", "feature")
    assert pushed.says(AMEND) is ASK


@pytest.mark.parametrize("option", ["--single-branch", "--depth=1"])
def test_clone_of_one_branch_is_asked_about(tmp_path: Path, pushed: Repository, option: str) -> None:
    other = Repository(tmp_path / "other")
    other.git("clone", "-q", option, f"file://{tmp_path}/origin", ".")
    assert other.says(AMEND) is ASK
    other.git("checkout", "-q", "-b", "feature")
    other.commit()
    other.git("push", "-q", "origin", "feature")
    assert other.says(AMEND) is ASK  # this push left no tracking ref


def test_pushed_tag_is_asked_about(pushed: Repository) -> None:
    pushed.commit()
    pushed.git("tag", "v1")
    pushed.git("push", "-q", "origin", "v1")
    assert pushed.says(AMEND) is ASK
    pushed.git("pack-refs", "--all")
    assert pushed.says(AMEND) is ASK
    pushed.commit()
    assert pushed.says(AMEND) is ALLOW


def test_commit_for_review_is_asked_about(pushed: Repository) -> None:
    pushed.git("commit", "--allow-empty", "-m", "x", "-m", f"Change-Id: I{'0' * 40}")
    pushed.git("push", "-q", "origin", "HEAD:refs/for/main")
    assert pushed.says(AMEND) is ASK


def test_push_to_a_removed_remote_counts(pushed: Repository) -> None:
    pushed.git("remote", "remove", "origin")
    assert pushed.says(AMEND) is ASK


SETTINGS = {
    "an address as a branch's remote": ("branch.main.remote", "../origin"),
    "an address to push to": ("branch.main.pushRemote", "../origin"),
    "an address to push to by default": ("remote.pushDefault", "../origin"),
    "a remote without tracking refs": ("remote.other.url", "../origin"),
    "refs to push to": ("remote.origin.push", "HEAD:refs/for/main"),
    "a mirror": ("remote.origin.mirror", "true"),
    "tracking refs elsewhere": ("remote.other.fetch", "+refs/heads/*:refs/other/*"),
    "another file": ("include.path", "../x"),
    "another file on a condition": ("includeIf.gitdir:/.path", "../x"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_push_without_tracking_ref_is_asked_about(pushed: Repository, setting: str) -> None:
    pushed.commit()
    assert pushed.says(AMEND) is ALLOW
    pushed.git("config", *SETTINGS[setting])
    assert pushed.says(AMEND) is ASK


def test_untracked_branch_is_asked_about(pushed: Repository) -> None:
    pushed.commit()
    pushed.git("config", "--add", "remote.origin.fetch", "^refs/heads/main")
    assert pushed.says(AMEND) is ASK


def test_unusual_git_configuration_is_asked_about(pushed: Repository) -> None:
    pushed.commit()
    config = pushed.path / ".git" / "config"
    before = config.read_text()
    for added in (
        '[remote "x"] url = ../origin\n',
        "[remote.x]\nurl = ../origin\n",
        '[REMOTE "x"]\nurl = ../origin\n',
        '[remote\t"x"]\nurl = ../origin\n',
        '[branch "main"]\nremote = ../ori\\\ngin\n',
    ):
        config.write_text(before + added)
        assert (added, pushed.says(AMEND)) == (added, ASK)
    config.write_text(f"{before}[user]\n\tname = a # b\n")
    assert pushed.says(AMEND) is ALLOW


def test_commits_behind_a_merge_count_as_pushed(pushed: Repository) -> None:
    pushed.git("checkout", "-q", "-b", "side", "HEAD~1")
    pushed.commit("--author", "b <b@example.org>")
    pushed.git("checkout", "-q", "main")
    pushed.git("merge", "-q", "--no-edit", "side")
    assert [pushed.says(c) for c in (AMEND, "git reset --soft HEAD~2")] == [ALLOW, ASK]


def test_call_that_moves_head_first_is_asked_about(pushed: Repository) -> None:
    pushed.commit()
    for before in ("git checkout side", "git switch side", "git reset --keep main", "git x", "cd .. "):
        assert (before, pushed.says(f"{before}; {AMEND}")) != (before, ALLOW)
    assert pushed.says(f"git add -A && git status && {AMEND}") is ALLOW
    assert pushed.says(f"GIT_DIR=other {AMEND}") is ASK
    for wrapper in (
        "env GIT_DIR=other",
        "env -S 'GIT_DIR=other'",
        "bash -c 'GIT_DIR=other exec \"$@\"' x",
        "timeout 9 env",
    ):
        assert (wrapper, pushed.says(f"{wrapper} {AMEND}")) != (wrapper, ALLOW)
    for before in (
        "export GIT_DIR=other",
        "declare -x GIT_DIR=other",
        "read -r GIT_DIR",
        'export "$N=other"',
        "export $N",
        'declare -x "$N"=x',
    ):
        assert (before, pushed.says(f"{before}; {AMEND}")) != (before, ALLOW)
    assert pushed.says(f"git --git-dir=.git {AMEND.removeprefix('git ')}") is ASK


def test_unreadable_repository_is_asked_about(tmp_path: Path, local: Repository) -> None:
    assert Repository(tmp_path / "plain").says(AMEND) is ASK
    head = local.path / ".git" / "HEAD"
    for content in ("", "ref: refs/heads/none", "ref: ../../../etc/passwd", "x" * 40):
        head.write_text(content)
        assert (content, local.says(AMEND)) == (content, ASK)
    head.unlink()
    os.mkfifo(head)
    assert local.says(AMEND) is ASK


def test_push_invalidates_the_cached_verdict(pushed: Repository) -> None:
    pushed.commit()
    config = SandboxConfig(str(pushed.path), profile="workspace")
    cache, machine, call = VerdictCache(config), Machine.of(config), Call(AMEND, shell=True)
    assert [cache.vet(call, machine).decision for _ in range(2)] == [ALLOW, ALLOW]
    pushed.git("push", "-q", "origin", "main")
    assert cache.vet(call, machine).decision is ASK

"""A killed host process, a full disk and a read-only state directory lose no commit and leave no half of one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from time import sleep

import pytest
from git_world import git, start_from

from corral import Sandbox, SandboxConfig

ROUNDS = 20
MOST_SECONDS = 0.6
# The command records its commit itself: the record is there before the host knows that the command has ended.
COMMIT = "date +%N >>a.txt && git add a.txt && git commit -qm 'from {0}' && git rev-parse HEAD >>build/made"
HOST = f"""
import itertools, sys
from corral import Sandbox, SandboxConfig
box = Sandbox(SandboxConfig(sys.argv[1], profile="workspace"))
for number in itertools.count():
    result = box.run({COMMIT!r}.format(number), shell=True)
    print(result.exit_code, result.reason, result.stderr_text, flush=True)
"""
# Runs in a mount namespace of its own, so that the file system for the state is gone with it.
ON_A_DISK = """
import json, os, subprocess, sys
from corral import ContainmentError, Sandbox, SandboxConfig
project, state, mounting, freeing, *commands = sys.argv[1:]
for words in filter(None, [mounting]):
    subprocess.run(words.split(), check=True)
os.environ["XDG_STATE_HOME"] = state
outcomes = []
def run(box, command):
    result = box.run(command, shell=True)
    outcomes.append([result.ok, f"{result.reason} {result.violations} {result.stderr_text}"])
try:
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        run(box, commands[0])
        if freeing:
            subprocess.run(freeing.split(), check=True)
        for command in commands[1:]:
            run(box, command)
except ContainmentError as error:
    outcomes.append([False, str(error)])
print(json.dumps(outcomes))
"""


@pytest.fixture
def project(git_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of the user's with an identity, and a state directory of its own."""
    project = start_from(git_template, "history", tmp_path / "place")
    for key in ("name", "email"):
        git(project, "config", f"user.{key}", "someone")
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return project


def made(project: Path) -> set[str]:
    """Return the commits that commands have recorded."""
    record = project / "build" / "made"
    return set(record.read_text().split()) if record.exists() else set()


def killed_after(seconds: float, project: Path) -> None:
    """Start a host process whose commands commit, and kill it with SIGKILL some time after its first commit."""
    words = [sys.executable, "-c", HOST, str(project)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[0] == b"0"
        sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.real
def test_killed_host_loses_no_commit(project: Path) -> None:
    chance = Random(16)
    for number in range(ROUNDS):
        killed_after(chance.uniform(0, MOST_SECONDS), project)
        with Sandbox(SandboxConfig(project, profile="workspace")) as box:
            completed = box.run(["true"])
            assert completed.exit_code == 0, completed
            # Plain git leaves such locks too when it is killed. The user's git directory must have none.
            assert sorted((project / ".git").rglob("*.lock")) == []
            # The index must not show the reverse of a commit that crossed without it.
            assert git(project, "diff", "--cached", "--name-only") in ("", "a.txt")
            box.run("find .git -name '*.lock' -delete", shell=True)
            after = box.run(COMMIT.format(f"round {number}"), shell=True)
            assert after.ok, (after.stderr_text, after)
        assert git(project, "log", "-1", "--format=%s") == f"from round {number}", (
            completed.violations,
            after.violations,
        )
        assert made(project) <= set(git(project, "rev-list", "main").split())
        assert git(project, "diff", "--cached", "--name-only") == ""
        git(project, "fsck", "--full")


def on_a_disk(project: Path, mounting: str, freeing: str, *commands: str) -> list[tuple[bool, str]]:
    """Run commands in a host process whose state directory is on a file system of its own, and return whether each is ok and its message."""
    inside = ["unshare", "--mount"] if mounting else []
    words = [*inside, sys.executable, "-c", ON_A_DISK, str(project), os.environ["XDG_STATE_HOME"], mounting, freeing]
    done = subprocess.run([*words, *commands], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [(bool(ok), text) for ok, text in json.loads(done.stdout)]


@pytest.mark.real
@pytest.mark.parametrize("kib", [64, 256, 1024])
def test_full_disk_loses_no_commit(kib: int, project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of a given size")
    state = os.environ["XDG_STATE_HOME"]
    before = git(project, "rev-parse", "main")
    big = f"head -c 3000000 /dev/urandom >big && git add big && {COMMIT.format('a full disk')}"
    outcomes = on_a_disk(
        project,
        f"mount -t tmpfs -o size={kib}k none {state}",
        f"mount -o remount,size=256m {state}",
        big,
        "true",
        COMMIT.format("a free disk"),
    )
    assert [ok for ok, _ in outcomes][1:] in ([], [True, True]), outcomes
    git(project, "fsck", "--full")
    commits = git(project, "rev-list", "main").split()
    assert before in commits
    assert made(project) <= set(commits), outcomes
    if len(outcomes) > 1:
        assert git(project, "log", "-1", "--format=%s") == "from a free disk"
    else:
        assert (git(project, "rev-parse", "main"), outcomes[0][0]) == (before, False)


def test_read_only_state_loses_no_commit(project: Path, tmp_path: Path) -> None:
    state = os.environ["XDG_STATE_HOME"]
    (tmp_path / "state").chmod(0o500)
    # The permissions do not hold root.
    mounting = f"mount -t tmpfs -o ro none {state}" if os.geteuid() == 0 else ""
    before = git(project, "rev-parse", "main")
    outcomes = on_a_disk(project, mounting, "", COMMIT.format("a read-only disk"))
    (tmp_path / "state").chmod(0o700)
    git(project, "fsck", "--full")
    ((ok, text),) = outcomes
    if not ok:
        assert state in text
        assert git(project, "rev-parse", "main") == before
        with Sandbox(SandboxConfig(project, profile="workspace")) as box:
            assert box.run(["true"]).ok
    else:
        assert git(project, "status", "--porcelain") == ""
    assert made(project) <= set(git(project, "rev-list", "main").split())


@pytest.fixture
def temporary(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which copies lie if the state directory cannot be used, because commands can write it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def test_copies_in_a_temporary_directory_are_removed(project: Path, temporary: Path) -> None:
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        assert box.run(COMMIT.format("a temporary copy"), shell=True).exit_code == 0
        # The second repository leads to a new view of the first.
        assert box.run("git init -q sub", shell=True).exit_code == 0
        assert box.run(COMMIT.format("a temporary copy, again"), shell=True).exit_code == 0
        assert len(list(temporary.glob("corral-git-*"))) == 2
    assert git(project, "log", "-1", "--format=%s") == "from a temporary copy, again"
    assert list(temporary.glob("corral-git-*")) == []


def test_copy_in_a_temporary_directory_stays_while_work_is_in_it(project: Path, temporary: Path) -> None:
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        assert box.run(["true"]).ok
        (project / ".git" / "index.lock").touch()
        assert box.run(COMMIT.format("a lock"), shell=True).exit_code == 0
    (kept,) = temporary.glob("corral-git-*")
    assert (kept / "dir" / "logs" / "HEAD").read_text().endswith("commit: from a lock\n")


MAKER = """
import os, sys
from importlib import import_module
from corral import Sandbox, SandboxConfig
project, module, place, name = sys.argv[1:]
box = Sandbox(SandboxConfig(project, profile="workspace"))
assert box.run(["true"]).ok
target = import_module(module)
setattr(getattr(target, place) if place else target, name, lambda *_, **__: os.kill(os.getpid(), 9))
person = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a"}
box.run("git init -q -b main sub && cd sub && echo x >x.txt && git add . && git commit -qm made", shell=True, env=person)
"""
MAKING = {
    "after the move": ("corral.git.made_repositories", "", "_remake"),
    "before it is in its place": ("corral.git.made_repositories", "", "_place"),
    "when it is in its place": ("corral.git.mirror", "Mirror", "note_place"),
}


@pytest.mark.parametrize("at", MAKING)
def test_repository_of_a_killed_host_is_completed(at: str, project: Path) -> None:
    words = [sys.executable, "-c", MAKER, str(project), *MAKING[at]]
    assert subprocess.run(words, check=False, capture_output=True).returncode == -9
    with Sandbox(SandboxConfig(project, profile="workspace")) as box:
        assert box.run("git -C sub log --format=%s", shell=True).stdout_text == "made\n"
        assert git(project / "sub", "log", "--format=%s") == "made"
        assert git(project / "sub", "status", "--porcelain") == ""
    unfinished = Path(os.environ["XDG_STATE_HOME"], "corral", "git", ".unfinished")
    assert list(unfinished.iterdir()) == []


# Kills itself when it has taken away what the command took away.
TAKING = """
import os, sys
from corral import Sandbox, SandboxConfig
from corral.git import new_worktrees
from corral.git.comparison import Comparison
project, script = sys.argv[1:]
box = Sandbox(SandboxConfig(project, profile="workspace"))
assert box.run(["true"]).ok
update = Comparison._update_refs
Comparison._update_refs = lambda *words: (update(*words), os.kill(os.getpid(), 9))
new_worktrees.keep = lambda *_: os.kill(os.getpid(), 9)
box.run(["sh", script])
"""
# A commit that nothing else reaches, and a command that takes it away.
TAKEN = {
    "a deleted branch": ("branch lost {0}", "git branch -D lost"),
    "a removed worktree": ("worktree add -q --detach wt {0}", "git worktree remove --force wt"),
}


@pytest.mark.parametrize("what", TAKEN)
def test_host_that_is_killed_after_a_deletion_loses_no_commit(what: str, project: Path) -> None:
    lost = git(project, "commit-tree", "-m", "lost", "HEAD^{tree}")
    before, step = TAKEN[what]
    git(project, *before.format(lost).split())
    # In a script: by itself, the profile asks about such a command.
    (project / "step.sh").write_text(step)
    words = [sys.executable, "-c", TAKING, str(project), "step.sh"]
    assert subprocess.run(words, check=False, capture_output=True).returncode == -9
    assert lost not in git(project, "for-each-ref", "refs/heads", "--format=%(objectname)")
    assert "wt" not in git(project, "worktree", "list")
    assert git(project, "for-each-ref", "refs/corral", "--format=%(objectname)") == lost

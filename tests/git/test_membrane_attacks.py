"""Commands attack the comparison of their git directory with the user's. The user loses nothing, and later commands work."""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import Sandbox, SandboxResult

SHORT = 20.0  # seconds that a command may take on a busy machine


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[user]\n\tname = The User\n\temail = o@example.org\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def user(project: Path) -> Path:
    """The user's repository, with a branch that no other one reaches."""
    git(project, "init", "-q", "-b", "main")
    (project / "a").write_text("1\n")
    git(project, "add", "a")
    git(project, "commit", "-qm", "one")
    git(project, "checkout", "-qb", "work")
    git(project, "commit", "-q", "--allow-empty", "-m", "work")
    git(project, "checkout", "-q", "main")
    git(project, "remote", "add", "origin", "https://good.example/x")
    return project


def python(box: Sandbox, body: str) -> SandboxResult:
    result = box.run(
        ["python3", "-c", f"import os, subprocess\ndef sh(text): subprocess.run(text, shell=True)\n{body}"]
    )
    assert result.enforcement == "full"
    return result


def works(box: Sandbox, user: Path) -> bool:
    """Say whether the next command's commit reaches the user."""
    python(box, "sh('echo 2 >> a; git commit -qam next')")
    return git(user, "log", "-1", "--format=%s") == "next"


BROKEN = {
    "a symbolic ref with a null byte": "os.makedirs('.git/refs/remotes/o'); open('.git/refs/remotes/o/HEAD', 'wb').write(b'ref: refs/remotes/o/a\\0b')",
    "a worktree's path with a null byte": "os.makedirs('.git/worktrees/w'); open('.git/worktrees/w/gitdir', 'wb').write(b'/x\\0/.git'); open('.git/worktrees/w/HEAD', 'w').write('ref: refs/heads/z')",
    "a worktree's path that is no text": "os.makedirs('.git/worktrees/w'); os.mkdir(b'\\xff'); open('.git/worktrees/w/gitdir', 'wb').write(os.getcwdb() + b'/\\xff/.git'); open('.git/worktrees/w/HEAD', 'w').write('ref: refs/heads/z')",
    "a `.git` file with a null byte": "os.mkdir('sub'); open('sub/.git', 'wb').write(b'gitdir: /x\\0y')",
    "a branch whose name is no text": "open(b'.git/refs/heads/\\xff', 'w').write('a' * 40)",
    "a broken object": "os.makedirs('.git/objects/ab'); open('.git/objects/ab/' + 'ab' * 19, 'w').write('x'); open('.git/refs/heads/bad', 'w').write('ab' * 20)",
    "a broken pack": "os.makedirs('.git/objects/pack', exist_ok=True); open('.git/objects/pack/pack-' + 'a' * 40 + '.pack', 'w').write('PACK' * 30)",
    "refs that git refuses together": "sh('for i in $(seq 200); do git branch b$i; done'); open('.git/packed-refs', 'a').write(open('.git/refs/heads/b1').read().strip() + ' refs/heads/b1/x\\n')",
    "many names": "[open(f'.git/N{i}', 'w').close() for i in range(3000)]",
    "many worktrees": "os.makedirs('.git/worktrees'); [os.mkdir(f'.git/worktrees/w{i}') for i in range(3000)]",
    "a pipe in the place of a log": "sh('rm -f .git/logs/refs/heads/main; mkfifo .git/x; mkfifo .git/MERGE_MSG; rm .git/MERGE_MSG')",
    "a missing HEAD": "os.unlink('.git/HEAD')",
    "closed directories": "sh('chmod 000 .git/refs .git/info; chmod 000 .git')",
}


@pytest.mark.parametrize("case", BROKEN)
def test_later_commands_work(user: Path, held: Sandbox, case: str) -> None:
    python(held, BROKEN[case])

    assert works(held, user)
    assert git(user, "rev-parse", "work")
    assert len(held.run(["true"]).violations) <= 25


def test_refs_that_cannot_be_read_are_not_deleted(user: Path, held: Sandbox) -> None:
    python(held, "")
    before = git(user, "for-each-ref")

    python(held, "sh('rm .git/packed-refs; mkdir .git/packed-refs')")

    assert git(user, "for-each-ref") == before
    assert works(held, user)


def test_commits_of_a_deleted_branch_are_kept(user: Path, held: Sandbox) -> None:
    lost = git(user, "rev-parse", "work")

    result = python(held, "sh('git branch -D work; git branch merged')")
    python(held, "sh('git branch -d merged')")

    assert git(user, "branch", "--format=%(refname:short)") == "main"
    kept = git(user, "for-each-ref", "--format=%(objectname)", "refs/corral")
    assert kept == lost
    assert any("work was deleted" in violation.detail for violation in result.violations)


def test_a_dropped_stash_of_the_users_is_told(user: Path, held: Sandbox) -> None:
    (user / "a").write_text("stashed\n")
    git(user, "stash")
    oid = git(user, "rev-parse", "stash")

    result = python(held, "sh('git stash drop')")
    assert any(oid in violation.detail for violation in result.violations)

    python(held, "sh('echo 3 >> a; git stash')")
    assert not python(held, "sh('git stash drop')").violations


def test_a_command_never_changes_a_remote_of_the_users(user: Path, held: Sandbox) -> None:
    python(held, "sh('git remote add origin.x https://new.example/x')")
    python(held, "sh('git remote set-url origin https://evil.example/x')")

    assert git(user, "remote", "get-url", "origin") == "https://good.example/x"
    assert git(user, "remote", "get-url", "origin.x") == "https://new.example/x"


def test_a_remote_in_an_unusual_form_stays_the_users(user: Path, held: Sandbox) -> None:
    with (user / ".git" / "config").open("a") as file:
        file.write('[remote "up"] url = https://good.example/up\n')

    python(held, "sh('git config -f .git/config remote.up.url https://evil.example/x')")

    assert git(user, "remote", "get-url", "--all", "up") == "https://good.example/up"


def test_a_worktree_never_takes_the_place_of_a_git_file(user: Path, held: Sandbox) -> None:
    git(user, "worktree", "add", "-q", "side", "work")
    before = (user / "side" / ".git").read_text()

    for place in ("side/.git", ".git"):
        python(
            held,
            f"os.makedirs('.git/worktrees/evil', exist_ok=True)\n"
            f"open('.git/worktrees/evil/gitdir', 'w').write(os.getcwd() + '/{place}')\n"
            f"open('.git/worktrees/evil/HEAD', 'w').write('ref: refs/heads/evil')",
        )

    assert (user / "side" / ".git").read_text() == before
    assert sorted(os.listdir(user / ".git" / "worktrees")) == ["side"]


def test_an_index_or_merge_with_a_missing_object_stays_in_the_sandbox(user: Path, held: Sandbox) -> None:
    python(held, f"sh('git update-index --add --cacheinfo 100644,{'cd' * 20},x; echo {'ef' * 20} > .git/MERGE_HEAD')")

    assert git(user, "status", "--short") == ""
    assert not (user / ".git" / "MERGE_HEAD").exists()
    git(user, "commit", "-q", "--allow-empty", "-m", "of the user")


def test_staged_files_survive_a_lock_that_a_command_left(user: Path, held: Sandbox) -> None:
    python(held, "open('.git/index.lock', 'w').close()")
    (user / "mine").write_text("staged\n")
    git(user, "add", "mine")

    python(held, "")
    python(held, "os.unlink('.git/index.lock'); sh('echo x > theirs; git add theirs')")

    assert git(user, "diff", "--cached", "--name-only").split() == ["mine", "theirs"]


def test_a_lock_of_the_users_is_not_removed(user: Path, held: Sandbox) -> None:
    python(held, "sh('echo x > x; git add x')")

    left = [str(path) for path in (Path(os.environ["XDG_STATE_HOME"])).rglob("locked*")]
    assert left == []


def test_branches_made_during_comparisons_are_kept(user: Path, held: Sandbox) -> None:
    python(held, "sh('for i in $(seq 80); do git branch b$i; git commit -q --allow-empty -m $i; sleep 0.03; done')")

    assert len(git(user, "branch").split("\n")) == 82
    assert git(user, "rev-list", "--count", "HEAD") == "81"


def test_a_file_behind_an_object_is_not_read(user: Path, held: Sandbox) -> None:
    data = b"blob 3\0abc"
    oid = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    began = time.monotonic()
    python(
        held,
        f"import zlib\nos.makedirs('.git/objects/{oid[:2]}', exist_ok=True)\n"
        f"file = open('.git/objects/{oid[:2]}/{oid[2:]}', 'wb'); file.write(zlib.compress({data!r})); file.truncate(1 << 36); file.close()\n"
        f"sh('git update-index --add --cacheinfo 100644,{oid},x')",
    )

    assert time.monotonic() - began < SHORT
    assert git(user, "cat-file", "-p", ":x") == "abc"


def test_many_stashes_are_bounded(user: Path, held: Sandbox) -> None:
    began = time.monotonic()
    python(
        held,
        "sh('echo 4 >> a; git stash -q')\n"
        "oid = open('.git/refs/stash').read().strip()\n"
        "open('.git/logs/refs/stash', 'w').write(''.join(f'{oid} {oid} u <u@x> {i} +0000\\tm{i}\\n' for i in range(20000)))",
    )

    assert time.monotonic() - began < SHORT
    assert works(held, user)


EVIL = """[core]
	repositoryformatversion = 1
	sshCommand = touch {canary};
[extensions]
	partialClone = evil
[remote "evil"]
	url = ssh://x/y
	promisor = true
"""
PLANT = """
import os, time
until = time.monotonic() + 6
while time.monotonic() < until and not os.path.exists("stop"):
    try:
        if not os.path.exists("sub/.git/mine") and "partialClone" not in open("sub/.git/config").read():
            open("sub/.git/config", "w").write({evil!r})
    except OSError:
        pass
time.sleep(60)
"""
# A tree without its blob: a partial clone asks the remote for it.
MAKE = """
sh('rm -rf sub; git init -q sub')
open('sub/.git/mine', 'w').close()
def out(*words, given=b''): return subprocess.run(['git', '-C', 'sub', *words], input=given, capture_output=True).stdout.decode().strip()
tree = out('mktree', '--missing', given=b'100644 blob ' + b'12' * 20 + b'\\tf\\n')
out('update-ref', 'refs/heads/main', out('commit-tree', '-m', 'x', tree))
"""


def test_the_hosts_git_runs_no_program_of_a_command(user: Path, held: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (user / "plain").mkdir()
    git(user / "plain", "init", "-q")
    (user / "plain" / ".git" / "config").write_text(EVIL.format(canary=canary))
    subprocess.run(["git", "cat-file", "-e", "12" * 20], cwd=user / "plain", check=False, capture_output=True)
    assert canary.exists()  # the attack works without protection
    canary.unlink()
    subprocess.run(["rm", "-rf", user / "plain"], check=True)

    background = held.start(["python3", "-c", PLANT.format(evil=EVIL.format(canary=canary))])
    for _ in range(3):
        python(held, MAKE)
    held.close()

    assert background is not None
    assert not canary.exists()
    # Of the commands that remove and make the repository, the planter may leave none.
    config = user / "sub" / ".git" / "config"
    assert not config.exists() or "partialClone" not in config.read_text()


def test_a_repository_that_the_user_makes_between_commands_stays_the_users(held: Sandbox, project: Path) -> None:
    for name, ends in (("one", False), ("two", True)):
        git(project, "init", "-q", name)
        inode = (project / name / ".git").stat().st_ino
        if ends:
            held.close()
        else:
            assert python(held, "").violations == ()
        assert (project / name / ".git").stat().st_ino == inode


def test_a_repository_that_the_host_made_is_clean_when_the_sandbox_ends(user: Path, held: Sandbox) -> None:
    """A process in the background can still write it after the last result."""
    late = (
        "import os, time\n"
        "while not os.path.exists('sub/.git/HEAD') or os.path.exists('sub/.git/mine'): time.sleep(0.01)\n"
        "open('sub/.git/config', 'a').write('[core]\\n\\tfsmonitor = touch pwned\\n'); open('done', 'w').close()\n"
        "time.sleep(60)"
    )
    background = held.start(["python3", "-c", late])
    python(held, "os.makedirs('sub/.git'); open('sub/.git/mine', 'w').close(); sh('git init -q sub')")
    until = time.monotonic() + SHORT
    while not (user / "done").exists() and time.monotonic() < until:
        time.sleep(0.02)
    # The setting was written. A comparison while the process runs may have removed it already.
    assert (user / "done").exists()

    held.close()

    assert background is not None
    assert "fsmonitor" not in (user / "sub" / ".git" / "config").read_text()


def test_a_link_above_a_made_repository_leads_nowhere(
    open_sandbox: Callable[..., Sandbox], user: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    git(other, "commit", "-q", "--allow-empty", "-m", "of the user")
    before = git(other, "for-each-ref")
    held = open_sandbox()
    swap = (
        "import os, time\n"
        "until = time.monotonic() + 6\n"
        "while time.monotonic() < until:\n"
        "    if os.path.isdir('sub') and not os.path.islink('sub') and not os.path.exists('sub/.git') and os.path.exists('sub/ready'):\n"
        f"        os.rename('sub', f'old{{time.monotonic_ns()}}'); os.symlink({str(other)!r}, 'sub')\n"
    )
    handle = held.start(["python3", "-c", swap])
    for number in range(4):
        body = f"sh('rm -rf sub; mkdir sub; git init -q -b x{number} sub; git -C sub commit -q --allow-empty -m x'); open('sub/ready', 'w').close()"
        python(held, body)
    handle.kill()
    held.close()

    assert git(other, "for-each-ref") == before
    assert not (other / ".git" / "shallow").exists()


def test_bare_repository_in_place_of_the_project_is_moved_away(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    for path in project.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    held = open_sandbox()
    held.run(["git", "init", "-q", "--bare", "."])
    assert project.is_dir()
    assert not (project / "HEAD").exists()
    assert held.run(["true"]).ok


def test_second_pointer_to_a_git_directory_is_moved_away(user: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    result = open_sandbox().run("mkdir vendor && echo 'gitdir: ../.git' > vendor/.git", shell=True)
    assert [violation.kind for violation in result.violations] == ["planted"]
    assert not (user / "vendor" / ".git").exists()

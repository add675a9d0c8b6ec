"""Commands try to take work of the user's away without a note, and to put words of their own into the commands of a note."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Sandbox

STASH = "echo mine >> b.txt && git stash -q"
# A commit for each number, as loose objects.
MANY = (
    "(printf 'reset refs/heads/main\\nfrom %s\\n\\n' $(git rev-parse main); for n in $(seq {count}); do "
    "printf 'commit refs/heads/main\\ncommitter a <a@a> 1 +0000\\ndata 1\\nx\\n'; done) | git -c fastimport.unpackLimit=100000 fast-import --quiet --force"
)


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


def notes(box: Sandbox, step: str) -> list[str]:
    """Run a step as a contained command, and return what its result says of git."""
    result = box.run(words(step), env=environment(), timeout_seconds=100)
    assert result.exit_code == 0, (result.stderr_text, result)
    return [each.detail for each in result.violations if each.kind == "git"]


def told(found: list[str], what: str) -> list[str]:
    return [note for note in found if what in note]


MOVED_MAIN = "a command moved refs/heads/main"


def test_name_in_a_command_of_a_note_runs_nothing(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    name = "x&date>planted&y"
    git(project, "branch", name, "v1")
    # The canary: without quotes a shell runs a part of the name.
    outside(f"echo {name}; wait", project)
    assert (project / "planted").exists()
    (project / "planted").unlink()
    box = open_sandbox()
    (moved,) = notes(box, f"git update-ref 'refs/heads/{name}' side")
    outside(moved.partition("To restore it: ")[2], project)
    assert git(project, "rev-parse", name) == git(project, "rev-parse", "v1")
    git(project, "branch", "-f", name, git(project, "commit-tree", "-m", "lost", "HEAD^{tree}"))
    before = git(project, "rev-parse", name)
    (deleted,) = notes(box, f"git branch -q -D '{name}'")
    outside(deleted.partition("to restore it: ")[2], project)
    assert git(project, "rev-parse", name) == before
    assert not (project / "planted").exists()


def test_copy_of_the_users_commit_is_not_a_commands_own(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    git(project, "gc", "-q")
    tip = git(project, "rev-parse", "main")
    box = open_sandbox()
    copy = (
        "import hashlib, os, subprocess, zlib\n"
        f"data = subprocess.run(['git', 'cat-file', 'commit', '{tip}'], capture_output=True).stdout\n"
        "data = b'commit %d\\0' % len(data) + data\nname = hashlib.sha1(data).hexdigest()\n"
        "os.makedirs(f'.git/objects/{name[:2]}', exist_ok=True)\nopen(f'.git/objects/{name[:2]}/{name[2:]}', 'wb').write(zlib.compress(data))\n"
        "subprocess.run(['git', 'commit', '-q', '--allow-empty', '-m', 'next'], check=True)\n"
    )
    result = box.run(["python3", "-c", copy], env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, result.stderr_text
    assert told(notes(box, "git reset -q --hard v1"), MOVED_MAIN)


def test_many_commits_of_a_command_hide_no_loss(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    notes(box, MANY.format(count=500))
    assert git(project, "rev-list", "--count", "main") > "500"
    assert told(notes(box, "git reset -q --hard v1"), MOVED_MAIN)


def test_many_notes_hide_no_loss(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    refs = "for n in $(seq 30); do echo create refs/foo/$n HEAD; done | git update-ref --stdin; git reset -q --hard v1"
    assert told(notes(open_sandbox(), refs), MOVED_MAIN)


def test_many_moves_hide_no_loss(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    notes(box, "for n in $(seq 120); do echo create refs/heads/a$n main; done | git update-ref --stdin")
    step = (
        "for n in $(seq 120); do echo update refs/heads/a$n v1; done | git update-ref --stdin; git reset -q --hard v1"
    )
    assert told(notes(box, step), MOVED_MAIN)


def test_stash_that_a_command_stores_again_stays_the_users(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    outside(STASH, project)
    oid = git(project, "rev-parse", "stash")
    box = open_sandbox()
    notes(box, f"echo own >> b.txt && git stash -q && git stash store -m again {oid}")
    assert told(notes(box, "git stash clear"), oid)


def test_branch_that_a_command_deletes_and_makes_stays_the_users(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    git(project, "remote", "add", "one", "https://one.example/x")
    git(project, "remote", "add", "two", "https://two.example/x")
    git(project, "config", "branch.side.remote", "one")
    git(project, "config", "branch.side.merge", "refs/heads/side")
    box = open_sandbox()
    notes(box, "git branch -q -m side other")
    notes(box, "git branch -q -m other side && git config branch.side.remote two")
    assert outside("git config branch.side.remote | grep two", project).returncode == 1


def test_commit_on_no_branch_of_a_new_worktree_crosses(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    notes(open_sandbox(), "git worktree add -q --detach wt && git -C wt commit -q --allow-empty -m mine")
    assert git(project / "wt", "log", "-1", "--format=%s") == "mine"
    assert git(project, "fsck") == ""


def test_submodule_of_a_command_moves_no_repository_of_the_users(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    done = outside(
        "git -c protocol.file.allow=always submodule -q add --name lib/foo $PWD/.git sub && git commit -qm sub", project
    )
    assert done.returncode == 0, done
    before = git(project / "sub", "rev-parse", "HEAD")
    step = "mkdir -p x .git/modules/lib/objects .git/modules/lib/refs && echo 'ref: refs/heads/main' > .git/modules/lib/HEAD && echo 'gitdir: ../.git/modules/lib' > x/.git"
    notes(open_sandbox(), step)
    assert git(project / "sub", "rev-parse", "HEAD") == before
    assert (project / ".git" / "modules" / "lib" / "foo" / "HEAD").exists()


def test_refused_ref_beside_a_deleted_branch_hides_no_loss(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    git(project, "branch", "lost", git(project, "commit-tree", "-m", "lost", "HEAD^{tree}"))
    lost = git(project, "rev-parse", "lost")
    # Git refuses a ref below the name of another one.
    step = "git branch -q -D lost && echo $(git rev-parse HEAD) refs/heads/main/below >> .git/packed-refs"
    (deleted,) = told(notes(open_sandbox(), step), "refs/heads/lost was deleted by a command")
    outside(deleted.partition("to restore it: ")[2], project)
    assert git(project, "rev-parse", "lost") == lost


def test_renamed_branch_is_no_loss(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    git(project, "branch", "lost", git(project, "commit-tree", "-m", "lost", "HEAD^{tree}"))
    assert told(notes(open_sandbox(), "git branch -q -m lost found"), "deleted") == []
    assert git(project, "for-each-ref", "refs/corral") == ""


def test_repository_among_the_users_files_is_reported(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    folder = project / "kept"
    folder.mkdir()
    (folder / "file").touch()
    git(project, "add", "kept")
    box = open_sandbox()
    (note,) = notes(box, "git init -q kept && git init -q new")
    assert note.startswith(f"a command made a repository in {folder}, whose files {project}/.git tracks")
    assert notes(box, "true") == []

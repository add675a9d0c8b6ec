"""Work in git that may not cross stays in the sandbox, and later commands go on with it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, outside, start_from, words
from observe import eventually

from corral import Sandbox, SandboxResult
from corral.git.membrane import Membrane

# A commit that git's checks refuse: it has no author. It is at HEAD, and the index has its tree.
BROKEN = (
    "echo x >x.txt && git add x.txt && printf 'tree %s\\n\\nno author\\n' $(git write-tree) >build/commit && "
    "git hash-object -t commit --literally -w build/commit >build/name"
)


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


def run(box: Sandbox, step: str) -> SandboxResult:
    """Run a step as a contained command that must succeed."""
    result = box.run(words(step), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    return result


def said(box: Sandbox, step: str) -> str:
    """Return the output of a contained command."""
    return run(box, step).stdout_text.strip()


def test_branch_that_may_not_cross_stays_current_for_later_commands(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    result = run(box, "git switch -qc deadbeef1 && echo x >x.txt && git add x.txt && git commit -qm 'on it'")
    assert "deadbeef1 is not a branch that can cross" in repr(result.violations)
    made = said(box, "git rev-parse HEAD")
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/main"
    # The index shows no change since a commit that the user does not have.
    assert git(project, "diff", "--cached", "--name-only") == ""

    # The user works meanwhile.
    assert outside("echo y >y.txt && git add y.txt && git commit -qm user", project).returncode == 0

    assert said(box, "git symbolic-ref HEAD && git rev-parse HEAD").split() == ["refs/heads/deadbeef1", made]
    assert said(box, "git diff --cached --name-only") == ""
    assert said(open_sandbox(), "git symbolic-ref HEAD") == "refs/heads/deadbeef1"
    assert not run(box, "true").violations

    run(box, "git commit -q --allow-empty -m again && git switch -qc topic")
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/topic"
    assert git(project, "log", "-2", "--format=%s") == "again\non it"
    assert git(project, "log", "-1", "--format=%s", "main") == "user"
    assert git(project, "ls-files", "x.txt", "y.txt") == "x.txt\ny.txt"


@pytest.mark.parametrize("moved", ["git checkout -q --detach && git update-ref --no-deref HEAD", "git update-ref HEAD"])
def test_refused_commit_stays_at_head_for_later_commands(
    moved: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    before = git(project, "rev-parse", "HEAD")
    result = run(box, f"{BROKEN} && {moved} $(cat build/name)")
    assert "stay" in repr(result.violations)
    assert git(project, "rev-parse", "HEAD") == before
    assert outside("git tag user && echo y >y.txt && git add y.txt", project).returncode == 0

    assert said(box, "git rev-parse HEAD") == (project / "build/name").read_text().strip()
    assert said(box, "git diff --cached --name-only HEAD -- x.txt") == ""
    assert git(project, "rev-parse", "HEAD") == before
    git(project, "fsck", "--full")


def test_branch_whose_commit_was_refused_does_not_become_current(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    run(box, f"{BROKEN} && git update-ref refs/heads/topic $(cat build/name) && git symbolic-ref HEAD refs/heads/topic")
    # Else the user's branch would have no commit.
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert said(box, "git symbolic-ref HEAD") == "refs/heads/topic"


def test_detached_head_that_both_move_is_kept(
    project: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a comparison between the two moves would see only one of them.
    monkeypatch.setattr(Membrane, "compare_meanwhile", lambda *_: None)
    box = open_sandbox()
    run(box, "true")
    handle = box.start(
        words(
            "git checkout -q --detach && git commit -q --allow-empty -m command && git rev-parse HEAD >build/made && "
            "touch build/ready && until [ -e build/go ]; do sleep 0.01; done"
        ),
        env=environment(),
        timeout_seconds=60,
    )
    eventually((project / "build" / "ready").exists)
    assert outside("git symbolic-ref HEAD refs/heads/side", project).returncode == 0
    (project / "build" / "go").touch()
    result = handle.wait()
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/side"
    assert "the user's stays" in repr(result.violations)
    kept = git(project, "for-each-ref", "--format=%(objectname)", "refs/corral").split()
    assert kept == [(project / "build" / "made").read_text().strip()]


def test_refused_index_stays_for_later_commands(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    # Git itself adds no such path.
    forge = (
        "import hashlib; data = open('build/i', 'rb').read()[:-20]; data = data.replace(b'.gij/x', b'.git/x');"
        "open('build/i', 'wb').write(data + hashlib.sha1(data).digest())"
    )
    step = (
        "echo x >x.txt && cp .git/index build/i && export GIT_INDEX_FILE=$PWD/build/i && git add x.txt && "
        "git update-index --add --cacheinfo 100644,$(git rev-parse HEAD:b.txt),.gij/x && "
    )
    result = run(box, f'{step} python3 -c "{forge}" && mv build/i .git/index')
    assert "the index stays in the sandbox" in repr(result.violations)
    assert outside("echo y >y.txt && git add y.txt", project).returncode == 0
    assert said(box, "git ls-files x.txt .git/x y.txt").split() == [".git/x", "x.txt"]
    assert git(project, "diff", "--cached", "--name-only") == "y.txt"

    run(box, "git read-tree HEAD && git add x.txt")
    assert git(project, "diff", "--cached", "--name-only").split() == ["x.txt", "y.txt"]
    assert said(box, "git diff --cached --name-only").split() == ["x.txt", "y.txt"]

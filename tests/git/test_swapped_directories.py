"""A command puts a link in the place of a directory above a repository while the host writes into the repository."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EXDEV
from pathlib import Path
from typing import Any

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Sandbox, SandboxResult
from corral.git import made_repositories
from corral.git.comparison import Comparison
from corral.git.restore import restore
from corral.transactions import git_changes

# One step for each thing that the host writes into a git directory of the user's.
STEPS = {
    "commit": "echo x >x.txt && git add x.txt && git commit -qm command",
    "many objects": "for n in $(seq 250); do echo $n >n$n; done && git add . && git commit -qm command",
    "staged file": "echo x >x.txt && git add x.txt",
    "branch": "git branch new",
    "deleted branch": "git branch -D side",
    "detached head": "git checkout -q --detach v1",
    "switch": "git switch -q side",
    "stash": "echo x >>a.txt && git stash -q",
    "remote": "git remote add elsewhere https://example.org/x.git",
    "merge in progress": "git merge clash || true",
    "large file": "d=$(printf x | sha256sum | cut -c-64) && mkdir -p .git/lfs/objects/${d:0:2}/${d:2:2} && "
    "printf x >.git/lfs/objects/${d:0:2}/${d:2:2}/$d && git commit -q --allow-empty -m command",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "place"
    project.mkdir()
    return project


@pytest.fixture
def sub(project: Path, git_template: Path) -> Path:
    """A repository of the user's in a directory of the project, which commands can rename."""
    return start_from(git_template, "history", project / "above")


@contextmanager
def swapped(sub: Path, victim: Path) -> Iterator[None]:
    """Put a link to a directory outside in the place of the one above the repository."""
    above, aside = sub.parent, sub.parent.with_name("aside")
    os.rename(above, aside)
    above.symlink_to(victim)
    try:
        yield
    finally:
        above.unlink()
        os.rename(aside, above)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(box: Sandbox, step: str, sub: Path) -> SandboxResult:
    result = box.run(words(step), cwd=str(sub), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    return result


@pytest.mark.parametrize("name", STEPS)
def test_host_writes_into_no_repository_outside(
    name: str, sub: Path, tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, plain = tmp_path / "victim", tmp_path / "plain"
    for folder in (victim, plain):
        shutil.copytree(sub.parent, folder, symlinks=True)
    before = bytes_of(victim)
    box = open_sandbox()
    run(box, "true", sub)
    compare = Comparison.run

    def run_swapped(comparison: Comparison) -> bool:
        with swapped(sub, victim):
            return compare(comparison)

    with monkeypatch.context() as patch:
        patch.setattr(Comparison, "run", run_swapped)
        run(box, STEPS[name], sub)
    assert bytes_of(victim) == before
    # Everything crossed into the user's own.
    assert outside(STEPS[name], plain / "project").returncode == 0
    assert _shown(sub) == _shown(plain / "project")
    git(sub, "fsck", "--full")


SHOWN = (
    ["for-each-ref", "--format=%(refname) %(tree)"],
    ["ls-files", "-s"],
    ["remote"],
    ["rev-parse", "--symbolic-full-name", "HEAD"],
)


def _shown(folder: Path) -> list[str]:
    """Return what the user's git shows, without what corral keeps of deleted branches."""
    text = "\n".join(git(folder, *each) for each in SHOWN)
    return [line for line in text.splitlines() if not line.startswith("refs/corral/")]


class OtherDisk:
    """The module os, where the state directory is on another disk and a command swaps each directory that the host makes."""

    def __init__(self, victim: Path) -> None:
        self._victim = victim

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def rename(self, source: str, target: str, **given: int) -> None:
        if "dst_dir_fd" in given:
            raise OSError(EXDEV, "another disk")
        os.rename(source, target, **given)

    def mkdir(self, path: str, mode: int, **given: int) -> None:
        os.mkdir(path, mode, **given)
        if "dir_fd" in given:
            os.rename(path, "aside", src_dir_fd=given["dir_fd"], dst_dir_fd=given["dir_fd"])
            os.symlink(self._victim, path, dir_fd=given["dir_fd"])


@pytest.mark.parametrize("is_swapped", [False, True])
def test_new_repository_from_another_disk_is_written_into_no_directory_outside(
    is_swapped: bool, sub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, built, project = tmp_path / "victim", tmp_path / "built", tmp_path / "new"
    for folder in (victim, project):
        folder.mkdir()
    shutil.copytree(sub / ".git", built)
    other = OtherDisk(victim)
    if not is_swapped:
        monkeypatch.setattr(OtherDisk, "mkdir", lambda _, *given, **more: os.mkdir(*given, **more))
    monkeypatch.setattr(made_repositories, "os", other)
    above = os.open(project, os.O_RDONLY)
    try:
        if is_swapped:
            with pytest.raises(OSError, match=r"[Nn]ot a directory|symbolic"):
                made_repositories._place(str(built), above, ".git")
        else:
            made_repositories._place(str(built), above, ".git")
            assert bytes_of(project / ".git") == bytes_of(built)
            git(project, "fsck", "--full")
    finally:
        os.close(above)
    assert os.listdir(victim) == []


def test_undo_writes_into_no_repository_outside(
    sub: Path, tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    shutil.copytree(sub.parent, victim, symlinks=True)
    before, head = bytes_of(victim), git(sub, "rev-parse", "main")
    box = open_sandbox()
    with box.transaction() as tx:
        assert tx.run(words(STEPS["commit"]), cwd=str(sub), env=environment()).exit_code == 0
        assert tx.apply().ok

    def restored(*given: object) -> list[tuple[str, str]]:
        with swapped(sub, victim):
            return restore(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(git_changes, "restore", restored)
    undone = box.undo()
    assert bytes_of(victim) == before
    # It is reported, since the user's own is not in its place.
    assert undone.refused
    assert git(sub, "rev-parse", "main") != head

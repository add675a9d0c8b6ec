"""Refs are read correctly while the user's git packs them."""

from collections.abc import Callable, Iterator
from os import stat_result
from pathlib import Path

import pytest
from git_world import git, start_from

from corral.git.refs import read_refs, update_ref
from corral.git.safe_files import SafeTree

Change = Callable[[], object]


class WhilePackedAreRead(SafeTree):
    """A git directory that changes right after its packed refs were read."""

    change: Change

    def read(self, path: str, max_bytes: int) -> bytes | None:
        data = super().read(path, max_bytes)
        if path == "packed-refs":
            self.change()
        return data


class WhileLooseAreRead(SafeTree):
    """A git directory that changes after its loose refs were listed, before they are read."""

    change: Change

    def files(self, path: str) -> Iterator[tuple[str, stat_result]]:
        found = list(super().files(path))
        self.change()
        yield from found


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    """A repository whose packed refs are older than its loose ones."""
    project = start_from(git_template, "history", tmp_path / "place")
    git(project, "pack-refs", "--all")
    git(project, "commit", "-q", "--allow-empty", "-m", "newer")
    return project


@pytest.mark.parametrize("kind", [WhilePackedAreRead, WhileLooseAreRead])
def test_ref_that_is_packed_meanwhile_is_not_read_with_an_old_value(
    kind: type[WhilePackedAreRead | WhileLooseAreRead], project: Path
) -> None:
    with kind(str(project / ".git")) as tree:
        tree.change = lambda: git(project, "pack-refs", "--all")
        assert read_refs(tree)["refs/heads/main"] == git(project, "rev-parse", "main")


def test_packed_ref_is_not_deleted_while_git_writes_the_packed_refs(project: Path) -> None:
    old = git(project, "rev-parse", "refs/heads/side")
    (project / ".git" / "packed-refs.lock").touch()
    with SafeTree(str(project / ".git")) as tree:
        assert not update_ref(tree, "refs/heads/side", old, "")
        assert git(project, "rev-parse", "refs/heads/side") == old
        (project / ".git" / "packed-refs.lock").unlink()
        assert update_ref(tree, "refs/heads/side", old, "")
    assert git(project, "branch", "--list", "side") == ""
    git(project, "branch", "side", old)

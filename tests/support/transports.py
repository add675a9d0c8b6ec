"""Makes a project with remotes, and runs git in a sandbox that has the transports of some grants."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from corral import Containment, Sandbox, SandboxConfig
from corral.broker.transport_openings import open_transports
from corral.model.grant import TRANSPORT, Grant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from corral.broker.server import BrokerServer
    from corral.model.result import SandboxResult

PERSON = {
    f"GIT_{role}_{key}": f"person@{key.lower()}.example"
    for role in ("AUTHOR", "COMMITTER")
    for key in ("NAME", "EMAIL")
}


def git(folder: Path, *words: str) -> str:
    """Return the output of a git command outside that must succeed."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env=os.environ | PERSON, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@cache
def _templates() -> tempfile.TemporaryDirectory[str]:
    """Return a directory with the repositories that all tests begin with: `remote`, and a clone of it, `project`."""
    made = tempfile.TemporaryDirectory(prefix="corral-transports-")
    remote, seed, project = (Path(made.name) / name for name in ("remote", "seed", "project"))
    for folder in (remote, seed, project):
        folder.mkdir()
    git(remote, "init", "-q", "--bare", "-b", "main")
    git(seed, "init", "-q", "-b", "main")
    (seed / "a.txt").write_text("one\n")
    git(seed, "add", ".")
    git(seed, "commit", "-qm", "first")
    git(seed, "tag", "v1")
    git(seed, "push", "-q", str(remote), "main", "main:old", "v1")
    git(project, "clone", "-q", str(remote), ".")
    git(project, "switch", "-qc", "work")
    (project / "b.txt").write_text("two\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "second")
    git(project, "branch", "apart", git(project, "commit-tree", "-m", "of its own", "HEAD^{tree}"))
    return made


def make_remote(folder: Path) -> Path:
    """Make a bare repository with the default branch `main`, a branch `old` and a tag `v1`."""
    shutil.copytree(Path(_templates().name) / "remote", folder)
    return folder


def make_project(folder: Path, url: str) -> None:
    """Make a clone of a remote with one commit more on the branch `work`, and an unrelated branch `apart`. Its `origin` is the URL."""
    shutil.copytree(Path(_templates().name) / "project", folder, dirs_exist_ok=True)
    git(folder, "remote", "set-url", "origin", url)


def refs(remote: Path) -> dict[str, str]:
    """Return the refs of a repository."""
    lines = git(remote, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return {name: oid for name, _, oid in (line.partition(" ") for line in lines)}


class Opened:
    """A sandbox with transports."""

    def __init__(self, box: Sandbox, server: BrokerServer, project: Path) -> None:
        self.box = box
        self.server = server
        self.project = project

    def run(self, text: str) -> SandboxResult:
        """Run shell text from a script, whose commands the guard does not judge."""
        (self.project / "run.sh").write_text(text)
        result = self.box.run(["bash", "run.sh"])
        assert not result.denied, result.reason
        return result

    def refusals(self) -> list[str]:
        """Return why the broker refused requests."""
        return [one.refusal for one in self.server.served() if one.refusal]


@contextmanager
def transports(project: Path, *targets: str, **containment: Any) -> Iterator[Opened]:
    """Open a sandbox with these transports."""
    config = SandboxConfig(
        str(project), profile="workspace", timeout_seconds=120, containment=Containment(**containment)
    )
    opened, server = open_transports(config, [Grant(TRANSPORT, target) for target in targets], os.environ)
    assert server is not None
    try:
        with Sandbox(opened) as box:
            yield Opened(box, server, project)
    finally:
        server.close()

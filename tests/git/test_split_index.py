"""An index that git has split crosses like any other."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Sandbox
from corral.git import index_file
from corral.git.safe_files import SafeTree
from corral.git.split_index import read_index

SPLIT = "git update-index --split-index"
# Fewer changed entries than this share of all, and git does not write a new shared index.
KEEP = "git config splitIndex.maxPercentChange 100"
CHANGES = "echo x >x.txt && git add x.txt && git rm -q --cached b.txt && echo c >>a.txt && git add a.txt"


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


def run(box: Sandbox, step: str) -> str:
    result = box.run(words(step), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    assert "index stays" not in repr(result.violations)
    return result.stdout_text


@pytest.mark.parametrize(
    "steps",
    [
        (f"{SPLIT} && {CHANGES}",),
        (f"{KEEP} && {SPLIT}", CHANGES),
        (f"{KEEP} && {SPLIT}", CHANGES, "git rm -q --cached x.txt && git add b.txt", "git commit -qm split"),
        (f"{KEEP} && {SPLIT} && git rm -q -r --cached . && git add a.txt dir",),
    ],
)
def test_split_index_of_a_command_crosses(
    steps: tuple[str, ...], project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    box = open_sandbox()
    for step in steps:
        shown = run(box, f"{step} >build/said && git ls-files -s")
        assert git(project, "ls-files", "-s") == shown.strip()
    git(project, "fsck", "--full")
    git(project, "diff", "--cached", "--name-only")


def test_split_index_of_the_users_is_read_and_gets_changes(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    assert outside(f"{KEEP} && {SPLIT} && echo y >y.txt && git add y.txt", project).returncode == 0
    assert list((project / ".git").glob("sharedindex.*"))
    box = open_sandbox()
    assert "y.txt" in run(box, "git ls-files")
    shown = run(box, f"{CHANGES} && git ls-files -s")
    assert git(project, "ls-files", "-s") == shown.strip()
    assert outside(f"{SPLIT} && echo z >z.txt && git add z.txt", project).returncode == 0
    assert run(box, "git ls-files -s").strip() == git(project, "ls-files", "-s")
    assert git(project, "status", "--porcelain", "x.txt") == "A  x.txt"


def test_every_split_index_is_read_as_git_reads_it(project: Path) -> None:
    chance = Random(16)
    assert (
        outside(f"{KEEP} && for n in $(seq 300); do echo $n >f$n; done && git add . && {SPLIT}", project).returncode
        == 0
    )
    for number in range(12):
        names = [f"f{chance.randrange(1, 400)}" for _ in range(chance.randrange(1, 90))]
        step = f"for n in {' '.join(names)}; do echo {number} >$n; done; git add {' '.join(names)}"
        gone = {f"f{chance.randrange(1, 300)}" for _ in range(chance.randrange(0, 90))}
        step += f"; git rm -q --cached --ignore-unmatch {' '.join(gone)} none"
        assert outside(step, project).returncode == 0
        with SafeTree(str(project / ".git")) as tree:
            data = read_index(tree, "")
        assert data is not None
        listed = [
            f"{each.mode:o} {each.oid.hex()} {each.stage}\t{each.path.decode()}" for each in index_file.entries(data)
        ]
        assert "\n".join(listed) == git(project, "ls-files", "-s"), number
        # Git finds the same facts about files in it.
        whole = project / "build" / "whole"
        whole.write_bytes(data)
        listing = "git ls-files -s --debug | sed 's/flags:.*//'"  # some flags exist only in memory
        shown = outside(f"GIT_INDEX_FILE=build/whole {listing}", project).stdout
        assert shown == outside(listing, project).stdout


def test_broken_link_to_a_shared_index_is_refused(project: Path) -> None:
    assert outside(f"{KEEP} && {SPLIT} && {CHANGES}", project).returncode == 0
    index = project / ".git" / "index"
    data = index.read_bytes()
    at = data.index(b"link")
    size = struct.unpack_from(">I", data, at + 4)[0]
    link, chance = data[at + 8 : at + 8 + size], Random(16)
    for _ in range(300):
        broken = bytearray(link[: chance.choice((size, size, chance.randrange(20, size)))])
        for _ in range(chance.randrange(1, 5)):
            broken[chance.randrange(20 if len(broken) > 20 else 0, len(broken))] = chance.randrange(256)
        body = data[:at] + b"link" + struct.pack(">I", len(broken)) + bytes(broken)
        index.write_bytes(body + hashlib.sha1(body).digest())
        with SafeTree(str(project / ".git")) as tree:
            found = read_index(tree, "")
        assert found is not None
        try:
            assert len(list(index_file.entries(found))) < 30
        except index_file.IndexFormatError:
            continue

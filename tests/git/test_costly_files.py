"""Commands leave files that cost the host time, memory or disk space. The host takes a bounded part of each, and work still crosses."""

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, start_from

from corral import Sandbox, SandboxResult
from corral.git import host_git, made_repositories

GIB = 1 << 30
# A pack of some kilobytes: a blob of 16 MiB, and deltas that each make it again, four times over and with another last byte.
BOMB = """
import hashlib, struct, zlib, os
def head(kind, size):
    first, size = kind << 4 | size & 15, size >> 4
    out = bytearray()
    while size:
        out.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    return bytes(out) + bytes([first])
def length(size):
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(out) + bytes([size])
size, times, count = (1 << 24) - 1, 4, 4000
base = bytes(size)
name = hashlib.sha1(b"blob %d\\0" % size + base).digest()
pack = b"PACK" + struct.pack(">II", 2, count + 1) + head(3, size) + zlib.compress(base)
whole = bytes([0x80 | 0x70, 0xFF, 0xFF, 0xFF])
for number in range(count):
    last = struct.pack(">I", number)
    delta = length(size) + length(size * times + 4) + whole * times + bytes([4]) + last
    pack += head(7, len(delta)) + name + zlib.compress(delta)
pack += hashlib.sha1(pack).digest()
os.makedirs(".git/objects/pack", exist_ok=True)
open(f".git/objects/pack/pack-{pack[-20:].hex()}.pack", "wb").write(pack)
"""


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


def run(box: Sandbox, body: str) -> SandboxResult:
    """Run a Python program and a commit as one contained command."""
    commit = (
        "\nimport subprocess\nsubprocess.run(['git', 'commit', '-q', '--allow-empty', '-m', 'beside it'], check=True)"
    )
    result = box.run(["python3", "-c", body + commit], env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    return result


def notes(result: SandboxResult) -> list[str]:
    return [each.detail for each in result.violations if each.kind == "git"]


@pytest.mark.real
def test_pack_that_unfolds_without_end_keeps_no_work_back(
    project: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = open_sandbox()
    run(box, "")
    # The bound of the product is two minutes.
    monkeypatch.setattr(host_git, "MAX_SECONDS", 8.0)
    (note,) = notes(run(box, BOMB))
    assert "stay in the sandbox: git did not check the new packs" in note
    monkeypatch.undo()
    assert git(project, "log", "-1", "--format=%s") == "beside it"
    # It is not tried again: that would take longer than the commands.
    assert notes(run(box, "")) == []
    assert list((project / ".git" / "objects").glob("tmp_objdir*")) == []
    assert list((project / ".git" / "objects" / "pack").glob("*.pack")) == []


def lfs_path(name: str) -> str:
    return f".git/lfs/objects/{name[:2]}/{name[2:4]}/{name}"


def sum_of_zeros(size: int) -> str:
    total = hashlib.sha256()
    for _ in range(size >> 20):
        total.update(bytes(1 << 20))
    return total.hexdigest()


def test_large_file_that_takes_no_space_is_not_copied(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    path, real = lfs_path(sum_of_zeros(1 << 26)), lfs_path(hashlib.sha256(b"real").hexdigest())
    body = f"""
import os
for path in {[path, real]!r}:
    os.makedirs(os.path.dirname(path))
os.truncate(os.open({path!r}, os.O_CREAT | os.O_WRONLY), 1 << 26)
open({real!r}, "w").write("real")
"""
    box = open_sandbox()
    (note,) = notes(run(box, body))
    assert note.endswith("stays in the sandbox: its file has holes")
    assert not (project / path).exists()
    assert (project / real).read_text() == "real"
    assert notes(run(box, "")) == []


def test_repository_is_moved_to_another_disk_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "sub", tmp_path / "private"
    subprocess.run(["git", "init", "-q", source], check=True)
    (source / ".git" / "hooks" / "own").touch(0o755)
    (source / ".git" / "config").chmod(0o400)
    rename = os.rename

    def refuse(old: object, new: object, **places: object) -> None:
        raise OSError(18, "another disk")

    monkeypatch.setattr(made_repositories.os, "rename", refuse)
    try:
        made_repositories.move(str(source / ".git"), str(target))
        assert (target / "config").read_text().startswith("[core]")
        assert [(target / name).stat().st_mode & 0o777 for name in ("config", "hooks/own")] == [0o400, 0o755]
        assert not (source / ".git").exists()
        subprocess.run(["git", "init", "-q", source], check=True)
        os.truncate(os.open(source / ".git" / "large", os.O_CREAT | os.O_WRONLY), 64 * GIB)
        monkeypatch.setattr(made_repositories, "MAX_COPIED_BYTES", 1 << 22)
        with pytest.raises(OSError, match="too large"):
            made_repositories.move(str(source / ".git"), str(tmp_path / "second"))
        assert (source / ".git" / "HEAD").exists()
    finally:
        monkeypatch.setattr(made_repositories.os, "rename", rename)

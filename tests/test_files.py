"""Files as a command sees them: inside the project, through links that stay inside, and nowhere else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import Containment, Sandbox, SandboxConfig


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_bytes(b"secret")
    return path


def test_a_file_comes_back_as_it_was_written(box: Sandbox, project: Path) -> None:
    box.write_bytes("a.bin", b"\0\xff\n" * 1000)
    assert box.read_bytes("a.bin") == box.read_bytes(project / "a.bin") == b"\0\xff\n" * 1000


def test_writing_replaces_and_keeps_the_mode(box: Sandbox, project: Path) -> None:
    script = project / "script"
    script.write_bytes(b"long old text")
    script.chmod(0o751)
    box.write_bytes("script", b"new")
    assert (script.read_bytes(), script.stat().st_mode & 0o777) == (b"new", 0o751)


def test_a_link_that_stays_inside_is_followed(box: Sandbox, project: Path) -> None:
    (project / "real").mkdir()
    (project / "relative").symlink_to("real")
    (project / "absolute").symlink_to(project / "real")
    box.write_bytes("relative/file", b"one")
    assert box.read_bytes("absolute/file") == b"one"


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret",
        "sub/../../outside/secret",
        "{outside}/secret",
        "link",
        "directory/secret",
        "hop/secret",
        "/etc/passwd",
        "",
        ".",
        "..",
        "{project}_evil/secret",
    ],
)
def test_what_leads_outside_is_refused(box: Sandbox, project: Path, outside: Path, path: str) -> None:
    (project / "sub").mkdir()
    (project / "link").symlink_to(outside / "secret")
    (project / "directory").symlink_to(outside)
    (project / "hop").symlink_to("directory")
    evil = Path(f"{project}_evil")
    evil.mkdir()
    (evil / "secret").write_bytes(b"secret")
    path = path.format(project=project, outside=outside)
    with pytest.raises(PermissionError, match="outside project root"):
        box.read_bytes(path)
    with pytest.raises(PermissionError, match="outside project root"):
        box.write_bytes(path, b"x")
    assert (outside / "secret").read_bytes() == (evil / "secret").read_bytes() == b"secret"


def test_a_link_that_appears_after_the_path_was_resolved_leads_nowhere(
    box: Sandbox, project: Path, outside: Path
) -> None:
    (project / "sub").mkdir()
    resolved = os.path.realpath

    def swap(path: str) -> str:
        found = resolved(path)
        if (project / "sub").is_dir() and not (project / "sub").is_symlink():
            (project / "sub").rmdir()
            (project / "sub").symlink_to(outside)
        return found

    try:
        os.path.realpath = swap  # type: ignore[assignment]
        with pytest.raises(OSError, match="sub"):
            box.read_bytes("sub/secret")
    finally:
        os.path.realpath = resolved


def test_what_is_no_regular_file_is_refused(box: Sandbox, project: Path) -> None:
    os.mkfifo(project / "pipe")
    (project / "directory").mkdir()
    with pytest.raises(PermissionError, match="not a regular file"):
        box.read_bytes("pipe")
    with pytest.raises(IsADirectoryError):
        box.read_bytes("directory")
    with pytest.raises(IsADirectoryError):
        box.write_bytes("directory", b"")


def test_what_does_not_exist_is_not_found(box: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        box.read_bytes("missing")
    with pytest.raises(FileNotFoundError):
        box.write_bytes("missing/file", b"")


def test_the_owners_further_directories_count(sandbox: Callable[..., Sandbox], outside: Path, tmp_path: Path) -> None:
    readable = sandbox(containment=Containment(read=(str(outside),)))
    assert readable.read_bytes(outside / "secret") == b"secret"
    with pytest.raises(PermissionError):
        readable.write_bytes(outside / "secret", b"x")
    writable = sandbox(containment=Containment(write=(str(outside),)))
    writable.write_bytes(outside / "new", b"x")
    assert writable.read_bytes(outside / "new") == b"x"


def test_a_read_only_project_is_not_written(sandbox: Callable[..., Sandbox], project: Path) -> None:
    with pytest.raises(PermissionError):
        sandbox(containment=Containment(project="read-only")).write_bytes("new", b"")
    assert list(project.iterdir()) == []


def test_the_profiles_rules_hold_for_files_too(project: Path) -> None:
    (project / ".env").write_text("PASSWORD=x")
    (project / ".git" / "hooks").mkdir(parents=True)
    with Sandbox(SandboxConfig(str(project))) as box:
        with pytest.raises(PermissionError, match="credentials"):
            box.read_bytes(".env")
        for path in (".git/hooks/pre-commit", ".git/config", ".envrc"):
            with pytest.raises(PermissionError, match="protected"):
                box.write_bytes(path, b"")
        box.write_bytes("plain", b"")
    assert sorted(path.name for path in project.iterdir()) == [".env", ".git", "plain"]


def test_refused_files_leave_no_descriptor(box: Sandbox, project: Path) -> None:
    os.mkfifo(project / "pipe")
    before = set(os.listdir("/proc/self/fd"))
    for path in ("pipe", "missing/x", "/etc/passwd", "."):
        with pytest.raises((PermissionError, FileNotFoundError)):
            box.read_bytes(path)
    assert set(os.listdir("/proc/self/fd")) == before

"""read_bytes and write_bytes reach the files that a command can reach, and no others."""

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


def test_written_bytes_are_read_back(box: Sandbox, project: Path) -> None:
    box.write_bytes("a.bin", b"\0\xff\n" * 1000)
    assert box.read_bytes("a.bin") == box.read_bytes(project / "a.bin") == b"\0\xff\n" * 1000


def test_write_replaces_content_and_keeps_the_mode(box: Sandbox, project: Path) -> None:
    script = project / "script"
    script.write_bytes(b"long old text")
    script.chmod(0o751)
    box.write_bytes("script", b"new")
    assert (script.read_bytes(), script.stat().st_mode & 0o777) == (b"new", 0o751)


def test_symlink_inside_the_project_is_followed(box: Sandbox, project: Path) -> None:
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
        "..",
        "{project}_evil/secret",
    ],
)
def test_path_outside_the_project_is_refused(box: Sandbox, project: Path, outside: Path, path: str) -> None:
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


def test_symlink_swapped_in_after_resolving_is_refused(box: Sandbox, project: Path, outside: Path) -> None:
    (project / "sub").mkdir()
    read = os.readlink

    def swap(path: str) -> str:
        if path.endswith("/secret"):
            (project / "sub").rmdir()
            (project / "sub").symlink_to(outside)
        return read(path)

    try:
        os.readlink = swap  # type: ignore[assignment]
        with pytest.raises(OSError, match="sub"):
            box.read_bytes("sub/secret")
    finally:
        os.readlink = read


def test_non_regular_file_is_refused(box: Sandbox, project: Path) -> None:
    os.mkfifo(project / "pipe")
    (project / "directory").mkdir()
    with pytest.raises(PermissionError, match="not a regular file"):
        box.read_bytes("pipe")
    for path in ("directory", "", ".", "directory/..", str(project)):
        with pytest.raises(IsADirectoryError, match="Is a directory"):
            box.read_bytes(path)
        with pytest.raises(IsADirectoryError, match="Is a directory"):
            box.write_bytes(path, b"")


def test_missing_file_raises_file_not_found(box: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        box.read_bytes("missing")
    with pytest.raises(FileNotFoundError):
        box.write_bytes("missing/file", b"")


def test_granted_directories_are_accessible(sandbox: Callable[..., Sandbox], outside: Path, tmp_path: Path) -> None:
    readable = sandbox(containment=Containment(read=(str(outside),)))
    assert readable.read_bytes(outside / "secret") == b"secret"
    with pytest.raises(PermissionError):
        readable.write_bytes(outside / "secret", b"x")
    writable = sandbox(containment=Containment(write=(str(outside),)))
    writable.write_bytes(outside / "new", b"x")
    assert writable.read_bytes(outside / "new") == b"x"


def test_read_only_project_refuses_writes(sandbox: Callable[..., Sandbox], project: Path) -> None:
    with pytest.raises(PermissionError):
        sandbox(containment=Containment(project="read-only")).write_bytes("new", b"")
    assert list(project.iterdir()) == []


def test_profile_rules_apply_to_files(project: Path) -> None:
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


def test_refused_file_leaks_no_descriptor(box: Sandbox, project: Path) -> None:
    os.mkfifo(project / "pipe")
    box.run(["true"])
    before = set(os.listdir("/proc/self/fd"))
    for path in ("pipe", "missing/x", "/etc/passwd", ".", "/tmp/missing"):
        with pytest.raises((PermissionError, FileNotFoundError, IsADirectoryError)):
            box.read_bytes(path)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def workspace(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox whose commands have their own /tmp and home."""
    box = sandbox(profile="workspace", containment=Containment(accept_partial=True))
    if "mount" in box.run(["true"]).missing_layers:
        pytest.skip("this machine gives no mounts")
    return box


def test_tmp_is_the_commands_own_scratch(workspace: Sandbox, tmp_path: Path) -> None:
    assert workspace.run("mkdir /tmp/a && echo 1 > /tmp/a/x && ln -s /tmp/a /tmp/b", shell=True).ok
    assert workspace.read_bytes("/tmp/b/x") == b"1\n"
    name = f"/tmp/corral-test-{os.getpid()}"
    workspace.write_bytes(name, b"2")
    assert workspace.run(["cat", name]).stdout == b"2"
    assert not os.path.lexists(name)
    with pytest.raises(FileNotFoundError):
        workspace.read_bytes("/tmp/none")


def test_symlinks_in_scratch_resolve_as_in_the_sandbox(workspace: Sandbox, project: Path, outside: Path) -> None:
    (project / "notes").write_text("mine")
    workspace.run(f"ln -s {project}/notes /tmp/n; ln -s /etc/passwd /tmp/p; ln -s {outside} /tmp/o", shell=True)
    workspace.run("ln -s /tmp/n here; ln -s ../../../../../etc/passwd /tmp/up", shell=True)
    assert workspace.read_bytes("/tmp/n") == workspace.read_bytes("here") == b"mine"
    for path in ("/tmp/p", "/tmp/o/secret", "/tmp/up", "/tmp/../etc/passwd"):
        with pytest.raises(PermissionError, match="outside project root"):
            workspace.read_bytes(path)
        with pytest.raises(PermissionError, match="outside project root"):
            workspace.write_bytes(path, b"")


def test_home_is_the_commands_own_scratch(
    sandbox: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine").write_text("mine")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    box = sandbox()
    box.write_bytes(tmp_path / "home" / "note", b"1")
    if "mount" in box.run(["true"]).missing_layers:
        pytest.skip("this machine gives no mounts")
    assert box.read_bytes(tmp_path / "home" / "note") == b"1"
    with pytest.raises(PermissionError, match="outside project root"):
        box.read_bytes(tmp_path / "home" / "mine")
    assert os.listdir(tmp_path / "home") == ["mine"]


def test_without_containment_tmp_is_the_hosts(sandbox: Callable[..., Sandbox]) -> None:
    with pytest.raises(PermissionError, match="outside project root"):
        sandbox(containment=Containment(backend="none")).read_bytes("/tmp/x")


def test_guard_resolves_paths_as_in_the_sandbox(workspace: Sandbox, project: Path, outside: Path) -> None:
    (project / "to").symlink_to("/tmp/leak")
    assert workspace.run("ln -s /etc/shadow /tmp/leak; echo 1 > /tmp/fine", shell=True).denied
    assert workspace.run(["python3", "-c", "import os; os.symlink('/etc/shadow', '/tmp/leak')"]).ok
    for path in ("/tmp/leak", "to"):
        assert [finding.rule for finding in workspace.check(["cat", path]).findings] == ["path-read-secret"]
    assert workspace.check(["cat", "/tmp/fine"]).findings == ()

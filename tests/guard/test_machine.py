"""Tests that `kernel_realpath` agrees with `os.path.realpath` for existing and missing paths."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from observe import descriptors

from corral.guard.machine import kernel_realpath

NAMES = ["file", "folder", "link", "up", "loop", "dangling", "absolute", "odd (deleted)", ".", "..", "", "nothing"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "folder" / "folder").mkdir(parents=True)
    for path in (root, root / "folder", root / "folder" / "folder"):
        (path / "file").write_text("")
        (path / "odd (deleted)").write_text("")
        (path / "link").symlink_to("folder")
        (path / "up").symlink_to("..")
        (path / "loop").symlink_to("loop")
        (path / "dangling").symlink_to("nothing/at/all")
        (path / "absolute").symlink_to(root / "folder")
    return root


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(NAMES), max_size=6))
def test_any_path_resolves_like_realpath(tree: Path, parts: list[str]) -> None:
    path = "/".join([str(tree), *parts])
    assert kernel_realpath(path) == os.path.realpath(path)


@pytest.mark.parametrize(
    "path",
    ["/", "/bin/sh", "/usr/bin/env", "/proc/self/exe", "/proc/self/cwd", "/proc/self/root/etc", "/dev/null", "/dev/stdin",
     "/etc/passwd/x", "/nonexistent", "/" + "x" * 300, "//etc//passwd", "/etc/../etc/./passwd"],
)  # fmt: skip
def test_system_paths_resolve_like_realpath(path: str) -> None:
    assert kernel_realpath(path) == os.path.realpath(path)


def test_pipe_and_deleted_file_resolve_like_realpath(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with gone.open("w") as file:
        gone.unlink()
        reading, writing = os.pipe()
        for descriptor in (file.fileno(), reading):
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            assert kernel_realpath(path) == os.path.realpath(path)
        os.close(reading)
        os.close(writing)


def test_resolving_leaks_no_descriptor(tree: Path) -> None:
    before = descriptors()
    for name in NAMES:
        kernel_realpath(f"{tree}/{name}")
    assert descriptors() == before

"""Long output is saved to a file in scratch: completely, in order, bounded, and readable by the next command."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import Containment, Limits, Output, Sandbox
from corral.model.errors import PolicyError
from corral.policy.config import SandboxConfig
from corral.runtime.capture import STDERR, STDOUT
from corral.runtime.spill_file import CUT, LOOK_BYTES, MAX_KEPT_OUTPUTS, SpillDirectory, SpillingCapture

LONG = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo problem >&2; echo last"


@pytest.fixture
def shelf(project: Path, tmp_path: Path) -> Callable[..., SpillDirectory]:
    """A function that makes a SpillDirectory in a directory that commands see as /tmp."""
    (tmp_path / "scratch").mkdir()

    def make(room: int = 1000, **settings: object) -> SpillDirectory:
        config = SandboxConfig(str(project), max_output_bytes=8, limits=Limits(**settings))  # type: ignore[arg-type]
        return SpillDirectory(config, room, lambda: (("/tmp", str(tmp_path / "scratch")),))

    return make


def saved(tmp_path: Path) -> dict[str, bytes]:
    return {f"/tmp/{path.name}": path.read_bytes() for path in (tmp_path / "scratch").iterdir()}


def test_short_output_is_not_saved(shelf: Callable[..., SpillDirectory], tmp_path: Path) -> None:
    capture = shelf().capture()
    capture.feed(STDOUT, b"12345678")
    capture.feed(STDERR, b"87654321")
    kept = capture.finish()
    assert (kept.truncated, kept.path, saved(tmp_path)) == (False, None, {})


def test_truncated_output_is_saved_completely_in_order(shelf: Callable[..., SpillDirectory], tmp_path: Path) -> None:
    capture = shelf().capture()
    for stream, data in ((STDOUT, b"one "), (STDERR, b"two "), (STDOUT, b"three four "), (STDERR, b"five")):
        capture.feed(stream, data)
    kept = capture.finish()
    assert (kept.truncated, kept.stdout_bytes, kept.stderr_bytes) == (True, 15, 8)
    assert saved(tmp_path) == {kept.path: b"one two three four five"}


def test_saved_output_is_bounded(shelf: Callable[..., SpillDirectory], tmp_path: Path) -> None:
    capture = shelf(20).capture()
    for _ in range(10):
        capture.feed(STDOUT, b"0123456789")
    kept = capture.finish()
    assert (kept.stdout_bytes, saved(tmp_path)) == (100, {kept.path: b"0123456789" * 2 + CUT})


def test_disk_limit_bounds_the_saved_output(shelf: Callable[..., SpillDirectory], tmp_path: Path) -> None:
    capture = shelf(disk_bytes=15).capture()
    capture.feed(STDOUT, b"0123456789" * 5)
    assert saved(tmp_path) == {capture.finish().path: b"012345678901234" + CUT}


def test_free_disk_limit_stops_saving(shelf: Callable[..., SpillDirectory], tmp_path: Path) -> None:
    capture = shelf(room=2**30, free_disk_bytes=2**62).capture()
    capture.feed(STDOUT, b"x" * LOOK_BYTES)
    assert saved(tmp_path) == {capture.finish().path: CUT}


def test_only_the_latest_outputs_are_kept(shelf: Callable[..., SpillDirectory], tmp_path: Path) -> None:
    one = shelf()
    paths = []
    for _ in range(MAX_KEPT_OUTPUTS + 3):
        capture = one.capture()
        capture.feed(STDOUT, b"0123456789")
        paths.append(capture.finish().path)
    assert set(saved(tmp_path)) == set(paths[3:])


@pytest.mark.parametrize("what", ["gone", "link"])
def test_missing_directory_only_loses_the_saved_file(
    shelf: Callable[..., SpillDirectory], tmp_path: Path, what: str
) -> None:
    (tmp_path / "scratch").rmdir()
    if what == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "scratch").symlink_to(tmp_path / "elsewhere")
    capture = shelf().capture()
    capture.feed(STDOUT, b"0123456789")
    kept = capture.finish()
    assert (kept.truncated, kept.path, kept.stdout_bytes) == (True, None, 10)
    assert what == "gone" or not list((tmp_path / "elsewhere").iterdir())


def test_dropped_capture_leaks_no_descriptor(shelf: Callable[..., SpillDirectory]) -> None:
    before = os.listdir("/proc/self/fd")
    capture = shelf().capture()
    assert isinstance(capture, SpillingCapture)
    capture.feed(STDOUT, b"0123456789")
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del capture
    assert os.listdir("/proc/self/fd") == before


def test_next_command_can_read_full_output_path(sandbox: Callable[..., Sandbox]) -> None:
    box = sandbox(profile="workspace", max_output_bytes=100, output=Output(spill_bytes=1_000_000))
    result = box.run(LONG, shell=True)
    assert (result.truncated, result.exit_code) == (True, 0)
    assert result.full_output_path is not None
    whole = b"".join(b"line %d\n" % number for number in range(2000)) + b"problem\nlast\n"
    assert sorted(box.read_bytes(result.full_output_path).splitlines()) == sorted(whole.splitlines())
    found = box.run(["grep", "-x", "-e", "line 1000", "-e", "last", result.full_output_path])
    assert (found.stdout, found.full_output_path) == (b"line 1000\nlast\n", None)


def test_link_planted_by_a_command_is_not_followed(sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    box = sandbox(profile="workspace", max_output_bytes=100, output=Output(spill_bytes=1_000_000))
    first = box.run(LONG, shell=True).full_output_path
    assert first is not None
    # The oldest file is removed by name: a planted link goes, its target stays.
    assert box.run(f"rm {first} && mkdir kept && ln -s $PWD/kept {first}", shell=True).ok
    for _ in range(MAX_KEPT_OUTPUTS):
        assert box.run(LONG, shell=True).full_output_path
    assert Path(box.config.project_root, "kept").is_dir()
    assert box.run(["ls", first]).exit_code == 2


def test_nothing_is_saved_without_containment(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(
        max_output_bytes=100, output=Output(spill_bytes=1_000_000), containment=Containment(backend="none")
    )
    result = box.run(LONG, shell=True)
    assert (result.truncated, result.full_output_path) == (True, None)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, 2**30 + 1, "1000"])
def test_invalid_spill_size_is_refused(value: object) -> None:
    with pytest.raises(PolicyError, match=r"output\.spill_bytes"):
        Output(spill_bytes=value)  # type: ignore[arg-type]

"""A command keeps swapping a directory with a link to the outside. The host and other commands never follow the link."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attempt import attempt, program
from observe import eventually

from corral import ContainmentError, Sandbox
from corral.containment.filesystem import scratch

pytestmark = pytest.mark.real

ROUNDS = 400
DEADLINE_SECONDS = 20
# RENAME_EXCHANGE is atomic: the name exists at all times.
SWAPS = """
while True:
    try:
        call(316 if X86 else 276, -100, facts['one'].encode(), -100, facts['other'].encode(), 2)
    except OSError:
        pass
"""


@contextmanager
def swapping(box: Sandbox, one: str, other: str) -> Iterator[None]:
    """Let a command of the sandbox exchange two names of the project in an endless loop."""
    script = Path(box.config.project_root) / "swap.py"
    script.write_text(program(SWAPS))
    with box.start(
        [sys._base_executable, "-S", "swap.py", f'{{"one": "{one}", "other": "{other}"}}'], timeout_seconds=120
    ):
        path = script.parent / one
        if path.exists() and (script.parent / other).exists():
            links = set()
            eventually(lambda: links.add(path.is_symlink()) or len(links) == 2)
        yield
    script.unlink()


def snapshot(folder: Path) -> dict[str, object]:
    """Return mode and content of everything below a directory."""
    found: dict[str, object] = {".": folder.stat().st_mode}
    for path in sorted(folder.rglob("*")):
        found[str(path)] = (path.lstat().st_mode, path.is_file() and path.read_bytes())
    return found


def until(attack: Callable[[], object]) -> None:
    """Repeat an attack on naive code until it works, which proves that it is a real attack."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not attack():
        assert time.monotonic() < end, "the attack never worked on naive code"


@pytest.fixture
def doors(project: Path, outside: Path) -> Path:
    """Two names in the project, a directory and a link to the outside, each with a file of the same name."""
    (project / "door").mkdir()
    (project / "door" / "secret").write_text("mine")
    (project / "other").symlink_to(outside)
    return project


def test_command_cannot_get_outside_by_swapping_links(held: Sandbox, loose: Sandbox, doors: Path) -> None:
    body = """
if os.fork() == 0:
    while True:
        call(316 if X86 else 276, -100, b'door', -100, b'other', 2)
end = time.monotonic() + facts['seconds']
while time.monotonic() < end:
    try:
        if open('door/secret').read() == 'canary':
            return True
    except OSError:
        continue
"""
    assert attempt(held, body, seconds=2).startswith("held")
    assert attempt(loose, body, seconds=10) == "succeeded"


def test_host_reads_no_outside_file_through_swapped_link(held: Sandbox, doors: Path) -> None:
    def naive() -> bool:
        path = doors / "door" / "secret"
        try:
            return path.resolve().is_relative_to(doors) and path.read_text() == "canary"
        except OSError:
            return False

    seen = set()
    with swapping(held, "door", "other"):
        for _ in range(ROUNDS * 5):
            try:
                seen.add(held.read_bytes("door/secret"))
            except OSError:
                continue
        until(naive)
    assert seen == {b"mine"}


def test_host_writes_no_outside_file_through_swapped_link(held: Sandbox, doors: Path, outside: Path) -> None:
    def naive() -> bool:
        path = doors / "door" / "secret"
        try:
            if path.resolve().is_relative_to(doors):
                path.write_text("theirs")
        except OSError:
            return False
        return (outside / "secret").read_text() == "theirs"

    with swapping(held, "door", "other"):
        for _ in range(ROUNDS * 5):
            try:
                held.write_bytes("door/secret", b"written")
                held.write_bytes("door/new", b"written")
            except OSError:
                continue
        assert snapshot(outside) == {**snapshot(outside), str(outside / "secret"): (stat.S_IFREG | 0o644, b"canary")}
        assert [path.name for path in outside.iterdir()] == ["secret"]
        until(naive)


def test_quarantine_moves_nothing_from_outside(held: Sandbox, project: Path, outside: Path, tmp_path: Path) -> None:
    # Only some names in .github are protected, so the watcher lists it.
    (outside / "hooks").mkdir()
    (outside / "hooks" / "file").write_text("canary")
    before = snapshot(outside)
    held.run(["true"])
    with swapping(held, ".github", "other"):
        for _ in range(ROUNDS // 4):
            # Creates again whichever of the two was quarantined.
            held.run(f"mkdir -p .github/hooks other/hooks; ln -s {outside} .github; ln -s {outside} other", shell=True)
    assert snapshot(outside) == before

    (project / "door" / "hooks").mkdir(parents=True)
    (project / "way").symlink_to(outside)

    own = os.open(project / "door", os.O_RDONLY)

    def naive() -> bool:
        try:
            if (project / "door").is_symlink():
                return False
            (project / "door" / "hooks").rename(tmp_path / "away")
        except OSError:
            return False
        if (tmp_path / "away" / "file").exists():
            return True
        (tmp_path / "away").rmdir()
        os.mkdir("hooks", dir_fd=own)
        return False

    with swapping(held, "door", "way"):
        until(naive)
    os.close(own)


def test_quarantine_makes_no_directory_outside(
    open_sandbox: Callable[..., Sandbox], project: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # If the state directory cannot be used, quarantine is in the project, where a command may have made it a link.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    for names in ("corral-quarantine", ".corral-quarantine", "corral", ".corral"):
        (project / names).symlink_to(outside)
    before = snapshot(outside)
    result = open_sandbox().run(["touch", ".envrc"])
    assert [violation.kind for violation in result.violations] == ["planted"]
    assert snapshot(outside) == before


def test_removing_scratch_changes_nothing_outside(held: Sandbox, project: Path, outside: Path) -> None:
    (outside / "kept").mkdir()
    outside.chmod(0o755)
    before = snapshot(outside)
    tree = project / "tree"

    def grow() -> None:
        if not (tree / "a").exists():
            (tree / "a" / "deep").mkdir(parents=True)
            (tree / "a").chmod(0)
        for path in (tree / "door", project / "other"):
            if not os.path.lexists(path):
                # One of the two must be a directory, the other a link.
                other = project / "other" if path != project / "other" else tree / "door"
                path.mkdir() if other.is_symlink() else path.symlink_to(outside)

    def naive() -> bool:
        grow()
        path = tree / "door"
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
        return stat.S_IMODE(outside.stat().st_mode) == 0o700

    grow()
    with swapping(held, "tree/door", "other"):
        for _ in range(ROUNDS):
            grow()
            scratch.remove(str(tree))
        assert snapshot(outside) == before
        until(naive)


def test_sandbox_started_during_swap_shows_nothing_outside(
    held: Sandbox, open_sandbox: Callable[..., Sandbox], doors: Path, outside: Path
) -> None:
    made = outside.with_name("made")
    for folder in (outside, made):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    before = snapshot(outside)
    shown = set()
    door = os.open(doors / "door", os.O_RDONLY | os.O_DIRECTORY)
    held.run(["true"])
    with swapping(held, "door", "other"):
        # The command began before the user made this repository, so its sandbox does not pin it.
        os.rename(made / ".git", ".git", dst_dir_fd=door)
        os.close(door)
        for _ in range(ROUNDS // 20):
            with open_sandbox() as box:
                try:
                    shown.add(box.run(f"cat {outside}/secret door/secret other/secret", shell=True).stdout)
                    shown.add(box.run(["cat", "secret"], cwd="door").stdout)
                except ContainmentError:
                    continue
    assert shown <= {b"", b"mine", b"minemine"}
    assert snapshot(outside) == before

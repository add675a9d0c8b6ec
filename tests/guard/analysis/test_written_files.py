"""Files that a call writes: their paths are resolved when a command asks for them, within the work of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from corral.guard.analysis.scope import LimitExceeded
from corral.guard.analysis.side_effects import WORK_TO_RESOLVE
from corral.guard.analysis.walker import MAX_WORK, Walker
from corral.guard.machine import Machine, RecordingMachine
from corral.guard.shell.expansion import Word

if TYPE_CHECKING:
    from pathlib import Path


def test_written_path_is_resolved_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    machine = RecordingMachine(Machine(str(tmp_path)))
    walker = Walker(machine)
    walker.note_written(Word("link/x"), (str(tmp_path),))
    assert machine.answers == {}
    assert walker.written == {f"{tmp_path}/link/x", f"{tmp_path}/folder/x"}
    assert len(machine.answers) == 1
    assert walker.may_be_written("folder/x", str(tmp_path))


def test_file_without_content_is_made_but_not_written(tmp_path: Path) -> None:
    walker = Walker(Machine(str(tmp_path)))
    walker.note_written(Word("x"), (str(tmp_path),), is_empty=True)
    assert (walker.written, walker.made) == (set(), {f"{tmp_path}/x"})


def test_unknown_path_may_be_any_file(tmp_path: Path) -> None:
    walker = Walker(Machine(str(tmp_path)))
    walker.note_written(Word("\0"), (str(tmp_path),))
    assert walker.may_be_written("x", str(tmp_path))


def test_resolving_too_many_written_paths_exceeds_the_limit(tmp_path: Path) -> None:
    walker = Walker(Machine(str(tmp_path)))
    for _ in range(MAX_WORK // WORK_TO_RESOLVE + 200):
        walker.note_written(Word("x"), (str(tmp_path),))
    with pytest.raises(LimitExceeded):
        _ = walker.written

"""The journal keeps finished tasks, ignores lines that a crash cut off, and has one writer."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corral.apps.evals import run_suite as evaluating
from corral.apps.evals.journal import Journal, place
from corral.apps.evals.outcome import Outcome
from corral.apps.evals.run_suite import evaluate
from corral.apps.evals.task import Task
from corral.model.errors import CorralError


def tasks(count: int) -> list[Task]:
    return [
        Task(f"t{n}", {"id": f"t{n}", "argv": ["echo", str(n)], "expect": {"stdout": f"{n}\n"}, "tags": ["even"] * (n % 2 == 0)})
        for n in range(count)
    ]  # fmt: skip


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(place(str(folder), os.environ)).read_text().splitlines()]


def ran(folder: Path, wanted: list[Task], **settings: Any) -> list[str]:
    with Journal(str(folder), **settings) as journal:
        done = sorted(outcome.id for outcome in evaluate(wanted, journal, workers=2))
        journal.finish(0.0)
        return done


def test_journal_has_start_each_task_and_end(tmp_path: Path) -> None:
    assert ran(tmp_path, tasks(5)) == ["t0", "t1", "t2", "t3", "t4"]
    written = lines(tmp_path)
    assert [entry["event"] for entry in written] == ["start", *["task"] * 5, "end"]
    assert {entry["status"] for entry in written[1:-1]} == {"passed"}


def test_finished_run_starts_again(tmp_path: Path) -> None:
    ran(tmp_path, tasks(2))
    assert ran(tmp_path, tasks(3)) == ["t0", "t1", "t2"]
    assert len(lines(tmp_path)) == 5


def test_interrupted_run_continues_with_missing_tasks(tmp_path: Path) -> None:
    with Journal(str(tmp_path)) as journal:
        outcomes = evaluate(tasks(6), journal, workers=1)
        done = sorted([next(outcomes).id, next(outcomes).id])
        outcomes.close()
    before = lines(tmp_path)
    assert ran(tmp_path, tasks(6)) == sorted({f"t{n}" for n in range(6)} - {*done})
    after = lines(tmp_path)
    assert after[: len(before)] == before
    ids = [entry["id"] for entry in after if entry["event"] == "task"]
    assert sorted(ids) == [f"t{n}" for n in range(6)]


def test_edited_task_runs_again_and_fresh_runs_all(tmp_path: Path) -> None:
    with Journal(str(tmp_path)) as journal:
        journal.start(2, 0.0)
        for task in tasks(2):
            journal.add(Outcome(task.id, task.digest, "passed"))
    changed = [tasks(2)[0], Task("t1", {**tasks(2)[1].data, "about": "other"})]
    with Journal(str(tmp_path)) as journal:
        outcomes = evaluate(changed, journal, workers=1)
        assert next(outcomes).id == "t1"
        outcomes.close()
    assert ran(tmp_path, tasks(2), fresh=True) == ["t0", "t1"]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_line_cut_off_by_a_crash_is_ignored(tmp_path: Path, cut: int) -> None:
    with Journal(str(tmp_path)) as journal:
        outcomes = evaluate(tasks(3), journal, workers=1)
        assert [next(outcomes).id, next(outcomes).id] == ["t0", "t1"]
        outcomes.close()
    path = Path(place(str(tmp_path), os.environ))
    path.write_bytes(path.read_bytes()[:-cut])
    assert ran(tmp_path, tasks(3)) == ["t1", "t2"]
    with Journal(str(tmp_path), fresh=False) as journal:
        assert journal.done == {}
    ended = path.read_bytes()
    assert ended == b""


def test_second_writer_is_refused(tmp_path: Path) -> None:
    with Journal(str(tmp_path)), pytest.raises(CorralError, match="another corral eval"):
        Journal(str(tmp_path))


def test_foreign_journal_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = Path(place(str(tmp_path), os.environ))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text('{"event": "start", "schema": "other/1"}\n')
    with pytest.raises(CorralError, match="--fresh"):
        Journal(str(tmp_path))
    assert path.read_text() == '{"event": "start", "schema": "other/1"}\n'


def test_full_disk_is_reported(tmp_path: Path) -> None:
    with Journal(str(tmp_path)) as journal:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, journal._descriptor)
        os.close(full)
        with pytest.raises(CorralError, match="No space left on device"):
            journal.start(1, 0.0)


@pytest.mark.parametrize("change", [{"id": 3}, {"status": "odd"}, {"tags": 7}, {"calls": ["x"]}, {"duration_ms": "x"}])
def test_journal_line_that_is_not_an_outcome_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with Journal(str(tmp_path)) as journal:
        journal.start(1, 0.0)
    with (Path(place(str(tmp_path), os.environ))).open("a") as file:
        file.write(json.dumps({"event": "task", **Outcome("t0", "d", "passed").to_dict(), **change}) + "\n")
    with pytest.raises(CorralError, match="--fresh"):
        Journal(str(tmp_path))


@pytest.mark.parametrize("text", ['{"event": "start", "schema": "other/1"}\n', '{"event": "task"}\n', "x"])
def test_fresh_replaces_any_journal(tmp_path: Path, text: str) -> None:
    path = Path(place(str(tmp_path), os.environ))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    assert ran(tmp_path, tasks(1), fresh=True) == ["t0"]
    assert [entry["event"] for entry in lines(tmp_path)] == ["start", "task", "end"]


def test_journal_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(str(tmp_path)) as journal:
        outcomes = evaluate(tasks(3), journal, workers=1)
        next(outcomes)
        outcomes.close()
    monkeypatch.setattr(evaluating, "__version__", "99")
    with Journal(str(tmp_path)) as journal, pytest.raises(CorralError, match=r"this is 99; use --fresh"):
        next(evaluate(tasks(3), journal))

"""`corral eval` as a process: exit codes, the progress bar on a terminal, and a run that is killed half-way."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from observe import alive, eventually, unique_seconds
from screen import Screen

from corral.apps.evals.journal import Journal, place
from corral.apps.evals.results import write
from corral.apps.evals.run_suite import evaluate
from corral.apps.evals.task_loader import load
from corral.model.errors import CorralError

# CORRAL_EVAL_TASKS=1000 takes ten times as long.
TASKS = int(os.environ.get("CORRAL_EVAL_TASKS", "100"))
DEADLINE_SECONDS = 60 + TASKS


def journal_of(folder: Path) -> Path:
    """Return the path of a run's journal in the user's state directory."""
    return Path(place(str(folder / "corral-eval"), os.environ))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "corral", "eval", *words]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


def written(folder: Path, *tasks: dict[str, Any]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


GOOD = {"id": "good", "tags": ["a"], "argv": ["echo", "x"], "expect": {"stdout": "x\n"}}
BAD = {"id": "bad", "tags": ["a", "b"], "argv": ["echo", "x"], "expect": {"stdout": "y\n"}}


def test_exit_0_and_results_when_all_pass(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    done = run("tasks.jsonl", cwd=tmp_path)
    assert (done.returncode, "corral-eval" in done.stderr) == (0, True)
    assert done.stdout.startswith("✓ 1 passed  of 1")
    assert sorted(path.name for path in (tmp_path / "corral-eval").iterdir()) == [
        "junit.xml", "results.jsonl", "summary.json",
    ]  # fmt: skip


def test_exit_1_when_a_task_fails(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD)
    done = run("tasks.jsonl", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "tasks": 2, "passed": 1, "failed": 1, "error": 0, "skipped": 0,
        "tags": {"a": {"passed": 1, "tried": 2, "skipped": 0, "rate": 0.5}, "b": {"passed": 0, "tried": 1, "skipped": 0, "rate": 0.0}},
        "not_passed": ["bad"],
    }  # fmt: skip
    assert "wanted exactly 'y\\n', was 'x\\n'" in run("tasks.jsonl", cwd=tmp_path).stdout


def test_wrong_task_file_is_125_and_runs_nothing(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD | {"expct": 1}, {"id": "x"})
    done = run("tasks.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    first, *rest = done.stderr.splitlines()
    assert first.startswith("corral: tasks.jsonl:2:87: ")
    assert rest[0].startswith("corral: tasks.jsonl:3:1: ")
    assert not (tmp_path / "corral-eval").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param([], "--fixtures", id="no tasks"),
        pytest.param(["--compare", "a", "b", "c.toml"], "--compare", id="both"),
        pytest.param(["--compare", "a", "b"], " a: No such file or directory; ", id="no runs"),
        pytest.param(["tasks.jsonl", "--tag", "none"], "known tags: a, b", id="no such tag"),
        pytest.param(["empty.jsonl"], "empty.jsonl:1:1: ", id="no task"),
        pytest.param(["tasks.jsonl", "--out", "tasks.jsonl"], "cannot write tasks.jsonl: ", id="a file"),
        pytest.param(["tasks.jsonl", "--out", "/proc/x"], "cannot write /proc/x: ", id="no directory"),
        pytest.param(["tasks.jsonl", "--workers", "0"], "0 is not a whole number", id="no workers"),
    ],
)
def test_wrong_usage_is_125(tmp_path: Path, words: list[str], told: str) -> None:
    written(tmp_path, GOOD, BAD)
    (tmp_path / "empty.jsonl").write_text("\n")
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 125
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_new_run_deletes_earlier_results_first(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    assert run("tasks.jsonl", cwd=tmp_path).returncode == 0
    slow = {
        "id": "slow",
        "profile": "workspace",
        "argv": ["sleep", "60"],
        "timeout_seconds": 70,
        "expect": {"exit_code": 0},
    }
    written(tmp_path, slow)
    with subprocess.Popen(command("tasks.jsonl", "--allow", "timeout_seconds"), cwd=tmp_path) as process:
        journal = journal_of(tmp_path)
        eventually(lambda: '"end"' not in journal.read_text() and '"start"' in journal.read_text())
        process.kill()
    assert list((tmp_path / "corral-eval").iterdir()) == []


def test_no_task_is_lost_when_results_cannot_be_written(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD)
    folder = tmp_path / "corral-eval"
    taken = folder / "results.jsonl"
    with Journal(str(folder)) as journal:
        outcomes = list(evaluate(load([str(tmp_path / "tasks.jsonl")]), journal))
        taken.mkdir(parents=True)
        with pytest.raises(CorralError, match=r"results\.jsonl: Is a directory; "):
            write(str(folder), outcomes)
    assert [path.name for path in folder.iterdir()] == ["results.jsonl"]
    refused = run("tasks.jsonl", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "corral-eval/results.jsonl: Is a directory; " in refused.stderr
    taken.rmdir()
    again = run("tasks.jsonl", cwd=tmp_path)
    assert "2 of 2 tasks are done" in again.stderr
    assert again.returncode == 1
    entries = [json.loads(line) for line in (journal_of(tmp_path)).read_text().splitlines()]
    assert [entry["event"] for entry in entries] == ["start", "task", "task", "start", "end"]
    assert len((tmp_path / "corral-eval/results.jsonl").read_text().splitlines()) == 2


def test_results_below_the_tasks_are_not_tasks(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    assert run(".", cwd=tmp_path).returncode == 0
    assert run(".", "--out", "other", cwd=tmp_path).returncode == 0
    again = run(".", "--list", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "good\n")


def test_tag_selects_and_list_runs_nothing(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD)
    assert run("tasks.jsonl", "--list", "--tag", "b", cwd=tmp_path).stdout == "bad\n"
    assert not (tmp_path / "corral-eval").exists()


def test_two_runs_are_compared(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD)
    run("tasks.jsonl", "--out", "before", cwd=tmp_path)
    written(tmp_path, GOOD | {"argv": ["echo", "z"]}, BAD | {"argv": ["echo", "y"]})
    run("tasks.jsonl", "--out", "after", cwd=tmp_path)
    worse = run("--compare", "before", "after", cwd=tmp_path)
    assert worse.returncode == 1
    assert [line for line in worse.stdout.splitlines() if line.startswith(("✗", "✓"))] == ["✗ 1 broken", "✓ 1 mended"]
    assert "good  passed → failed" in worse.stdout
    same = run("--compare", "before", "before", "--json", cwd=tmp_path)
    assert (same.returncode, json.loads(same.stdout)) == (0, {"same": 2, "changes": [], "tags": {}})


def test_progress_bar_is_drawn_and_erased_on_a_terminal(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD, *(GOOD | {"id": f"g{n}"} for n in range(5)))
    screen = Screen(command("tasks.jsonl", "--workers", "1"), tmp_path)
    try:
        shown = screen.until(b"results are in")
        assert b"0/7" in shown
        assert b"7/7" in shown
        assert "░".encode() in shown
        assert b"1 failed" in shown
        assert shown.rindex(b"\x1b[K") < shown.rindex(b"6 passed")
    finally:
        screen.close()


def test_failure_is_shown_once_on_a_terminal(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD)
    screen = Screen(command("tasks.jsonl", "--workers", "1"), tmp_path, columns=120)
    try:
        shown = screen.until(b"results are in")
    finally:
        screen.close()
    assert shown.count(b"wanted exactly") == 1


def test_summary_in_a_file_has_every_failure(tmp_path: Path) -> None:
    written(tmp_path, GOOD, BAD)
    screen = Screen(["sh", "-c", f"{shlex.join(command('tasks.jsonl'))} > out"], tmp_path, columns=120)
    try:
        assert screen.until(b"results are in").count(b"wanted exactly") == 1
        assert screen.status() == 1
    finally:
        screen.close()
    assert (tmp_path / "out").read_text().count("wanted exactly") == 1


def test_interrupt_kills_tasks_and_next_run_continues(tmp_path: Path) -> None:
    seconds = unique_seconds()
    slow = {"id": "slow", "argv": ["sh", "wait.sh"], "files": {"wait.sh": f"sleep {seconds}\n"}, "expect": {"exit_code": 0}}  # fmt: skip
    written(tmp_path, GOOD, slow)
    with subprocess.Popen(command("tasks.jsonl", "--workers", "2"), cwd=tmp_path, stderr=subprocess.PIPE) as process:
        eventually(lambda: alive(seconds) and '"good"' in (journal_of(tmp_path)).read_text())
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_SECONDS)
        assert b"interrupted; 1 of 2 tasks are done" in said
        assert process.returncode == 130
    assert alive(seconds) == []
    written(tmp_path, GOOD, slow | {"files": {"wait.sh": "true\n"}})
    done = run("tasks.jsonl", cwd=tmp_path)
    assert "1 of 2 tasks are done" in done.stderr
    assert done.returncode == 0


@pytest.mark.real
def test_killed_run_resumes_with_exactly_the_missing_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [GOOD | {"id": f"t{n}", "tags": [f"mod:{n % 3}"], "argv": ["echo", "x"]} for n in range(TASKS)]
    # The last task never ends, so the first run cannot finish before it is killed.
    endless = {"profile": "workspace", "argv": ["sleep", "1000"], "timeout_seconds": 1000}
    written(tmp_path, *many[:-1], many[-1] | endless)
    journal = journal_of(tmp_path)
    room = tmp_path.with_name(f"{tmp_path.name}-room")
    room.mkdir()
    monkeypatch.setenv("TMPDIR", str(room))
    process = subprocess.Popen(
        command("tasks.jsonl", "--workers", "2", "--allow", "timeout_seconds"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + DEADLINE_SECONDS
    while not journal.exists() or journal.read_bytes().count(b"\n") <= TASKS // 2:
        assert time.monotonic() < until
        assert process.poll() is None
    process.kill()
    written(tmp_path, *many)
    process.communicate()
    first = [json.loads(line) for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    done = {entry["id"] for entry in first if entry["event"] == "task"}
    assert TASKS // 2 <= len(done) < TASKS
    (place,) = room.glob("corral-eval-*")
    resumed = run("tasks.jsonl", "--workers", "2", cwd=tmp_path)
    assert resumed.returncode == 0
    assert f"{len(done)} of {TASKS} tasks are done" in resumed.stderr
    entries = [
        json.loads(line) for line in journal.read_text().splitlines() if line.startswith("{") and line.endswith("}")
    ]
    starts = [number for number, entry in enumerate(entries) if entry["event"] == "start"]
    later = [entry["id"] for entry in entries[starts[1] :] if entry["event"] == "task"]
    assert len(starts) == 2
    assert sorted(later) == sorted({task["id"] for task in many} - done)
    results = [json.loads(line) for line in (tmp_path / "corral-eval/results.jsonl").read_text().splitlines()]
    assert [result["id"] for result in results] == [task["id"] for task in many]
    assert {result["status"] for result in results} == {"passed"}
    assert not place.exists()
    eventually(lambda: not any(room.iterdir()))

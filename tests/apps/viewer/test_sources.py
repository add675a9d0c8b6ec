"""Sources follow the log through rotations, growing results and journals, and compare two runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from observe import eventually

from corral.apps.evals.journal import Journal, place
from corral.apps.evals.outcome import Outcome
from corral.apps.evals.results import RESULTS, write
from corral.apps.viewer import call_list
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import fill
from corral.apps.viewer.sources import EvalSource, LogSource, ResultSource, source_of
from corral.apps.viewer.spans import read as read_spans
from corral.audit import ledger
from corral.audit.audit_log import Log, directory
from corral.audit.query import LogFilter
from corral.model.call import Call, Verdict
from corral.model.errors import CorralError
from corral.policy.config import SandboxConfig


@pytest.mark.parametrize("key", [None, 7, "", ["x"], {"a": 1}, "\ud800"], ids=repr)
def test_result_without_a_usable_id_is_shown(tmp_path: Path, key: object) -> None:
    line = {"exit_code": 0, "argv": ["ls"], "id": key}
    path = tmp_path / "results.jsonl"
    path.write_text(f"{json.dumps(line)}\n{json.dumps({'exit_code': 1, 'argv': ['pwd']})}\n")
    feed = Feed()
    fill(feed, ResultSource(str(path)))
    assert [call["argv"] for call in calls(feed)] == [["ls"], ["pwd"]]


@pytest.mark.parametrize("change", [{"id": None}, {"id": 7, "call": ["x"]}, {"id": "", "call": {}}], ids=repr)
def test_log_entry_without_a_usable_id_is_shown(change: dict[str, Any]) -> None:
    entry = {"shell": "ls", "decision": "allow", "at": "2026-01-01T00:00:00.000Z", "seq": 1, **change}
    feed = Feed()
    feed.put([(call_list.of_entry(entry), None), (call_list.of_entry({**entry, "shell": "pwd"}), None)])
    assert [call["shell"] for call in calls(feed)] == ["ls", "pwd"]


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "missing"])
def test_spans_are_read_from_a_regular_file_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "spans.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    with pytest.raises(CorralError, match=r"spans\.json"):
        read_spans(str(path))


def calls(feed: Feed) -> list[dict[str, Any]]:
    return [json.loads(text) for text in feed.texts()]


def noted(home: dict[str, str], project: Path, *texts: str) -> None:
    log = Log(SandboxConfig(str(project)), event="hook", environ=home)
    for text in texts:
        log.verdict(Call(text, True), Verdict())


def outcome(name: str, status: str = "passed", **more: Any) -> Outcome:
    return Outcome(name, "d", status, calls=({"shell": name, "exit_code": 0, "decision": "allow"},), **more)


def followed(source: Any) -> tuple[Feed, Callable[[], None]]:
    feed, stop = Feed(), Event()
    thread = Thread(target=fill, args=(feed, source, stop))
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return feed, end


def test_log_is_followed_through_a_rotation(
    home: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted(home, project, "a", "b")
    feed, end = followed(LogSource(directory(home), LogFilter()))
    try:
        eventually(lambda: [call["shell"] for call in calls(feed)] == ["a", "b"])
        monkeypatch.setattr(ledger, "FILE_BYTES", 1)
        noted(home, project, "c", "d")
        eventually(lambda: [call["shell"] for call in calls(feed)] == ["a", "b", "c", "d"])
    finally:
        end()


def test_log_entries_are_filtered(home: dict[str, str], project: Path) -> None:
    noted(home, project, "one", "two", "three")
    for source, expected in (
        (LogSource(directory(home), LogFilter(text="t")), ["two", "three"]),
        (LogSource(directory(home), LogFilter(), last=2), ["two", "three"]),
        (LogSource(directory(home), LogFilter(decision="deny")), []),
    ):
        feed = Feed()
        fill(feed, source)
        assert [call["shell"] for call in calls(feed)] == expected


def test_missing_log_is_empty(home: dict[str, str], project: Path) -> None:
    feed, end = followed(LogSource(directory(home), LogFilter()))
    try:
        eventually(lambda: feed.is_loaded)
        noted(home, project, "first")
        eventually(lambda: [call["shell"] for call in calls(feed)] == ["first"])
    finally:
        end()


def test_results_are_followed_and_partial_lines_wait(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    result = {"id": "a", "argv": ["ls"], "exit_code": 0, "stdout": "x"}
    path.write_text(
        json.dumps(result)
        + "\nno json\n[1]\n"
        + json.dumps({"id": 7, "result": result | {"id": "b"}})
        + '\n{"id": "c", "argv": ["l'
    )
    feed, end = followed(ResultSource(str(path), root="/p"))
    try:
        eventually(lambda: feed.keys() == ("a", "b"))
        assert feed.output("a") == {"stdout": "x"}
        with path.open("a") as file:
            file.write('s"], "exit_code": 1}\n')
        eventually(lambda: feed.keys() == ("a", "b", "c"))
        assert [call["root"] for call in calls(feed)] == ["/p"] * 3
    finally:
        end()


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_last_line_needs_no_newline(tmp_path: Path, end: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "a", "argv": ["ls"], "exit_code": 0}' + end)
    feed = Feed()
    fill(feed, ResultSource(str(path)))
    assert feed.keys() == ("a",)


@pytest.mark.parametrize("text", ["pears\napples\n", '{"id": "t", "argv": ["ls"], "expect": {}}\n', "{\n}\n"])
def test_file_without_results_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(CorralError, match=r"r\.jsonl has no results"):
        fill(Feed(), ResultSource(str(path)))


@pytest.mark.parametrize("text", ["", "\n", '{"id": null, "error": "the line is not JSON"}\n'])
def test_empty_results_file_is_followed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    feed = Feed()
    fill(feed, ResultSource(str(path)))
    assert feed.keys() == ()


def test_finished_runs_are_read_from_results_and_compared(tmp_path: Path) -> None:
    for name, status in (("before", "passed"), ("after", "failed")):
        (tmp_path / name).mkdir()
        write(str(tmp_path / name), [outcome("t", status, tags=("x",))])
    feed = Feed()
    fill(feed, EvalSource([str(tmp_path / "before"), str(tmp_path / "after")]))
    assert feed.keys() == ("before/t/1", "after/t/1")
    assert feed.evals is not None
    assert [run["rates"] for run in feed.evals["runs"]] == [
        [{"tag": "x", "passed": 1, "tried": 1, "skipped": 0}],
        [{"tag": "x", "passed": 0, "tried": 1, "skipped": 0}],
    ]
    assert [change["kind"] for change in feed.evals["comparison"]["changes"]] == ["broken"]


def test_unfinished_run_is_followed_by_its_journal(tmp_path: Path) -> None:
    with Journal(str(tmp_path)) as journal:
        journal.start(3, 0.0)
        journal.add(outcome("a"))
        # Results of an earlier run, which must not be shown.
        (tmp_path / RESULTS).write_text(json.dumps(outcome("old").to_dict()) + "\n")
        feed, end = followed(EvalSource([str(tmp_path)]))
        try:
            eventually(lambda: feed.evals is not None and len(feed.evals["runs"][0]["tasks"]) == 1)
            journal.add(outcome("b", "failed"))
            eventually(lambda: feed.evals is not None and len(feed.evals["runs"][0]["tasks"]) == 2)
            assert feed.evals is not None
            assert (feed.evals["runs"][0]["total"], feed.evals["runs"][0]["counts"]["failed"]) == (3, 1)
        finally:
            end()


def test_kind_of_source_is_detected_from_content(tmp_path: Path) -> None:
    def log() -> Any:
        return "the log"

    run, results = tmp_path / "run", tmp_path / "results.jsonl"
    run.mkdir()
    write(str(run), [outcome("t")])
    results.write_text('{"id": "a", "argv": ["ls"], "exit_code": 0}\n')
    found = [
        source_of(paths, log=log, root="/p")
        for paths in ([], [str(run)], [str(run / RESULTS)], [str(run), str(run)], [str(results)])
    ]
    assert found[0] == "the log"
    assert [source.kind for source in found[1:]] == ["eval", "eval", "eval", "results"]
    for source in found[1:]:
        source.close()


@pytest.mark.parametrize("kind", ["missing", "empty folder", "three", "mixed"])
def test_unusable_paths_are_refused(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with Journal(str(run)):
        pass
    (tmp_path / "empty").mkdir()
    (tmp_path / "r.jsonl").write_text("")
    paths = {"missing": ["nowhere"], "empty folder": ["empty"], "three": ["run"] * 3, "mixed": ["run", "r.jsonl"]}[kind]
    with pytest.raises(CorralError):
        source_of([str(tmp_path / path) for path in paths], log=lambda: None, root="")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "change",
    [{"id": ["x"]}, {"id": None}, {"status": "odd"}, {"status": []}, {"tags": [1]}, {"tags": "ab"}, {"calls": [7]}, {"differences": [{}]}, {"duration_ms": "x"}, {"said": 3}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["results", "journal"])
def test_non_outcomes_are_skipped(tmp_path: Path, change: dict[str, Any], kind: str) -> None:
    rows = [outcome("good").to_dict(), outcome("bad").to_dict() | change]
    with Journal(str(tmp_path)) as journal:
        journal.finish(0.0) if kind == "results" else None
    path = tmp_path / RESULTS if kind == "results" else Path(place(str(tmp_path), os.environ))
    path.write_text("".join(json.dumps(row | {"event": "task"}) + "\n" for row in rows))
    feed = Feed()
    fill(feed, EvalSource([str(tmp_path)]))
    assert feed.evals is not None
    expected = ["good", "bad"] if change == {"tags": "ab"} else ["good"]
    assert [task["id"] for task in feed.evals["runs"][0]["tasks"]] == expected

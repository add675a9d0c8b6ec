"""Tasks run in their own temporary project, are checked against their expectations, and leave nothing behind."""

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from observe import alive, eventually, unique_seconds

from corral.apps.evals.outcome import Outcome
from corral.apps.evals.run_task import Trials
from corral.apps.evals.task import Task
from corral.apps.evals.validate_tasks import problems


def task(**data: Any) -> Task:
    whole = {"id": "x", "profile": "strict", **data}
    assert problems(whole) == []
    return Task("x", whole)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def tried(place: Path, **data: Any) -> tuple[str, tuple[str, ...]]:
    (outcome,) = Trials(str(place)).begin().do_all([task(**data)])
    assert list(place.iterdir()) == []
    return outcome.status, outcome.words


FILES = {"a.txt": "one\n", "run.sh": {"text": "echo hi\n", "mode": "755"}, "bin": {"base64": "AP8="}, "to": {"link": "a.txt"}, "d": {"directory": True}}  # fmt: skip


@pytest.mark.parametrize("matched", [{"lacks": "end"}, {"contains": "end"}, {"regex": "^.*$"}])
def test_file_over_the_size_limit_is_not_checked(place: Path, matched: dict[str, str]) -> None:
    makes = {"profile": "workspace", "shell": "truncate -s 17M big; echo end >> big"}
    status, (said,) = tried(place, **makes, expect={"files": {"big": matched}})
    assert (status, said.startswith("big: ")) == ("failed", True)
    assert tried(place, **makes, expect={"files": {"big": "exists"}}) == ("passed", ())


def test_project_path_is_replaced_in_files(place: Path) -> None:
    makes = {"profile": "workspace", "shell": "pwd > here; ln -s $PWD/here to"}
    expect = {"files": {"here": {"equal": "{project}\n"}, "to": {"equal": "{project}/here"}}}
    assert tried(place, **makes, expect=expect) == ("passed", ())


def test_file_of_some_megabytes_is_checked_to_its_end(place: Path) -> None:
    makes = {"profile": "workspace", "shell": "truncate -s 3M big; echo end >> big"}
    assert tried(place, **makes, expect={"files": {"big": {"contains": "end\n"}}}) == ("passed", ())


@pytest.mark.parametrize(
    ("argv", "expect"),
    [
        pytest.param(["cat", "a.txt"], {"stdout": "one\n", "exit_code": 0, "decision": "allow"}, id="a text"),
        pytest.param(["stat", "-c", "%a", "run.sh"], {"stdout": "755\n"}, id="a mode"),
        pytest.param(["wc", "-c", "bin"], {"stdout": "2 bin\n"}, id="bytes"),
        pytest.param(["readlink", "to"], {"stdout": "a.txt\n"}, id="a link"),
        pytest.param(["ls", "-d", "d"], {"stdout": "d\n"}, id="a directory"),
        pytest.param(["pwd"], {"stdout": "{project}\n"}, id="the project path"),
        pytest.param(["touch", "new"], {"files": {"new": "exists", "old": "absent", "a.txt": {"equal": "one\n"}}}, id="files after"),
        pytest.param(["true"], {"outside": {"x": "absent"}}, id="nothing outside"),
        pytest.param(["seq", "20"], {"stdout": {"contains": ["7\n", "20"], "lacks": "21", "regex": "^1\n2$|^1\n"}}, id="matches"),
        pytest.param(["rm", "a.txt"], {"denied": True, "rule": "name-rm", "rules": ["name-rm", "path-delete-inside"], "exit_code": -100, "reason": {"contains": "denylist"}}, id="a refusal"),
    ],
)  # fmt: skip
def test_expected_result_passes(place: Path, argv: list[str], expect: dict[str, Any]) -> None:
    assert tried(place, files=FILES, argv=argv, expect=expect) == ("passed", ())


@pytest.mark.parametrize(
    ("argv", "expect", "words"),
    [
        (["false"], {"exit_code": 0}, "exit_code: wanted 0, was 1"),
        (["rm", "x"], {"decision": "allow"}, "decision: wanted allow, was deny ("),
        (["ls"], {"rule": "name-rm"}, "rule: wanted name-rm, found none"),
        (["rm", "x"], {"rules": []}, "rules: wanted none, found name-rm"),
        (["echo", "a"], {"stdout": "b\n"}, "stdout: wanted exactly 'b\\n', was 'a\\n'"),
        (["echo", "a"], {"stdout": {"contains": "b"}}, "stdout: wanted something with 'b', was 'a\\n'"),
        (["echo", "a"], {"stdout": {"lacks": "a"}}, "stdout: wanted nothing with 'a', was 'a\\n'"),
        (["echo", "a"], {"stdout": {"regex": "^b"}}, "stdout: wanted a match of '^b', was 'a\\n'"),
        (["true"], {"files": {"new": "exists"}}, "new: wanted, is not there"),
        (["touch", "new"], {"files": {"new": "absent"}}, "new: wanted absent, is there"),
        (["touch", "new"], {"files": {"new": {"equal": "x"}}}, "new: wanted exactly 'x', was ''"),
        (["true"], {"violations": ["silence"]}, "violations: wanted silence, found none"),
        (["true"], {"timed_out": True}, "timed_out: wanted true, was false"),
    ],
)
def test_unexpected_result_fails_with_both_values(
    place: Path, argv: list[str], expect: dict[str, Any], words: str
) -> None:
    status, told = tried(place, argv=argv, expect=expect)
    assert status == "failed"
    assert [line.startswith(words) for line in told] == [True], told


def test_calls_share_the_project_and_failures_name_the_call(place: Path) -> None:
    calls = [
        {"argv": ["touch", "a"], "expect": {"exit_code": 0}},
        {"argv": ["ls"], "expect": {"stdout": "b\n"}},
    ]
    assert tried(place, calls=calls) == ("failed", ("call 2: stdout: wanted exactly 'b\\n', was 'a\\n'",))


TWO = {"a.txt": "one\n", "b.txt": "two\n"}
EDIT = "echo new > a.txt; mv b.txt c.txt"
EDITED = {"a.txt": "changed", "c.txt": "renamed from b.txt"}
AS_BEFORE = {"a.txt": {"equal": "one\n"}, "b.txt": "exists", "c.txt": "absent"}


@pytest.mark.parametrize(
    ("way", "more", "expect"),
    [
        pytest.param("apply", {}, {"changes": EDITED, "conflicts": [], "refused": [], "files": {"a.txt": {"equal": "new\n"}, "b.txt": "absent", "c.txt": "exists"}}, id="applied"),
        pytest.param("discard", {}, {"changes": EDITED, "files": AS_BEFORE}, id="discarded"),
        pytest.param("undo", {}, {"changes": EDITED, "conflicts": [], "files": AS_BEFORE}, id="undone"),
        pytest.param("apply", {"a.txt": "user"}, {"conflicts": ["a.txt"], "files": AS_BEFORE | {"a.txt": {"equal": "user"}}}, id="a conflict"),
        pytest.param("undo", {"c.txt": "user"}, {"conflicts": ["c.txt"], "files": {"a.txt": {"equal": "new\n"}, "c.txt": {"equal": "user"}}}, id="a conflict of an undo"),
        pytest.param("discard", {"a.txt": "user"}, {"files": AS_BEFORE | {"a.txt": {"equal": "user"}}}, id="a discard beside an edit"),
    ],
)  # fmt: skip
def test_transaction_ends_as_the_task_says(place: Path, way: str, more: dict[str, Any], expect: dict[str, Any]) -> None:
    data: dict[str, Any] = {"meanwhile": more} if more else {}
    assert tried(place, files=TWO, transaction=way, shell=EDIT, expect=expect, **data) == ("passed", ())


@pytest.mark.parametrize(
    ("shell", "expect", "words"),
    [
        (EDIT, {"changes": {}}, ["changes: a.txt: wanted as it was, is changed", "changes: c.txt: wanted as it was, is renamed from b.txt"]),
        ("true", {"changes": {"a.txt": "deleted"}}, ["changes: a.txt: wanted deleted, is as it was"]),
        (EDIT, {"conflicts": ["b.txt"]}, ["conflicts: wanted b.txt, found a.txt ("]),
        ("true", {"refused": [".envrc"]}, ["refused: wanted .envrc, found none"]),
    ],
)  # fmt: skip
def test_unexpected_transaction_fails_with_both_values(
    place: Path, shell: str, expect: dict[str, Any], words: list[str]
) -> None:
    meanwhile = {"a.txt": "user"} if "conflicts" in expect else {}
    status, told = tried(place, files=TWO, transaction="apply", meanwhile=meanwhile, shell=shell, expect=expect)
    assert (status, len(told)) == ("failed", len(words))
    assert all(line.startswith(start) for line, start in zip(told, words, strict=True)), told


def test_outcome_keeps_100_changes_but_checks_all(place: Path) -> None:
    names = {f"f{n}": "added" for n in range(150)}
    one = task(transaction="discard", shell="touch f{0..149}", expect={"changes": names})
    (outcome,) = Trials(str(place)).begin().do_all([one])
    kept = outcome.transaction
    assert (outcome.status, kept["became"], len(kept["changes"]), kept["more_changes"]) == (
        "passed",
        "discarded",
        100,
        50,
    )
    assert Outcome.parse(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_calls_in_a_transaction_use_its_profile(place: Path) -> None:
    one = task(transaction="apply", files=TWO, argv=["rm", "a.txt"], expect={"decision": "allow"})
    (outcome,) = Trials(str(place)).begin().do_all([one])
    assert (outcome.status, [call["profile"] for call in outcome.calls]) == ("passed", ["workspace"])


def test_meanwhile_does_not_write_through_planted_links(place: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("canary")
    shell = f"ln -s {victim} way; ln -s {victim}/secret link"
    status, (said,) = tried(
        place, transaction="undo", shell=shell, meanwhile={"way/secret": "x"}, expect={"exit_code": 0}
    )
    assert (status, said.startswith("way/secret ")) == ("error", True)
    assert tried(place, transaction="undo", shell=shell, meanwhile={"link": "x"}, expect={"conflicts": ["link"]}) == (
        "passed",
        (),
    )
    assert [path.read_text() for path in victim.iterdir()] == ["canary"]


def test_files_are_not_written_or_read_through_links(place: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("canary")
    files = {"way": {"link": str(victim)}, "way/new": "x"}
    status, (said,) = tried(place, files=files, argv=["true"], expect={"exit_code": 0})
    assert (status, said.startswith("way/new ")) == ("error", True)
    assert sorted(path.name for path in victim.iterdir()) == ["secret"]
    status, _ = tried(
        place, files={"way": {"link": str(victim)}}, argv=["true"], expect={"files": {"way/secret": "absent"}}
    )
    assert status == "passed"


def test_task_for_root_or_for_users_is_skipped(place: Path) -> None:
    unfit = "not-root" if os.geteuid() == 0 else "root"
    status, _ = tried(place, needs=[unfit], argv=["true"], expect={"exit_code": 1})
    assert status == "skipped"


def test_directories_without_permissions_are_removed(place: Path) -> None:
    shell = "mkdir -p a/b && touch a/b/c && chmod 000 a/b a"
    assert tried(place, profile="workspace", shell=shell, expect={"exit_code": 0}) == ("passed", ())


def test_cancel_kills_the_running_call(place: Path) -> None:
    seconds = unique_seconds()
    trier = Trials(str(place)).begin()
    thread = threading.Thread(
        target=trier.do_all, args=([task(argv=["sleep", seconds], expect={"exit_code": 0}, timeout_seconds=100)],)
    )
    thread.start()
    eventually(lambda: alive(seconds))
    trier.cancel()
    thread.join(60)
    assert (thread.is_alive(), alive(seconds), list(place.iterdir())) == (False, [], [])


@pytest.mark.parametrize("more", [{}, {"transaction": "undo", "files": TWO}], ids=["plain", "in a transaction"])
def test_pickled_worker_has_its_own_directory_and_same_outcome(place: Path, more: dict[str, Any]) -> None:
    one = task(shell="rm a.txt; pwd" if more else "pwd", expect={"stdout": "x"}, **more)
    (here,) = Trials(str(place)).begin().do_all([one])
    before = dict(os.environ)
    worker = pickle.loads(pickle.dumps(Trials(str(place)))).begin()
    theirs = worker._place
    assert Path(theirs).is_dir()
    (there,) = worker.do_all([one])
    worker.close()
    assert (dict(os.environ), Path(theirs).exists()) == (before, False)
    assert [_timeless(here), _timeless(there)] == [_timeless(here)] * 2
    assert here.differences == ("stdout: wanted exactly 'x', was '{project}\\n'",)


def _timeless(outcome: Any) -> dict[str, Any]:
    data = outcome.to_dict()
    calls = [{key: value for key, value in call.items() if key != "duration_ms"} for call in data["calls"]]
    return data | {"duration_ms": 0, "calls": calls}

"""One task in its own throwaway project: set up, judged against what it expects, and gone afterwards."""

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from corral.evals.running import Trials
from corral.evals.task import Task
from corral.evals.taskcheck import problems
from observe import alive, eventually, unique_seconds


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


@pytest.mark.parametrize(
    ("argv", "expect"),
    [
        pytest.param(["cat", "a.txt"], {"stdout": "one\n", "exit_code": 0, "decision": "allow"}, id="a text"),
        pytest.param(["stat", "-c", "%a", "run.sh"], {"stdout": "755\n"}, id="a mode"),
        pytest.param(["wc", "-c", "bin"], {"stdout": "2 bin\n"}, id="bytes"),
        pytest.param(["readlink", "to"], {"stdout": "a.txt\n"}, id="a link"),
        pytest.param(["ls", "-d", "d"], {"stdout": "d\n"}, id="a directory"),
        pytest.param(["pwd"], {"stdout": "{project}\n"}, id="where it is stands for itself"),
        pytest.param(["touch", "new"], {"files": {"new": "exists", "old": "absent", "a.txt": {"equal": "one\n"}}}, id="files after"),
        pytest.param(["true"], {"outside": {"x": "absent"}}, id="nothing outside"),
        pytest.param(["seq", "20"], {"stdout": {"contains": ["7\n", "20"], "lacks": "21", "regex": "^1\n2$|^1\n"}}, id="matches"),
        pytest.param(["rm", "a.txt"], {"denied": True, "rule": "name-rm", "rules": ["name-rm", "path-delete-inside"], "exit_code": -100, "reason": {"contains": "denylist"}}, id="a refusal"),
    ],
)  # fmt: skip
def test_what_is_as_expected_passes(place: Path, argv: list[str], expect: dict[str, Any]) -> None:
    assert tried(place, files=FILES, argv=argv, expect=expect) == ("passed", ())


@pytest.mark.parametrize(
    ("argv", "expect", "words"),
    [
        (["false"], {"exit_code": 0}, "exit_code: wanted 0, was 1"),
        (["rm", "x"], {"decision": "allow"}, "decision: wanted allow, was deny (rm is on the denylist"),
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
def test_what_is_not_fails_and_says_how(place: Path, argv: list[str], expect: dict[str, Any], words: str) -> None:
    status, told = tried(place, argv=argv, expect=expect)
    assert status == "failed"
    assert [line.startswith(words) for line in told] == [True], told


def test_calls_share_the_project_and_are_named_where_they_fail(place: Path) -> None:
    calls = [
        {"argv": ["touch", "a"], "expect": {"exit_code": 0}},
        {"argv": ["ls"], "expect": {"stdout": "b\n"}},
    ]
    assert tried(place, calls=calls) == ("failed", ("call 2: stdout: wanted exactly 'b\\n', was 'a\\n'",))


def test_a_file_is_never_written_or_read_through_a_link(place: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("canary")
    files = {"way": {"link": str(victim)}, "way/new": "x"}
    status, (said,) = tried(place, files=files, argv=["true"], expect={"exit_code": 0})
    assert (status, said) == ("error", "way/new lies behind a link; write the file where the link leads")
    assert sorted(path.name for path in victim.iterdir()) == ["secret"]
    status, _ = tried(
        place, files={"way": {"link": str(victim)}}, argv=["true"], expect={"files": {"way/secret": "absent"}}
    )
    assert status == "passed"


def test_a_task_that_needs_other_rights_is_skipped(place: Path) -> None:
    unfit = "not-root" if os.geteuid() == 0 else "root"
    status, _ = tried(place, needs=[unfit], argv=["true"], expect={"exit_code": 1})
    assert status == "skipped"


def test_what_a_command_closed_is_removed_all_the_same(place: Path) -> None:
    shell = "mkdir -p a/b && touch a/b/c && chmod 000 a/b a"
    assert tried(place, profile="workspace", shell=shell, expect={"exit_code": 0}) == ("passed", ())


def test_cancelling_ends_the_call_that_runs(place: Path) -> None:
    seconds = unique_seconds()
    trier = Trials(str(place)).begin()
    thread = threading.Thread(
        target=trier.do_all, args=([task(argv=["sleep", seconds], expect={"exit_code": 0}, timeout_seconds=100)],)
    )
    thread.start()
    eventually(lambda: alive(seconds))
    trier.cancel()
    thread.join(20)
    assert (thread.is_alive(), alive(seconds), list(place.iterdir())) == (False, [], [])


def test_elsewhere_a_worker_has_a_place_of_its_own_and_the_outcome_is_the_same(place: Path) -> None:
    one = task(argv=["pwd"], expect={"stdout": "x"})
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

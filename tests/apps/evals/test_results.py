"""What a run comes to: lines that read back, XML that parses whatever a command printed, rates, and two runs compared."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from corral._lib.terminal import Terminal
from corral.apps.evals.compare import Change, compare
from corral.apps.evals.outcome import Outcome
from corral.apps.evals.render_report import comparison_text, outcome_text, progress_text, summary_text
from corral.apps.evals.results import RESULTS, Rate, junit, rates, read, summary, write
from corral.model.errors import CorralError

PASSED = Outcome("a", "1", "passed", ("x", "y"), "t.toml:1", duration_ms=1500.0, calls=({"exit_code": 0, "rules": []},))
FAILED = Outcome(
    "b", "2", "failed", ("x",), "t.toml:9", ("exit_code: wanted 0, was 1",), calls=({"stdout": "<&\0\x1b]]>\ud800"},)
)
ERROR = Outcome("c", "3", "error", ("z",), "u.toml:1", said="it broke")
SKIPPED = Outcome("d", "4", "skipped", ("x",), "u.toml:9", said="this machine lacks mount")
SETTLED = Outcome(
    *("e", "5", "passed", ("y",), "u.toml:19"),
    transaction={
        "became": "applied",
        "changes": {"a": "added"},
        "conflicts": {},
        "refused": {".envrc": "it is protected"},
    },
)
ALL = [PASSED, FAILED, ERROR, SKIPPED]


def test_results_read_back(tmp_path: Path) -> None:
    told = [*ALL, SETTLED]
    write(str(tmp_path), told)
    assert read(str(tmp_path)) == read(str(tmp_path / "results.jsonl")) == told
    assert json.loads((tmp_path / "summary.json").read_text()) == summary(told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "results.jsonl", "summary.json"]


UNSOUND = [json.dumps(SETTLED.to_dict() | {"transaction": data}) for data in ([], {}, {"became": 1}, {"became": "x"})]


@pytest.mark.parametrize("text", ["nonsense", '{"x": 1}\n', "[]\n", *UNSOUND])
def test_what_are_no_results_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(CorralError, match=r"is no results\.jsonl of corral eval"):
        read(str(tmp_path))
    with pytest.raises(CorralError, match="name the --out directory of a run"):
        read(str(tmp_path / "none"))


def test_rates_are_of_what_could_be_tried() -> None:
    assert rates(ALL) == [Rate("x", 1, 2, 1), Rate("y", 1, 1, 0), Rate("z", 0, 1, 0)]
    assert [rate.share for rate in rates(ALL)] == [0.5, 1.0, 0.0]
    told = summary(ALL)
    assert (told["passed"], told["failed"], told["error"], told["skipped"]) == (1, 1, 1, 1)
    assert told["not_passed"] == ["b", "c"]


def test_junit_is_xml_whatever_was_printed() -> None:
    tree = ET.fromstring(junit(ALL).encode())
    assert tree.attrib == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1", "time": "1.500"}
    assert [suite.attrib["name"] for suite in tree] == ["t.toml", "u.toml"]
    cases = {case.attrib["name"]: case for case in tree.iter("testcase")}
    assert [child.tag for child in cases["a"]] == ["properties"]
    failure = cases["b"].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "exit_code: wanted 0, was 1"
    assert "<&\ufffd\ufffd]]>\ufffd" in (failure.text or "")
    assert [cases["c"].find("error") is None, cases["d"].find("skipped") is None] == [False, False]


def test_a_comparison_names_what_became_of_a_transaction() -> None:
    assert SETTLED.transaction is not None
    moved = {
        "became": "conflict",
        "changes": {"a": "changed", "b": "added"},
        "conflicts": {"a": "later"},
        "refused": {},
    }
    found = compare([SETTLED, PASSED], [SETTLED.replace(transaction=moved), PASSED])
    words = (
        *("transaction was applied, is conflict", "changes: a was added, is changed", "changes: b was none, is added"),
        *("conflicts: a was none, is later", "refused: .envrc was it is protected, is none"),
    )
    assert found.changes == (Change("changed", "e", "passed", "passed", words),)
    assert compare([SETTLED], [SETTLED]).changes == ()


def test_a_comparison_names_what_broke_what_was_mended_and_what_else_moved() -> None:
    mended = FAILED.replace(status="passed", differences=())
    other = PASSED.replace(calls=({"exit_code": 3, "rules": ["r"]},), digest="9", duration_ms=9.0)
    found = compare([PASSED, FAILED, SKIPPED], [other, mended, ERROR])
    assert found.changes == (
        Change("broken", "c", "", "error", ("it broke",)),
        Change("mended", "b", "failed", "passed"),
        Change("gone", "d", "skipped"),
        Change(
            "changed", "a", "passed", "passed",
            ("the task itself was changed", "call 1: exit_code was 0, is 3", "call 1: rules was none, is r"),
        ),
    )  # fmt: skip
    assert (found.is_worse, found.same) == (True, 0)
    assert found.tags == (("x", 0.5, 1.0), ("z", None, 0.0))
    assert json.loads(json.dumps(found.to_dict()))["changes"][0]["kind"] == "broken"


def test_a_file_without_outcomes_is_no_run(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("\n")
    with pytest.raises(CorralError, match=r"is no results\.jsonl of corral eval"):
        read(str(tmp_path))


def test_a_task_that_was_changed_is_told_from_one_that_broke() -> None:
    edited = "the task itself was changed"
    worse = PASSED.replace(status="failed", digest="9", differences=("x",))
    (broken,) = compare([PASSED], [worse]).changes
    assert (broken.kind, broken.words) == ("broken", (edited, "x"))
    (mended,) = compare([worse], [PASSED]).changes
    assert (mended.kind, mended.words) == ("mended", (edited,))


def test_what_failed_and_cannot_be_tried_any_more_is_not_mended() -> None:
    skipped = FAILED.replace(status="skipped", differences=(), said="this machine lacks mount")
    (change,) = compare([FAILED], [skipped]).changes
    assert (change.kind, change.words[0]) == ("changed", "failed, now skipped: this machine lacks mount")


def test_times_and_what_was_printed_are_no_change() -> None:
    again = [outcome.replace(duration_ms=77.0) for outcome in ALL]
    assert compare(ALL, again).changes == ()
    assert comparison_text(compare(ALL, again), Terminal()) == "nothing changed in 4 tasks"
    assert comparison_text(compare([PASSED, FAILED], [PASSED]), Terminal()).endswith("\n1 task as before")


def test_a_summary_leaves_out_what_was_told_before() -> None:
    bad = [outcome for outcome in ALL if not outcome.is_good]
    text = summary_text(ALL, 61.0, Terminal(60), told={outcome.id for outcome in bad[1:]})
    assert [outcome_text(outcome, Terminal(60)) in text for outcome in bad] == [True] + [False] * (len(bad) - 1)
    assert text.splitlines()[0] == summary_text(ALL, 61.0, Terminal(60)).splitlines()[0]


def test_a_summary_is_plain_on_a_plain_terminal() -> None:
    text = summary_text(ALL, 61.0, Terminal(60, unicode=False))
    assert text == (
        "+ 1 passed  x 1 failed  ! 1 error  - 1 skipped  of 4, 1:01\n"
        "\n"
        "x failed b  t.toml:9\n"
        "    exit_code: wanted 0, was 1\n"
        "! error c  u.toml:1\n"
        "    it broke\n"
        "\n"
        "Tags\n"
        "  x x  1/2 #####.....  50%  1 skipped\n"
        "  + y  1/1 ########## 100%\n"
        "  x z  0/1 ..........   0%\n"
        "\n"
        "- skipped d  u.toml:9\n"
        "    this machine lacks mount"
    )


def test_progress_fits_its_line_and_counts_only_its_own_time() -> None:
    plain = Terminal(80, unicode=False)
    assert progress_text(0, 40, 0, 0.0, plain) == "........................  0/40  0:00"
    assert progress_text(20, 40, 3, 30.0, plain) == "############............ 20/40  3 failed  0:30  0:30 left"
    assert progress_text(30, 40, 0, 10.0, plain, known=20).endswith("30/40  0:10  0:10 left")
    assert progress_text(40, 40, 0, 9.0, plain).endswith("40/40  0:09")
    assert all(
        len(progress_text(500, 1000, 12, 99.0, Terminal(width, unicode=False))) <= width for width in (48, 60, 200)
    )

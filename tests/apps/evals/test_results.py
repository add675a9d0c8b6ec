"""Results: they read back, the XML parses whatever a command printed, rates, comparisons and their text."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._lib.terminal import Terminal
from corral.apps.evals.compare import Change, compare
from corral.apps.evals.outcome import Outcome
from corral.apps.evals.render_report import comparison_text, outcome_text, progress_text, summary_text
from corral.apps.evals.results import Rate, junit, rates, read, summary, write
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


@pytest.mark.parametrize("text", ["nonsense", "\n", '{"x": 1}\n', "[]\n", *UNSOUND])
def test_file_without_valid_outcomes_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(CorralError, match=r"results\.jsonl of corral eval"):
        read(str(tmp_path))
    with pytest.raises(CorralError, match="--out"):
        read(str(tmp_path / "none"))


def test_skipped_tasks_do_not_count_in_rates() -> None:
    assert rates(ALL) == [Rate("x", 1, 2, 1), Rate("y", 1, 1, 0), Rate("z", 0, 1, 0)]
    assert [rate.share for rate in rates(ALL)] == [0.5, 1.0, 0.0]
    told = summary(ALL)
    assert (told["passed"], told["failed"], told["error"], told["skipped"]) == (1, 1, 1, 1)
    assert told["not_passed"] == ["b", "c"]


HOSTILE = st.lists(
    st.sampled_from(["<", ">", "&", '"', "'", "]]>", "<!--", "</failure>", "<![CDATA[", "\0", "\x1b", "\ud800", "\ufffe", "\n", "a"])
).map("".join)  # fmt: skip


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE, st.sampled_from(["passed", "failed", "error", "skipped"]))
def test_no_text_adds_an_element_to_junit(name: str, tag: str, source: str, printed: str, status: str) -> None:
    outcome = Outcome(name, "1", status, (tag,), f"{source}:1", (printed,), calls=({"stdout": printed},))
    (suite,) = ET.fromstring(junit([outcome]).encode())
    (case,) = suite
    assert {element.tag for element in case} <= {"properties", "failure", "error", "skipped"}
    assert [len(element) for element in case] == [1] + [0] * (len(case) - 1)


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


def test_comparison_shows_changed_transactions() -> None:
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


def test_comparison_lists_broken_mended_gone_and_changed_tasks() -> None:
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


def test_comparison_says_that_the_task_was_edited() -> None:
    edited = "the task itself was changed"
    worse = PASSED.replace(status="failed", digest="9", differences=("x",))
    (broken,) = compare([PASSED], [worse]).changes
    assert (broken.kind, broken.words) == ("broken", (edited, "x"))
    (mended,) = compare([worse], [PASSED]).changes
    assert (mended.kind, mended.words) == ("mended", (edited,))


def test_failed_task_that_is_now_skipped_is_not_mended() -> None:
    skipped = FAILED.replace(status="skipped", differences=(), said="this machine lacks mount")
    (change,) = compare([FAILED], [skipped]).changes
    assert (change.kind, change.words[0]) == ("changed", "failed, now skipped: this machine lacks mount")


def test_times_and_output_are_not_compared() -> None:
    again = [outcome.replace(duration_ms=77.0) for outcome in ALL]
    assert compare(ALL, again).changes == ()
    assert comparison_text(compare(ALL, again), Terminal()) == "nothing changed in 4 tasks"
    assert comparison_text(compare([PASSED, FAILED], [PASSED]), Terminal()).endswith("\n1 task as before")


def test_summary_omits_failures_shown_before() -> None:
    bad = [outcome for outcome in ALL if not outcome.is_good]
    text = summary_text(ALL, 61.0, Terminal(60), told={outcome.id for outcome in bad[1:]})
    assert [outcome_text(outcome, Terminal(60)) in text for outcome in bad] == [True] + [False] * (len(bad) - 1)
    assert text.splitlines()[0] == summary_text(ALL, 61.0, Terminal(60)).splitlines()[0]


def test_summary_is_ascii_on_a_plain_terminal() -> None:
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


def test_progress_fits_its_line_and_estimates_from_new_tasks() -> None:
    plain = Terminal(80, unicode=False)
    assert progress_text(0, 40, 0, 0.0, plain) == "........................  0/40  0:00"
    assert progress_text(20, 40, 3, 30.0, plain) == "############............ 20/40  3 failed  0:30  0:30 left"
    assert progress_text(30, 40, 0, 10.0, plain, known=20).endswith("30/40  0:10  0:10 left")
    assert progress_text(40, 40, 0, 9.0, plain).endswith("40/40  0:09")
    assert all(
        len(progress_text(500, 1000, 12, 99.0, Terminal(width, unicode=False))) <= width for width in (48, 60, 200)
    )

"""The demo, through a real process: every outcome as expected, shown and told, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corral.demo import ADVERSARIAL, CASES, Case, Outcome, row_text
from corral.model import DENIED_EXIT_CODE, TIMED_OUT_EXIT_CODE, Axis, Call, Decision, Finding, Verdict
from corral.result import SandboxResult
from corral.terminal import Terminal, columns

DENIAL = Verdict((Finding(Axis.PATH, "path-x", Decision.DENY, "It is outside."),))
RAN = SandboxResult(("ls",), 0)
DENIED = SandboxResult(("x",), DENIED_EXIT_CODE, denied=True, reason="It is outside.", verdict=DENIAL)
TIMED_OUT = SandboxResult(("x",), TIMED_OUT_EXIT_CODE, timed_out=True, duration_ms=500)
LEGAL = Case("legal", Call(["ls"]), "ran")
PATH = Case("path", Call(["cat", "../x"]))


def demo(place: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", "demo", *arguments]
    env = {**os.environ, "TMPDIR": str(place), **environ}
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    place = tmp_path_factory.mktemp("demo")
    done = demo(place, COLUMNS="90")
    assert list(place.iterdir()) == []
    return done


@pytest.fixture(scope="module")
def told(shown: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = json.loads(shown.stdout)
    return data


def test_every_outcome_is_as_expected(shown: subprocess.CompletedProcess[str], told: list[dict[str, Any]]) -> None:
    assert [outcome for outcome in told if not outcome["as_expected"]] == []
    assert shown.returncode == 0
    assert shown.stderr.rstrip().endswith(f"{len(CASES)} of {len(CASES)} outcomes are as expected")


def test_every_case_is_told_with_its_result(told: list[dict[str, Any]]) -> None:
    assert [(o["group"], o["expected"], o["shell"]) for o in told] == [
        (c.group, c.expected, c.call.shell) for c in CASES
    ]
    for outcome in told:
        assert outcome["denied"] is (outcome["outcome"] == "denied") is bool(outcome["reason"])
        assert outcome["timed_out"] is (outcome["outcome"] == "timed out")
        assert outcome["truncated"] is (outcome["outcome"] == "truncated")


def test_every_axis_is_attacked_in_argv_and_in_shell() -> None:
    assert set(ADVERSARIAL) == {str(axis) for axis in Axis}
    assert {group for group, calls in ADVERSARIAL.items() if {c.shell for c in calls} == {True, False}} == set(
        ADVERSARIAL
    )
    assert {case.expected for case in CASES} == {"ran", "denied", "timed out", "truncated"}


def test_every_case_has_a_row_and_they_are_aligned(shown: subprocess.CompletedProcess[str]) -> None:
    rows = [line for line in shown.stderr.splitlines() if line.startswith("  ")]
    assert len(rows) == len(CASES)
    assert {row[2:13].rstrip() for row in rows} == {"✓ ran", "✗ denied", "! timed out", "! truncated"}
    assert max(columns(row) for row in rows) <= 90
    assert "\x1b" not in shown.stderr


def test_json_alone_is_all_there_is(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    done = demo(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(o["call"], o["outcome"]) for o in json.loads(done.stdout)] == [(o["call"], o["outcome"]) for o in told]


def test_an_outcome_that_is_not_as_expected_fails_the_demo(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = demo(tmp_path, PATH=str(empty))
    assert done.returncode == 1
    assert "unexpected: this must be ran" in done.stderr
    assert not all(outcome["as_expected"] for outcome in json.loads(done.stdout))


@pytest.mark.parametrize(
    ("case", "result", "as_expected"),
    [
        pytest.param(LEGAL, RAN, True, id="ran as it must"),
        pytest.param(LEGAL, RAN.replace(exit_code=1), False, id="another exit code"),
        pytest.param(LEGAL, DENIED, False, id="denied though legal"),
        pytest.param(LEGAL, RAN.replace(truncated=True), False, id="truncated though short"),
        pytest.param(PATH, DENIED, True, id="denied by its axis"),
        pytest.param(PATH, RAN, False, id="ran though adversarial"),
        pytest.param(PATH.replace(group="name"), DENIED, False, id="denied by another axis"),
        pytest.param(LEGAL.replace(expected="timed out"), TIMED_OUT, True, id="timed out"),
        pytest.param(LEGAL.replace(expected="timed out"), RAN, False, id="ended in time"),
    ],
)
def test_an_outcome_knows_whether_it_is_as_expected(case: Case, result: SandboxResult, as_expected: bool) -> None:
    assert Outcome(case, result).as_expected is as_expected


def test_a_row_says_what_went_wrong() -> None:
    first, second = row_text(Outcome(PATH, RAN), Terminal(80)).splitlines()
    assert (first.split()[:4], second) == (["✓", "ran", "cat", "../x"], "    unexpected: this must be denied by path")


def test_a_narrow_terminal_gets_narrow_rows() -> None:
    for case in CASES:
        for result in (RAN, DENIED, TIMED_OUT):
            assert columns(row_text(Outcome(case, result), Terminal(50)).splitlines()[0]) <= 50

"""`corral demo` as a process: every outcome is as expected, each attack is checked by its effect, and nothing is left behind."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import NOTHING, run_corral_without
from screen import Screen

from corral._lib.terminal import Terminal, columns
from corral.apps.cli.verbs.demo import CANNOT_CONTAIN_STATUS, Page, flow_lines, kernel_line
from corral.apps.evals.demo import ATTEMPTS, CASES, GUARDED, LIMITS, Case, Outcome, Stage, Trial
from corral.model.call import DENIED_EXIT_CODE, TIMED_OUT_EXIT_CODE, Axis, Call, Decision, Finding, Verdict
from corral.model.result import SandboxResult

DENIAL = Verdict((Finding(Axis.PATH, "path-x", Decision.DENY, "It is outside."),))
RAN = SandboxResult(("ls",), 0)
DENIED = SandboxResult(("x",), DENIED_EXIT_CODE, denied=True, reason="It is outside.", verdict=DENIAL)
TIMED_OUT = SandboxResult(("x",), TIMED_OUT_EXIT_CODE, timed_out=True, duration_ms=500)
LEGAL = Case("legal", Call(["ls"]), "ran")
PATH = Case("path", Call(["cat", "../x"]))
READ, _, DAEMON, _ = ATTEMPTS
MAX_ROWS = 50


def demo(place: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", "demo", *arguments]
    env = {**os.environ, "TMPDIR": str(place), **environ}
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    place = tmp_path_factory.mktemp("demo in a path with spaces")
    done = demo(place, COLUMNS="80")
    assert list(place.iterdir()) == []
    return done


@pytest.fixture(scope="module")
def told(shown: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = json.loads(shown.stdout)
    return data


def test_every_outcome_is_as_expected(shown: subprocess.CompletedProcess[str], told: list[dict[str, Any]]) -> None:
    assert [outcome for outcome in told if not outcome["as_expected"]] == []
    assert shown.returncode == 0
    assert f"{len(CASES)} of {len(CASES)} outcomes are as expected." in shown.stderr


def test_json_has_every_case_with_its_result(told: list[dict[str, Any]]) -> None:
    cases = [*((c.group, c.expected) for c in GUARDED), *[("kernel", "held")] * len(ATTEMPTS)]
    assert [(o["group"], o["expected"]) for o in told] == [*cases, *((c.group, c.expected) for c in LIMITS)]
    for outcome in told:
        assert outcome["denied"] is (outcome["outcome"] == "denied") is bool(outcome["reason"])
        assert outcome["timed_out"] is (outcome["outcome"] == "timed out")
        assert outcome["truncated"] is (outcome["outcome"] == "truncated")
    assert [o["works_alone"] for o in told if o["group"] == "kernel"] == [True] * len(ATTEMPTS)


def test_every_axis_is_attacked_in_argv_and_in_shell() -> None:
    attacks = {(case.group, case.call.shell) for case in GUARDED if case.expected == "denied"}
    assert attacks == {(str(axis), is_shell) for axis in Axis for is_shell in (True, False)}
    assert {case.expected for case in (*GUARDED, *LIMITS)} == {"ran", "denied", "timed out", "truncated"}


def test_page_fits_and_shows_whole_reasons(shown: subprocess.CompletedProcess[str], told: list[dict[str, Any]]) -> None:
    lines = shown.stderr.splitlines()
    assert len(lines) <= MAX_ROWS
    # A command to type is never broken, so it may be longer than a line.
    page = itertools.takewhile(lambda line: not line.endswith("Next:"), lines)
    assert max(columns(line) for line in page) <= 80
    assert "\x1b" not in shown.stderr
    assert "…" not in shown.stderr
    whole = " ".join(shown.stderr.split())
    first = {outcome["group"]: outcome["reason"] for outcome in reversed(told) if outcome["denied"]}
    assert [group for group, reason in first.items() if reason not in whole] == []


def test_page_explains_odd_calls_and_fills_each_column(shown: subprocess.CompletedProcess[str]) -> None:
    assert "✓ no-such-program (exit code 127)" in shown.stderr
    assert "✗ an empty call" in shown.stderr
    assert [line.split()[1] for line in shown.stderr.splitlines() if "  –  " in line] == ["print", "run"]


def test_json_option_prints_only_json(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    done = demo(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(o["call"], o["outcome"]) for o in json.loads(done.stdout)] == [(o["call"], o["outcome"]) for o in told]


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_gets_no_json(tmp_path: Path, width: int) -> None:
    environ = {"TMPDIR": str(tmp_path)}
    screen = Screen([sys.executable, "-m", "corral", "demo"], tmp_path, 60, width, environ)
    try:
        page = screen.until(b"selftest").decode()
        assert screen.status() == 0
    finally:
        screen.close()
    assert '{"' not in page + screen.seen.decode()
    assert page.count("\n") < MAX_ROWS


@pytest.mark.real
@pytest.mark.parametrize("above", ["/opt", "/usr/local", "/var/tmp", "/home"])
def test_attacks_are_stopped_below_any_directory(above: str) -> None:
    if not os.access(above, os.W_OK):
        pytest.skip(f"{above} is not writable for this user")
    with tempfile.TemporaryDirectory(dir=above) as place:
        done = demo(Path(place), "--json")
    assert [outcome for outcome in json.loads(done.stdout) if not outcome["as_expected"]] == []
    assert done.returncode == 0


def test_unexpected_outcome_fails_the_demo(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = demo(tmp_path, PATH=str(empty))
    assert done.returncode == 1
    assert "unexpected: " in done.stderr
    assert not all(outcome["as_expected"] for outcome in json.loads(done.stdout))


def test_machine_without_containment_shows_the_guard(tmp_path: Path) -> None:
    done = run_corral_without(NOTHING, "demo", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert [outcome["group"] for outcome in told] == [case.group for case in GUARDED]
    assert all(outcome["as_expected"] for outcome in told)
    assert done.returncode == CANNOT_CONTAIN_STATUS
    assert f"{len(CASES) - len(GUARDED)} could not be tried" in done.stderr
    assert "corral doctor" in done.stderr


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
def test_outcome_is_compared_with_its_case(case: Case, result: SandboxResult, as_expected: bool) -> None:
    assert Outcome(case, result).as_expected is as_expected


REFUSED = RAN.replace(exit_code=1)


@pytest.mark.parametrize(
    ("trial", "word", "as_expected"),
    [
        pytest.param(Trial(READ, REFUSED, works_alone=True, got_out=False), "held", True, id="held"),
        pytest.param(Trial(READ, REFUSED, works_alone=True, got_out=True), "got out", False, id="got out"),
        pytest.param(
            Trial(READ, REFUSED, works_alone=False, got_out=False), "held", False, id="the attack does nothing"
        ),
        pytest.param(Trial(READ, RAN, works_alone=True, got_out=False), "held", False, id="the kernel refused nothing"),
        pytest.param(Trial(READ, DENIED, works_alone=True, got_out=False), "denied", False, id="denied by the guard"),
        pytest.param(Trial(DAEMON, RAN, works_alone=True, got_out=False), "held", True, id="a daemon that ended"),
        pytest.param(
            Trial(DAEMON, REFUSED, works_alone=True, got_out=False), "held", False, id="no daemon was started"
        ),
    ],
)
def test_trial_is_expected_only_if_the_kernel_held(trial: Trial, word: str, as_expected: bool) -> None:
    assert (trial.word, trial.as_expected) == (word, as_expected)
    assert columns(kernel_line(trial, Terminal(80))) <= 80


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Stage() as made:
        yield made
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.title)
def test_attempt_is_recognized_by_its_effect(stage: Stage, attempt: Any) -> None:
    assert stage.succeeded(attempt, stage.copy, b"") is False
    done = subprocess.run(["python3", attempt.script], cwd=stage.copy, capture_output=True, timeout=60, check=True)
    assert stage.succeeded(attempt, stage.copy, done.stdout) is True


def test_home_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", "/before")
    with Stage() as stage:
        assert os.environ["HOME"] == stage.home
    assert os.environ["HOME"] == "/before"


def test_page_marks_unexpected_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page(Terminal(80), is_silent=False)
    page.add(Outcome(PATH, RAN))
    page.end(0, 1, "")
    assert "  path       ✓ cat ../x\n    unexpected: this must be denied by path\n" in capsys.readouterr().err


@pytest.mark.parametrize("width", [10, 24, 60])
def test_lines_are_filled_without_breaking_a_part(width: int) -> None:
    parts = ["\x1b[1;31m✗\x1b[0m ab", "cd ef", "ghi", "jklmno", "p"]
    lines = flow_lines(parts, width)
    assert [part for line in lines for part in line.split("   ")] == parts
    assert max(len(line.replace("\x1b[1;31m", "").replace("\x1b[0m", "")) for line in lines) <= width

"""Tests of the benchmarks: goals are judged correctly, turns are fair, and a sandbox that confines nothing is not compared."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import _all, _install, _turns, accuracy, evals, git, leftovers, overhead
from bench._field import Trying
from bench._floor import Floor
from bench._git_place import made_repository
from bench._guards import Place
from bench._peers import DEBIAN, PEERS, Missing, Peer
from bench._place import make_project, workplace
from bench._rows import Goal, Row, Section, at_least, at_most, row_from_dict, section_from_dict, shown, summary
from bench._running import Running, canary
from bench._turns import Options, Timing, in_turns, timing

pytestmark = pytest.mark.real

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary workplace of the benchmarks."""
    with workplace() as place:
        yield place


@pytest.mark.parametrize(
    ("row", "met"),
    [
        pytest.param(Row("x", 1.1, "ms", 1.0, goal=at_most(1.1)), True, id="at the bound"),
        pytest.param(Row("x", 1.2, "ms", 1.0, goal=at_most(1.1)), False, id="above the most"),
        pytest.param(Row("x", 3.9, "GB/s", 1.0, goal=at_least(4)), False, id="below the least"),
        pytest.param(Row("x", 4.0, "GB/s", 1.0, goal=at_least(4)), True, id="at the least"),
        pytest.param(Row("x", 17.0, "MiB", 4000.0, goal=Goal(16, of_value=True)), False, id="a bound on the value"),
        pytest.param(Row("x", 1.0, "ms", 1.0), None, id="no goal"),
        pytest.param(Row("x", 1.0, "ms", goal=at_most(2)), None, id="no bare value to compare with"),
    ],
)
def test_goal_is_judged_by_its_bound(row: Row, met: bool | None) -> None:
    assert row.met is met
    assert row_from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_section_text_names_met_and_missed_goals() -> None:
    rows = (
        Row("quick", 1.0, "ms", 1.0, 0.02, at_most(1.1), 0.9),
        Row("slow", 1234.5, "ms", 10.0, 0.5, at_most(1.1)),
        Row("memory", 3.0, "MiB", goal=Goal(16, of_value=True)),
    )
    section = Section("a title", rows, ("a note",), name="x")
    assert shown(section) == (
        "a title\n"
        "=======\n"
        "        measured  bare  unit    ratio  spread  quiet      goal\n"
        "quick          1     1  ms      1.00x     ±2%  0.90x   ≤ 1.10x  ✓ met\n"
        "slow       1,234    10  ms    123.45x    ±50%          ≤ 1.10x  ✗ missed\n"
        "memory         3        MiB                           ≤ 16 MiB  ✓ met\n"
        "* a note\n"
    )
    assert section_from_dict(json.loads(json.dumps(section.to_dict()))) == section
    assert summary([section, Section("other", broke="it fell")]) == (
        "2 of 3 goals met\n✗ missed: slow: 123.45x, goal ≤ 1.10x (a title)\n✗ broke: other: it fell"
    )


def test_empty_column_is_left_out() -> None:
    assert shown(Section("t", (Row("x", 2.0, "runs/s"),))) == "t\n=\n   measured  unit\nx         2  runs/s\n"


def test_few_slow_samples_do_not_change_the_median() -> None:
    steady = timing([100] * 90 + [100_000] * 10)
    assert (steady.ms, steady.spread, steady.quiet_ms, steady.samples) == (100 / 1e6, 0.0, 100 / 1e6, 100)


def test_each_round_runs_every_function_in_random_order() -> None:
    ran: list[str] = []
    times = in_turns({name: lambda name=name: ran.append(name) for name in "abc"}, 30)
    rounds = ["".join(ran[i : i + 3]) for i in range(15, len(ran), 3)]
    assert [time.samples for time in times.values()] == [30, 30, 30]
    assert {"".join(sorted(turn)) for turn in rounds} == {"abc"}
    assert len(set(rounds)) > 3


def test_slow_function_gets_fewer_turns_and_its_own_time() -> None:
    times = in_turns({"slow": lambda: 10**9, "quick": lambda: 1000}, 100, seconds_each=10.0)
    assert {name: (time.samples, time.ms) for name, time in times.items()} == {
        "slow": (10, 1000.0),
        "quick": (100, 0.001),
    }


def _running(folder: Path, prefix: list[str]) -> Running:
    peer = Peer("fake", "fake", lambda _place, _project, argv: [*prefix, *argv])
    return Running(peer, str(folder), make_project(folder / "fake"))


def test_canary_detects_a_sandbox_that_confines_nothing(folder: Path) -> None:
    with pytest.raises(Missing, match="it does not enforce: the canary wrote outside"):
        canary(_running(folder, ["env"]), folder / "outside")
    assert list((folder / "outside").iterdir()) == []


def test_each_sandbox_has_its_own_home_and_tmpdir(folder: Path) -> None:
    peer = _running(folder, ["env"])
    peer.run(["sh", "-c", 'touch "$HOME/a" "$CODEX_HOME/b"; mktemp'])
    left = {path.name for name in ("home", "tmp") for path in Path(f"{peer.project}.{name}").iterdir()}
    assert {"a", "b"} < left
    assert len(left) == 3


def test_canary_detects_a_sandbox_that_runs_nothing(folder: Path) -> None:
    with pytest.raises(Missing, match=r"^it does not run here: error: no user namespaces$"):
        canary(_running(folder, ["sh", "-c", "echo error: no user namespaces >&2; false", "sh"]), folder / "outside")


def test_failed_command_is_not_timed(folder: Path) -> None:
    with pytest.raises(Missing, match="it ends false with 1"):
        _running(folder, ["env"]).run(["false"])


@pytest.mark.parametrize(
    "peer", [peer for peer in PEERS if peer.package not in DEBIAN], ids=lambda peer: str(peer.name)
)
def test_missing_peer_is_left_out_with_a_reason(peer: Peer, folder: Path) -> None:
    place = folder / "empty"
    place.mkdir()
    (place / "reasons.json").write_text(json.dumps({peer.package: "the registry said no"}))
    with pytest.raises(Missing, match=r"^the registry said no$"):
        Running(peer, str(place), make_project(folder / peer.name))


def test_failed_install_reports_its_error() -> None:
    code = "import sys; print('npm warn x', file=sys.stderr); sys.exit('ERROR: no such version')"
    assert _install.tried([sys.executable, "-c", code]) == "ERROR: no such version"
    assert _install.tried([sys.executable, "-c", "pass"]) == ""
    assert "No such file" in _install.tried(["/no/such/installer"])


def bench(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmarks from the command line."""
    command = [sys.executable, "-m", "bench", "--rounds=1", f"--results={results}", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_report_has_every_command_its_goal_and_the_load(tmp_path: Path) -> None:
    done = bench(tmp_path, "--json", "--no-peers", "--own-user", "overhead", "cold")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "overhead-cold.json").read_text()) == report
    costs, start = report["sections"]
    judged = {row["what"]: row["goal"] for row in (*costs["rows"], *start["rows"]) if "goal" in row}
    limit = {"ratio at most": 1.1}
    assert judged == {
        **{f"{what}: corral": limit for what in (*overhead.COMMANDS, "a pipeline in bash")},
        "Sandbox() to its first result": {"ratio at most": 6},
    }
    assert report["load"].keys() == report["load_after"].keys() == {"one_minute", "five_minutes"}
    assert (costs["broke"], start["broke"]) == ("", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can measure as another user")
def test_root_also_measures_as_an_ordinary_user(tmp_path: Path) -> None:
    done = bench(tmp_path, "--no-peers", "cold")
    assert (done.returncode, done.stderr) == (0, "")
    titles = [line for line in done.stdout.splitlines() if line.startswith("the cold start of a sandbox")]
    assert ["as root" in title for title in titles] == [True, False]


def test_failing_benchmark_is_reported_and_others_run(tmp_path: Path) -> None:
    code = (
        "import sys; from bench import __main__ as bench, cold\n"
        "def fall(options): raise RuntimeError('it fell')\n"
        "cold.measure = fall\n"
        "sys.argv = ['bench', '--rounds=1', '--results', sys.argv[1], '--no-peers', '--own-user', 'cold', 'crowd']\n"
        "sys.exit(bench.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "✗ broke: RuntimeError: it fell" in done.stdout
    assert "64 at a time" in done.stdout


def test_unknown_benchmark_is_refused(tmp_path: Path) -> None:
    done = bench(tmp_path, "speed")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "python -m bench: error: there is no benchmark speed")


def test_reason_names_no_temporary_directory(folder: Path) -> None:
    assert str(Missing(f"no {folder}/project/.claude")) == "no project/.claude"


def test_command_that_failed_once_is_not_run_again(folder: Path) -> None:
    ran: list[list[str]] = []

    class Falls:
        def run(self, argv: list[str]) -> int | None:
            ran.append(argv)
            raise Missing("it fell")

    way = Trying(Falls(), ["x"])
    assert (way(), way(), way.why, ran) == (0, 0, "it fell", [["x"]])


def test_comparison_on_a_busy_machine_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "COMPARISON_SECONDS", -1.0)
    assert [time.samples for time in in_turns({"a": int, "b": int}, 1000).values()] == [3, 3]


def test_floor_process_runs_a_command_to_its_end(folder: Path) -> None:
    project = make_project(folder / "project")
    floor = Floor(project)
    try:
        assert floor.run(["/bin/sh", "-c", "head -c 300000 /dev/zero; echo here > made"]) == 0
        assert os.waitstatus_to_exitcode(floor.run(["/bin/sh", "-c", "exit 3"])) == 3
    finally:
        floor.close()
    assert Path(project, "made").read_text() == "here\n"


@pytest.mark.parametrize(
    ("program", "decision"),
    [
        pytest.param("exit 0", "allow", id="no output"),
        pytest.param('echo \'{"hookSpecificOutput": {"permissionDecision": "ask"}}\'', "ask", id="asked"),
        pytest.param('echo \'{"hookSpecificOutput": {"permissionDecision": "deny"}}\'', "deny", id="refused"),
        pytest.param('echo \'{"hookSpecificOutput": {"permissionDecision": "allow"}}\'', "allow", id="allowed"),
        pytest.param("exit 2", "deny", id="by its exit code"),
        pytest.param("echo oops; exit 1", "allow", id="broken, which the host takes as allowed"),
    ],
)
def test_answer_of_a_hook_is_read_as_the_host_reads_it(program: str, decision: str, folder: Path) -> None:
    assert Place(folder).decision(["sh", "-c", program], "git status") == decision


def test_right_answers_allow_benign_and_stop_dangerous_commands() -> None:
    benign, dangerous = accuracy.Case("benign", "x", "ls"), accuracy.Case("dangerous", "x", "rm -rf /")
    assert [benign.is_right(said) for said in ("allow", "ask", "deny")] == [True, False, False]
    assert [dangerous.is_right(said) for said in ("allow", "ask", "deny")] == [False, True, True]


def test_every_guard_answers_every_case(folder: Path) -> None:
    section = accuracy.measure(Options(1))
    asked = Counter(case.kind for case in accuracy.cases())
    for guard in (accuracy.CONTAINED, accuracy.UNCONTAINED, accuracy.STRICT):
        answers = {row.subject: row.value for row in section.rows if row.way == guard and "right" not in row.subject}
        assert {kind: sum(v for what, v in answers.items() if what.startswith(kind)) for kind in asked} == dict(asked)


def test_git_goals_are_ratios_or_added_milliseconds() -> None:
    times = Timing(25.0, 0.1, 20.0, 9), Timing(10.0, 0.1, 10.0, 9)
    small, large = git._rows("git add", git.SMALL, *times), git._rows("git add", git.LARGE, *times)
    assert [(row.way, row.met) for row in small] == [("corral", None), ("added by corral", True)]
    assert [(row.way, row.met) for row in large] == [("corral", True), ("added by corral", None)]


def test_repository_of_the_git_benchmark_is_clean(folder: Path) -> None:
    project = made_repository(folder / "project", 3)
    words = ["git", "-C", str(project)]
    assert subprocess.run([*words, "ls-files"], capture_output=True, check=True).stdout == b"0/0\n0/1\n0/2\n"
    assert subprocess.run([*words, "status", "--short"], capture_output=True, check=True).stdout == b""


def test_leftover_processes_are_counted_and_ended(folder: Path) -> None:
    notes: list[str] = []
    project = make_project(folder / "project")
    rows = leftovers._measured("bare", project, lambda argv: leftovers._ended(project, None, argv), notes)
    assert (rows, notes) == ([Row("processes left: bare", 10, "processes")], [])
    assert leftovers._alive(project, "no such marker") == []


def test_evals_benchmark_kills_and_resumes_a_run() -> None:
    rows = {row.what: row.value for row in evals.measure(Options(rounds=1)).rows}
    assert rows["tasks lost or repeated, killed half-way"] == 0


def test_benchmark_over_its_time_limit_is_ended_with_children(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_all, "SECONDS_EACH", 1)
    monkeypatch.setattr(_all, "END_SECONDS", 0.1)
    marker = f"8{os.getpid()}.5"
    section = _all._section(folder, "cold", ["sh", "-c", f"sleep {marker} & sleep {marker}"])
    assert section.broke == "it took more than 1 seconds"
    assert leftovers._wait(str(folder), marker) == []


def test_benchmark_without_results_reports_its_stderr(folder: Path) -> None:
    section = _all._section(folder, "cold", ["sh", "-c", "echo printed; echo why >&2; exit 3"])
    assert (section.name, section.broke) == ("cold", "it ended with 3: why")

"""`corral log` and the lines that the command line leaves, through real processes."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from observe import eventually

from corral._lib.terminal import Terminal, columns
from corral.apps.cli.log_filter import parse_time
from corral.audit.audit_log import Log, directory
from corral.audit.ledger import LOG, Ledger
from corral.audit.render_log import Table, call_of, entry_lines
from corral.model.call import Call, Verdict
from corral.policy.config import SandboxConfig

DEADLINE_SECONDS = 60
HOSTILE = "printf '\x1b[2J\x1b]0;x\x07\u202e\u2028'\r\nsecond"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An owner of the test's own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "NO_COLOR", "COLUMNS"))}
    return env | {"HOME": str(tmp_path / "home"), "TZ": "UTC", "COLUMNS": "120"}


def cli(home: dict[str, str], cwd: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "corral", *arguments]
    return subprocess.run(
        words, cwd=cwd, env=home | environ, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


def log_lines(home: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(directory(home), LOG).read_text().splitlines()]


def test_every_run_is_one_log_entry(home: dict[str, str], project: Path) -> None:
    strict = ("run", "--profile", "strict")
    cli(home, project, *strict, "--", "true")
    cli(home, project, *strict, "--json", "--", "false")
    cli(home, project, *strict, "--", "sudo", "ls")
    cli(home, project, *strict, "--", "nosuchprogram")
    cli(home, project, *strict, "--timeout", "0.2", "--", "sleep", "60")
    cli(home, project, *strict, "--call", "0" * 32, "--shell", "exit 7")
    found = [(e["event"], e["decision"], e["result"]["exit_code"], e.get("call")) for e in log_lines(home)]
    assert found == [
        ("run", "allow", 0, None),
        ("run", "allow", 1, None),
        ("run", "deny", -100, None),
        ("run", "allow", 127, None),
        ("run", "allow", -101, None),
        ("run", "allow", 7, "0" * 32),
    ]


def test_check_is_logged_and_jsonl_is_not(home: dict[str, str], project: Path) -> None:
    assert cli(home, project, "check", "--", "sudo", "ls").returncode == 126
    words = [sys.executable, "-m", "corral", "check", "--jsonl"]
    subprocess.run(words, input=b'{"id": 1, "argv": ["ls"]}\n', cwd=project, env=home, capture_output=True, check=True)
    assert [(e["event"], e["argv"], e["decision"]) for e in log_lines(home)] == [("check", ["sudo", "ls"], "deny")]


def test_killed_run_is_logged(home: dict[str, str], project: Path) -> None:
    words = [sys.executable, "-m", "corral", "run", "--profile", "strict", "--timeout", "0", "--", "sh", "started.sh"]
    (project / "started.sh").write_text("touch started; exec sleep 600\n")
    with subprocess.Popen(words, cwd=project, env=home, stdin=subprocess.DEVNULL) as process:
        eventually((project / "started").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
    assert [(e["argv"], e["result"]["signal"]) for e in log_lines(home)] == [(["sh", "started.sh"], 9)]


def test_nothing_runs_if_the_log_is_unwritable(home: dict[str, str], project: Path) -> None:
    broken = str(project / "state")
    done = cli(home, project, "run", "--profile", "strict", "--", "touch", "ran", XDG_STATE_HOME=broken)
    assert (done.returncode, (project / "ran").exists()) == (125, False)
    assert "the audit log cannot be written" in done.stderr
    assert "audit.required = false" in done.stderr


def test_user_policy_can_allow_runs_without_log(home: dict[str, str], project: Path) -> None:
    policy = Path(home["HOME"], ".config/corral/policy.toml")
    policy.parent.mkdir(parents=True)
    policy.write_text("[audit]\nrequired = false\n")
    Path(home["HOME"], ".local").write_text("no directory\n")
    done = cli(home, project, "run", "--profile", "strict", "--", "touch", "ran")
    assert (done.returncode, (project / "ran").exists()) == (0, True), done.stderr
    assert str(Path(home["HOME"], ".local")) in done.stderr


def test_project_policy_cannot_allow_runs_without_log(home: dict[str, str], project: Path) -> None:
    (project / "corral.toml").write_text("[audit]\nrequired = false\n")
    Path(home["HOME"]).mkdir()
    done = cli(home, project, "run", "--profile", "strict", "--", "touch", "ran", XDG_STATE_HOME="/proc/nowhere")
    assert (done.returncode, (project / "ran").exists()) == (125, False)


def answered(home: dict[str, str], cwd: Path, answer: bytes, *arguments: str) -> int:
    """Run corral on a terminal that controls it, and answer its question."""
    child, outer = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execve(sys.executable, [sys.executable, "-m", "corral", *arguments], home)
    said = b""
    try:
        while part := os.read(outer, 4096):
            said += part
            if b"[N]o" in said and answer:
                os.write(outer, answer)
                answer = b""
    except OSError:
        pass  # how a terminal ends
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(outer)
    return status


def test_trust_and_distrust_are_logged(home: dict[str, str], project: Path) -> None:
    file = project / "corral.toml"
    file.write_text('[containment]\nnetwork = "on"\n')
    assert answered(home, project, b"n\n", "trust") == 1
    assert not Path(directory(home)).exists()
    assert answered(home, project, b"y\n", "trust") == 0
    assert cli(home, project, "distrust").returncode == 0
    assert [(e["event"], e["files"], e["decision"]) for e in log_lines(home)] == [
        ("trust", [str(file)], "allow"),
        ("trust", [str(file)], "deny"),
    ]


def filled(home: dict[str, str], project: Path) -> list[dict[str, Any]]:
    config = SandboxConfig(str(project), profile="workspace")
    Log(config, event="hook", host="claude", environ=home).verdict(Call("git status", True), Verdict())
    cli(home, project, "check", "--", "sudo", "ls", "a b")
    cli(home, project, "check", "--shell", "git reset --hard")
    Log(config, environ=home).verdict(Call(HOSTILE, True), Verdict())
    return log_lines(home)


def test_log_is_a_table_with_the_newest_last(home: dict[str, str], project: Path) -> None:
    entries = filled(home, project)
    done = cli(home, project, "log")
    rows = [row.split(None, 2) for row in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [row[1] for row in rows] == [entry["id"][:8] for entry in entries]
    assert [re.split(r"  +", row[2]) for row in rows] == [
        ["✓ allow", "claude", "git status"],
        ["✗ deny", "name-sudo", "sudo ls 'a b'"],
        ["? ask", "argv-git-discard", "git reset --hard"],
        ["✓ allow", "run", r"printf '\x1b[2J\x1b]0;x\x07\u202e\u2028'\r\nsecond"],
    ]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("--decision", "deny"), 1),
        (("--rule", "argv"), 2),
        (("--host", "claude"), 1),
        (("--event", "check"), 2),
        (("--text", "RESET"), 1),
        (("--project", "."), 4),
        (("--project", "/nowhere"), 0),
        (("--since", "1h"), 4),
        (("--until", "2020-01-01"), 0),
        (("-n", "2"), 2),
        (("-n", "0"), 4),
    ],
)
def test_filters_select_entries(home: dict[str, str], project: Path, options: tuple[str, ...], count: int) -> None:
    entries = filled(home, project)
    done = cli(home, project, "log", "--json", *options)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(found)) == (0, count)
    assert all(entry in entries for entry in found)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--since", "soon"),
        ("-n", "-1"),
        ("--decision", "maybe"),
        ("explain",),
        ("show", "zzzz"),
        ("show",),
        ("--", "ls"),
    ],
    ids=" ".join,
)
def test_invalid_filter_exits_125(home: dict[str, str], project: Path, arguments: tuple[str, ...]) -> None:
    done = cli(home, project, "log", *arguments)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("corral: ")


@pytest.mark.parametrize("arguments", [("log",), ("view", "--out", "r.html")], ids=" ".join)
def test_unreadable_log_is_named(home: dict[str, str], project: Path, arguments: tuple[str, ...]) -> None:
    filled(home, project)
    place = Path(directory(home))
    shutil.rmtree(place)
    place.write_text("no directory")
    done = cli(home, project, *arguments)
    assert (done.returncode, done.stdout) == (125, "")
    assert re.fullmatch(rf"corral: {place}(/\S+)?: Not a directory\n", done.stderr)


def test_transaction_outcome_is_a_row(home: dict[str, str], project: Path) -> None:
    (project / "gone.txt").write_text("x")
    kept = json.loads(cli(home, project, "try", "--json", "--", "rm", "gone.txt").stdout)["transaction"]
    assert cli(home, project, "discard").returncode == 0
    rows = [row.split(maxsplit=4)[4].split(maxsplit=1) for row in cli(home, project, "log").stdout.splitlines()]
    assert rows[1:] == [["transaction", f"kept {kept}: gone.txt"], ["transaction", f"discarded {kept}"]]
    last = log_lines(home)[-1]["id"]
    assert f"    within   transaction {kept}\n" in cli(home, project, "log", "show", last).stdout


def test_empty_log_is_reported(home: dict[str, str], project: Path) -> None:
    done = cli(home, project, "log")
    assert (done.returncode, done.stdout) == (0, "")
    assert directory(home) in done.stderr
    whole = cli(home, project, "log", "verify")
    assert (whole.returncode, whole.stdout) == (0, "whole: no lines\n")


def test_show_judges_the_entry_again(home: dict[str, str], project: Path) -> None:
    entry = filled(home, project)[1]
    done = cli(home, project, "log", "show", entry["id"][:6])
    assert (done.returncode, done.stderr) == (0, "")
    for part in (entry["id"], entry["hash"], str(project), "name-sudo", entry["findings"][0]["reason"], "a b"):
        assert part in re.sub(r"\n +", " ", done.stdout)
    assert done.stdout.count("Verdict today") == 1
    assert done.stdout.rindex("^^^^") > done.stdout.index("Verdict today")
    assert json.loads(cli(home, project, "log", "show", "--json", entry["id"]).stdout) == entry


@pytest.mark.parametrize("arguments", [(), ("a",)], ids=str)
def test_show_needs_four_characters_of_an_id(home: dict[str, str], project: Path, arguments: tuple[str, ...]) -> None:
    done = cli(home, project, "log", "show", *arguments)
    assert (done.returncode, "at least 4 characters" in done.stderr) == (125, True)


def test_hook_verdict_and_its_run_are_shown_together(home: dict[str, str], project: Path) -> None:
    config = SandboxConfig(str(project), profile="workspace")
    Log(config, event="hook", host="claude", environ=home).verdict(Call("exit 4", True), Verdict(), id_="ab" * 16)
    cli(home, project, "run", "--profile", "strict", "--call", "ab" * 16, "--shell", "exit 4")
    shown = cli(home, project, "log", "show", "abab").stdout
    assert "hook claude" in shown
    assert "exit code 4" in shown


def test_refused_call_shows_no_exit_code_and_no_layers(home: dict[str, str], project: Path) -> None:
    cli(home, project, "run", "--profile", "strict", "--", "sudo", "ls")
    (entry,) = log_lines(home)
    shown = cli(home, project, "log", "show", entry["id"]).stdout
    assert "    ended    refused: nothing ran\n" in shown
    assert not {"held", "used", "-100"} & {*shown.split()}


def test_call_with_secrets_is_not_judged_again(home: dict[str, str], project: Path) -> None:
    cli(home, project, "check", "--shell", "DB_PASSWORD=hunter2 ls")
    (entry,) = log_lines(home)
    shown = cli(home, project, "log", "show", entry["id"]).stdout
    assert "hunter2" not in json.dumps(entry) + shown
    assert "Verdict today\n    none: " in shown


def test_verify_names_every_problem(home: dict[str, str], project: Path) -> None:
    entries = filled(home, project)
    whole = cli(home, project, "log", "verify")
    assert (whole.returncode, whole.stdout) == (0, f"whole: 4 lines, 1 to 4\nhead {entries[-1]['hash']}\n")
    file = Path(directory(home), LOG)
    file.write_bytes(file.read_bytes().replace(b'"sudo"', b'"ls"', 1))
    damaged = cli(home, project, "log", "verify")
    assert damaged.returncode == 1
    assert damaged.stdout.splitlines()[0] == f"✗ {file}:2: line 2 was changed: its hash is not that of its text"
    report = json.loads(cli(home, project, "log", "verify", "--json").stdout)
    assert (report["whole"], len(report["problems"]), report["lines"]) == (False, 1, 4)


@pytest.mark.parametrize("instead", ["file", "link to nothing", "file above"])
def test_unreadable_log_is_damaged(home: dict[str, str], project: Path, instead: str) -> None:
    place = Path(directory(home))
    absent = cli(home, project, "log", "verify")
    assert (absent.returncode, absent.stdout) == (0, "whole: no lines\n")
    taken = place.parent if instead == "file above" else place
    taken.parent.mkdir(parents=True, exist_ok=True)
    if instead == "link to nothing":
        taken.symlink_to("nowhere")
    else:
        taken.write_text("")
    for words in ((), ("--json",)):
        done = cli(home, project, "log", "verify", *words)
        assert (done.returncode, done.stdout) == (125, "")
        why = "No such file or directory" if instead == "link to nothing" else "Not a directory"
        assert done.stderr == f"corral: the audit log cannot be read: {place}: {why}\n"


def test_follow_shows_new_entries(home: dict[str, str], project: Path, tmp_path: Path) -> None:
    filled(home, project)
    words = [sys.executable, "-m", "corral", "log", "-f", "--json", "--text", "live"]
    with (tmp_path / "out").open("wb") as out, subprocess.Popen(words, cwd=project, env=home, stdout=out) as process:
        try:
            ledger = Ledger(directory(home), file_bytes=900, files=100)
            for number in range(20):
                ledger.append(f'"id": "x", "decision": "allow", "shell": "live {number}"')
                ledger.append('"id": "x", "decision": "allow", "shell": "another"')
            eventually(lambda: (tmp_path / "out").read_bytes().count(b"\n") >= 20)
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_SECONDS) == 130
        finally:
            process.kill()
    shown = [json.loads(line)["shell"] for line in (tmp_path / "out").read_text().splitlines()]
    assert shown == [f"live {number}" for number in range(20)]


def on_terminal(home: dict[str, str], cwd: Path, **environ: str) -> str:
    outer, inner = pty.openpty()
    words = [sys.executable, "-m", "corral", "log"]
    env = home | {"TERM": "xterm"} | environ
    with subprocess.Popen(words, cwd=cwd, env=env, stdin=inner, stdout=inner, stderr=inner) as process:
        os.close(inner)
        said = b""
        while True:
            try:
                part = os.read(outer, 65536)
            except OSError:
                break
            said += part
            if not part:
                break
        process.wait(DEADLINE_SECONDS)
    os.close(outer)
    return said.decode()


def test_colour_only_adds_to_text(home: dict[str, str], project: Path) -> None:
    filled(home, project)
    coloured, plain = on_terminal(home, project), on_terminal(home, project, NO_COLOR="1")
    assert "\x1b[1;31m✗ deny" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
def test_rows_fit_the_terminal(width: int) -> None:
    entries = [
        {"id": "a" * 32, "at": "2026-11-15T09:30:00.000Z", "decision": "deny", "root": "/w/" + "p" * 60, "pid": 1}
        | {
            "shell": "漢字 " * 50 + HOSTILE,
            "findings": [{"rule": "argv-" + "x" * 60, "decision": "deny", "reason": "y" * 300}],
        },
        {
            "id": "b" * 32,
            "at": "2026-10-15T09:30:00.000Z",
            "decision": "allow",
            "root": "/w/q",
            "argv": ["ls"],
            "pid": 1,
        },
        {"id": "c" * 32, "at": "broken", "decision": "perhaps", "error": "no JSON " * 20, "pid": 1},
    ]
    terminal = Terminal(columns=width)
    table = Table(entries, terminal, lambda e: e["at"].replace("T", " ")[:19].ljust(19))
    for entry in entries:
        for row in [*table.row(entry), *entry_lines(entry, terminal, lambda e: e["at"])[2:]]:
            assert columns(row) <= max(width, 24), row
            assert row.isprintable()


def test_cut_call_is_not_judged_again() -> None:
    entry: dict[str, Any] = {"root": "/w", "cwd": "/w/sub", "argv": ["ls", "x"]}
    assert call_of(entry) == Call(("ls", "x"), False, "/w/sub")
    assert call_of({"root": "/w", "cwd": "/w", "shell": "ls"}) == Call("ls", True, None)
    assert call_of(entry | {"cut": {"length": 9}}) is None
    assert call_of(entry | {"argv": ["x", "[redacted:aws]"]}) is None
    assert call_of({"root": "/w", "error": "no JSON"}) is None


def test_times_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert parse_time("2026-11-15T09:30:00+00:00") == "2026-11-15T09:30:00.000Z"
    assert parse_time("3d") < parse_time("2h") < parse_time("10m") < parse_time("0s")
    assert parse_time("yesterday") < parse_time("today") <= parse_time("0s")
    for wrong in ("", "soon", "-1d", "2026-13-01"):
        with pytest.raises(ValueError, match=r".*"):
            parse_time(wrong)

"""`corral view` through real processes: it serves until it is ended, or writes one file and serves nothing."""

import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from screen import Screen

from corral.apps.cli import main
from corral.apps.evals.results import RESULTS
from corral.audit.audit_log import Log
from corral.model.call import Call, Verdict
from corral.policy.config import SandboxConfig

DEADLINE_SECONDS = 60


def cli(home: dict[str, str], cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "corral", "view", *arguments]
    return subprocess.run(
        words, cwd=cwd, env=home, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


@pytest.fixture
def logged(home: dict[str, str], project: Path) -> dict[str, str]:
    Log(SandboxConfig(str(project)), event="hook", environ=home).verdict(Call("ls -l", True), Verdict())
    return home


def asked(url: str, path: str) -> dict[str, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), int(parts.port or 0), timeout=DEADLINE_SECONDS)
    connection.request("GET", path, headers={"X-Corral-Token": parts.fragment.removeprefix("token=")})
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_server_runs_until_a_signal(logged: dict[str, str], project: Path, ended_by: int) -> None:
    words = [sys.executable, "-m", "corral", "view", "--json"]
    with subprocess.Popen(
        words, cwd=project, env=logged, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert [call["shell"] for call in asked(url, "/api/calls?after=0&loaded=1")["calls"]] == ["ls -l"]
        process.send_signal(ended_by)
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stderr is not None
        assert "Ctrl-C" in process.stderr.read()


def test_report_is_readable_only_by_the_user(logged: dict[str, str], project: Path) -> None:
    done = cli(logged, project, "--json", "--out", "r.html")
    report = project / "r.html"
    assert json.loads(done.stdout) == {"path": "r.html", "calls": 1, "bytes": report.stat().st_size}
    assert done.returncode == 0
    assert report.stat().st_mode & 0o777 == 0o600
    assert "ls -l" in report.read_text()
    assert [path.name for path in project.iterdir()] == ["r.html"]


def test_progress_of_a_report_is_erased_from_the_terminal(logged: dict[str, str], project: Path) -> None:
    screen = Screen([sys.executable, "-m", "corral", "view", "--out", "r.html"], project, environ=logged)
    try:
        assert screen.status() == 0
    finally:
        screen.close()
    drawn, _, after = screen.seen.rpartition(b"\r\x1b[K")
    assert drawn.startswith(b"\rcorral: 1 calls read\x1b[K")
    assert b"r.html" in after
    assert b"\r" not in cli(logged, project, "--out", "r.html").stderr.encode()


def test_link_at_the_report_path_is_replaced(logged: dict[str, str], project: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("keep")
    (project / "r.html").symlink_to(tmp_path / "victim")
    assert cli(logged, project, "--out", "r.html").returncode == 0
    assert (tmp_path / "victim").read_text() == "keep"
    assert not (project / "r.html").is_symlink()


def test_filters_select_the_calls_of_a_report(logged: dict[str, str], project: Path) -> None:
    done = cli(logged, project, "--json", "--decision", "deny", "--out", "r.html")
    assert json.loads(done.stdout)["calls"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "nowhere/r.html"), "No such file or directory"),
        (("missing.jsonl",), "missing.jsonl: No such file or directory"),
        (("--port", "99999"), "99999 is "),
        (("--spans", "missing", "--out", "r.html"), "missing: No such file or directory"),
        (("--spans", "notes.txt", "--out", "r.html"), "notes.txt has no spans"),
        (("notes.txt", "--out", "r.html"), "notes.txt has no results"),
        (("--frobnicate",), "--frobnicate"),
    ],
    ids=str,
)
def test_wrong_arguments_and_files_are_125(
    logged: dict[str, str], project: Path, arguments: tuple[str, ...], said: str
) -> None:
    (project / "notes.txt").write_text("pears\n")
    done = cli(logged, project, *arguments)
    assert (done.returncode, done.stdout) == (125, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_port_in_use_is_125(logged: dict[str, str], project: Path) -> None:
    words = [sys.executable, "-m", "corral", "view"]
    with subprocess.Popen(
        words, cwd=project, env=logged, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        port = urlsplit(process.stdout.readline()).port
        done = cli(logged, project, "--port", str(port))
        process.terminate()
    assert done.returncode == 125
    assert f"127.0.0.1:{port}: Address already in use; " in done.stderr


def test_eval_results_become_a_report(home: dict[str, str], project: Path, tmp_path: Path) -> None:
    (project / "tasks.toml").write_text('[[task]]\nid = "lists"\nargv = ["ls"]\nexpect = { exit_code = 0 }\n')
    assert main(["eval", str(project / "tasks.toml"), "--out", str(tmp_path / "run")]) == 0
    (outcome,) = [json.loads(line) for line in (tmp_path / "run" / RESULTS).read_text().splitlines()]
    assert (outcome["calls"][0]["argv"], outcome["calls"][0]["profile"]) == (["ls"], "strict")
    done = cli(home, project, str(tmp_path / "run"), "--json", "--out", "r.html")
    assert json.loads(done.stdout)["calls"] == 1
    assert '"id":"lists","status":"passed"' in (project / "r.html").read_text()

"""`corral session start`, `run --background`, `ps`, `logs`, `attach` and `stop`: the user's own session of a project."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS
from observe import alive, eventually, free_port, unique_seconds
from session_world import Agent, is_running, working

pytestmark = pytest.mark.usefixtures("_full")
FETCH = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{}').status)"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Agent]:
    with working(tmp_path, "") as made:
        yield made


def corral(user: Agent, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "corral", *words]
    return subprocess.run(
        command,
        env=user.environ,
        cwd=user.root,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )


def started(user: Agent, *words: str) -> str:
    done = corral(user, "run", "--background", "--json", *words)
    assert done.returncode == 0, done
    return str(json.loads(done.stdout)["id"])


def test_background_process_is_listed_read_reached_and_ended(user: Agent) -> None:
    port = free_port()
    name = started(user, "--", "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", str(port))
    shell = f'for i in $(seq 200); do python3 -c "{FETCH.format(port)}" 2>/dev/null && break; sleep 0.1; done'
    assert corral(user, "run", "--shell", shell).stdout == b"200\n"
    (session,) = json.loads(corral(user, "ps", "--json").stdout)
    assert session["ports"] == [port]
    checks = json.loads(corral(user, "status", "--json").stdout)["checks"]
    assert [one["text"] for one in checks if one["about"] == "session"] == [
        f"user: 1 running, 1 of them in the background, ports {port}"
    ]
    assert [(one["id"], one["background"], one["running"]) for one in session["processes"]] == [(name, True, True)]
    assert b'"GET / HTTP/1.1" 200' in corral(user, "logs", name).stdout
    assert corral(user, "stop", name[:3]).returncode == 0
    eventually(lambda: not alive(str(port)))
    assert b"ended 137" in corral(user, "ps").stdout
    assert corral(user, "stop").returncode == 0
    assert not is_running(session["pid"])
    assert corral(user, "ps").stdout == b"No session runs here.\n"


def test_attach_passes_input_and_returns_the_status(user: Agent) -> None:
    name = started(user, "--shell", "echo ready; read line; echo got $line; exit 7")
    done = corral(user, "attach", name, stdin=b"word\n")
    assert (done.returncode, done.stdout) == (7, b"ready\ngot word\n")


def test_old_output_is_dropped_and_counted(user: Agent) -> None:
    name = started(user, "--", "python3", "-c", "print('x' * 3_000_000, end='')")
    done = corral(user, "logs", "-f", name)
    shown = len(done.stdout)
    assert 0 < shown <= 1024 * 1024
    dropped = sum(int(line.split()[1]) for line in done.stderr.splitlines())
    assert shown + dropped == 3_000_000


def test_refused_command_is_not_started(user: Agent) -> None:
    done = corral(user, "run", "--background", "--", "sudo", "id")
    assert (done.returncode, b"name-sudo" in done.stderr) == (126, True)
    assert [facts["processes"] for facts in user.facts()] == [[]]


SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            open(".mcp.json", "a").write("bad")
            text = b"wrote"
        except OSError as error:
            text = b"refused %d" % error.errno
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)
print("serving", os.getppid(), flush=True)
http.server.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""
ASK = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{}').read().decode())"


def serving(user: Agent) -> tuple[str, list[str]]:
    """Start a server that tries to write a protected file whenever it is asked. Return its id, and the words that ask it."""
    port = free_port()
    (user.root / ".mcp.json").write_text("{}")
    (user.root / f"server{port}.py").write_text(SERVER.replace("PORT", str(port)))
    (user.root / f"ask{port}.py").write_text(ASK.format(port))
    name = started(user, "--", "python3", f"server{port}.py")
    eventually(lambda: b"serving" in corral(user, "logs", name).stdout)
    return name, ["run", "--", "python3", f"ask{port}.py"]


def replace(path: Path, text: str) -> None:
    """Save a file as an editor does."""
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.rename(path)


def test_server_survives_a_replaced_protected_file_and_cannot_write_it(user: Agent) -> None:
    name, ask = serving(user)
    assert corral(user, *ask).stdout == b"refused 30\n"
    for text in ("second", "third"):
        replace(user.root / ".mcp.json", text)
        assert corral(user, *ask).stdout == b"refused 30\n"
        assert (user.root / ".mcp.json").read_text() == text
    assert corral(user, "logs", name).stdout.count(b"serving") == 1


def test_service_mounts_a_replaced_file_again_without_a_command(user: Agent) -> None:
    port = int(serving(user)[1][-1].removesuffix(".py").removeprefix("ask"))
    (server,) = alive(f"server{port}.py")
    mounts = Path(f"/proc/{server}/mountinfo")
    assert ".mcp.json" in mounts.read_text()
    replace(user.root / ".mcp.json", "second")
    eventually(lambda: ".mcp.json" in mounts.read_text())


def test_server_starts_again_when_a_protected_file_was_removed(user: Agent) -> None:
    name, ask = serving(user)
    (user.root / ".mcp.json").unlink()
    assert corral(user, "run", "--", "true").returncode == 0
    eventually(lambda: corral(user, "logs", name).stdout.count(b"serving") == 2)
    said = corral(user, "logs", name).stdout
    assert b"corral: ended, and starts again: a protected file was removed" in said
    assert corral(user, *ask).stdout == b"wrote\n"
    # The file is a planted one now, and is moved away after the next command.
    eventually(
        lambda: corral(user, "run", "--", "true").returncode is not None and not (user.root / ".mcp.json").exists()
    )


def test_only_sixteen_stay(user: Agent) -> None:
    seconds = unique_seconds()
    for _ in range(16):
        started(user, "--", "sleep", seconds)
    assert len(alive(seconds)) == 16
    done = corral(user, "run", "--background", "--", "sleep", seconds)
    assert (done.returncode, b"16 processes" in done.stderr) == (125, True)
    user.end()
    eventually(lambda: not alive(seconds))


def test_run_uses_the_session_and_ends_as_without(user: Agent) -> None:
    alone = corral(user, "run", "--shell", "cat; echo err >&2; exit 4", stdin=b"in\n")
    assert corral(user, "session", "start").returncode == 0
    inside = corral(user, "run", "--shell", "cat; echo err >&2; exit 4", stdin=b"in\n")
    assert (alone.returncode, alone.stdout, alone.stderr) == (4, b"in\n", b"err\n")
    assert (inside.returncode, inside.stdout, inside.stderr) == (4, b"in\n", b"err\n")
    assert user.was_in_session("cat; echo err >&2; exit 4")
    refused = corral(user, "run", "--", "sudo", "id")
    assert (refused.returncode, b"name-sudo" in refused.stderr) == (126, True)


def test_time_limit_holds_in_the_session(user: Agent) -> None:
    assert corral(user, "session", "start").returncode == 0
    seconds = unique_seconds()
    done = corral(user, "run", "--timeout", "0.5", "--", "sleep", seconds)
    assert done.returncode == 124
    assert not alive(seconds)


def test_unknown_process_is_an_error(user: Agent) -> None:
    assert corral(user, "stop", "0000").returncode == 125
    assert corral(user, "logs", "0000").returncode == 125


def test_background_command_that_cannot_be_logged_says_why(user: Agent) -> None:
    assert corral(user, "session", "start").returncode == 0
    log = user.state / "audit" / "log.jsonl"
    log.unlink(missing_ok=True)
    log.mkdir(parents=True)
    done = corral(user, "run", "--background", "--", "touch", "made")
    assert (done.returncode, b"the audit log" in done.stderr) == (125, True), done
    assert not (user.root / "made").exists()

"""`corral mcp` as a program: no other verb imports the SDK, errors are reported, and signals end it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mcp_client_ways import PROGRAM, Home
from observe import alive, eventually, unique_seconds

from corral.integrations.extras import install_command

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A user's home directory beside a project."""
    return Home(tmp_path)


def run(home: Home, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=home.env, cwd=home.project, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def line(message: dict[str, object]) -> str:
    return json.dumps(message) + "\n"


@pytest.mark.parametrize("words", [["--help"], ["mcp", "--help"], ["check", "--", "ls"], ["rule"]])
def test_other_verbs_and_help_do_not_import_the_sdk(home: Home, words: list[str]) -> None:
    code = (
        "import sys; from corral.apps.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({'mcp', 'anyio', 'pydantic', 'uvicorn'} & set(sys.modules)), file=sys.stderr)"
    )
    done = run(home, sys.executable, "-c", code, *words)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("missing", ["mcp", "mcp.server", "anyio", "uvicorn"])
def test_missing_extra_is_reported_with_its_install_command(home: Home, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from corral.apps.cli import main; sys.exit(main(['mcp']))"
    done = run(home, sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (125, "")
    assert missing in done.stderr
    assert done.stderr.endswith(f"{install_command('mcp')}\n")
    assert done.stderr.count(install_command("mcp")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "nowhere"], "--root nowhere"),
        (["--token-file", "x"], "--token-file"),
        (["--http", "99999"], "--http"),
        (["--json"], "--json"),
        (["--profile", "loose"], "loose"),
        (["--", "ls"], "mcp"),
    ],
)
def test_bad_options_are_reported_and_nothing_is_served(home: Home, words: list[str], said: str) -> None:
    done = run(home, *PROGRAM, *words)
    assert (done.returncode, done.stdout) == (125, "")
    assert said in done.stderr


def test_unreadable_policy_is_reported_at_start(home: Home) -> None:
    home.policy("nonsense = 1\n")
    done = run(home, *PROGRAM)
    assert done.returncode == 125
    assert "policy.toml:1:1" in done.stderr


def test_client_disconnect_is_not_a_failure(home: Home) -> None:
    done = run(home, *PROGRAM, text=line(HELLO) + line(READY))
    assert (done.returncode, done.stderr) == (0, "")
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert (answer["result"]["serverInfo"]["name"], answer["result"]["protocolVersion"]) == ("corral", "2025-11-25")
    assert "corral://policy" in answer["result"]["instructions"]


JUNK = {
    "no JSON": "not json\n",
    "an object": "{}\n",
    "a list": "[]\n",
    "an unknown method": '{"jsonrpc": "2.0", "id": 2, "method": "no/such"}\n',
    "deep lists": "[" * 50_000 + "\n",
    "no UTF-8": "\ud800\n",
    "deep objects": '{"a": ' * 20_000 + "\n",
    "empty lines": "\n\n\n",
}


def test_junk_does_not_end_the_server(home: Home) -> None:
    with subprocess.Popen(
        PROGRAM, env=home.env, cwd=home.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write((line(HELLO) + line(READY)).encode())
        answers = (json.loads(answer) for answer in server.stdout)
        for name, junk in JUNK.items():
            ping = {"jsonrpc": "2.0", "id": name, "method": "ping"}
            server.stdin.write((junk + line(ping)).encode("utf-8", "surrogatepass"))
            server.stdin.flush()
            assert next((answer["result"] for answer in answers if answer.get("id") == name), None) == {}, name
        server.stdin.close()
        assert server.wait(timeout=60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_ends_the_server_and_its_commands(home: Home, number: signal.Signals) -> None:
    seconds = unique_seconds()
    call = {"name": "run_command", "arguments": {"argv": ["sleep", seconds], "timeout_seconds": 600}}
    with subprocess.Popen(
        PROGRAM, env=home.env, cwd=home.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:  # fmt: skip
        assert server.stdin is not None
        server.stdin.write(
            line(HELLO) + line(READY) + line({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        )
        server.stdin.flush()
        eventually(lambda: len(alive(seconds)) == 1)
        os.kill(server.pid, number)
        eventually(lambda: alive(seconds) == [])
        server.wait(timeout=60)

"""A host's call shows its output as it comes, in order, and its result names the refusals that its errors report."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS, Owner, payload

LINES = 200_000


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def rewritten(owner: Owner, text: str) -> list[str]:
    """Return the command that Claude Code runs, as its shell gets it."""
    found = json.loads(owner.hook("claude", payload("claude", owner, text)).stdout)
    return ["bash", "-c", found["hookSpecificOutput"]["updatedInput"]["command"]]


def run(owner: Owner, text: str, *, merged: bool = False, **environ: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        rewritten(owner, text),
        cwd=owner.root,
        env=owner.environ | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        check=False,
        timeout=DEADLINE_SECONDS,
    )


@pytest.mark.parametrize("merged", [False, True], ids=["apart", "in one file"])
def test_server_of_the_machine_is_named(owner: Owner, merged: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run(owner, f'echo "127.0.0.1:{port}: Connection refused" >&2; exit 7', merged=merged)
    assert done.returncode == 7
    assert f"containment.local = [{port}]" in (done.stdout if merged else done.stderr).decode()


def test_server_that_another_command_started_is_named(owner: Owner) -> None:
    serve = "python3 -uc \"import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1]); s.accept()\""
    with subprocess.Popen(
        rewritten(owner, serve), cwd=owner.root, env=owner.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        done = run(owner, f'echo "127.0.0.1:{port}: Connection refused" >&2; exit 7')
        server.terminate()
    assert done.returncode == 7
    assert "the user can set sessions = true" in done.stderr.decode()


def test_missing_variable_is_named(owner: Owner) -> None:
    text = "python3 -c \"import os; os.environ['APP_DATABASE_URL']\""
    done = run(owner, text, APP_DATABASE_URL="postgres:///app")
    assert done.returncode == 1
    assert 'environment = ["APP_DATABASE_URL"]' in done.stderr.decode()


def test_streams_stay_in_order_and_apart(owner: Owner) -> None:
    text = "for i in 1 2 3; do echo out$i; echo err$i >&2; done; exit 3"
    done = run(owner, text, merged=True)
    assert (done.returncode, done.stdout) == (3, b"out1\nerr1\nout2\nerr2\nout3\nerr3\n")
    done = run(owner, text)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out1\nout2\nout3\n", b"err1\nerr2\nerr3\n")


def test_long_output_is_whole(owner: Owner) -> None:
    assert run(owner, f"seq {LINES}").stdout.splitlines() == [b"%d" % number for number in range(1, LINES + 1)]


def test_command_ends_when_nobody_reads(owner: Owner) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        rewritten(owner, "yes; true"), cwd=owner.root, env=owner.environ, stdin=subprocess.DEVNULL, stdout=writing
    ) as host:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        host.wait(DEADLINE_SECONDS)


def test_process_that_the_command_left_holds_up_nothing(owner: Owner) -> None:
    assert run(owner, "sleep 1000 & echo started").stdout == b"started\n"


def test_command_has_streams_if_the_host_closed_some(owner: Owner) -> None:
    words = rewritten(owner, "echo printed")
    done = subprocess.run(["bash", "-c", '"$@" <&- 2>&-', "bash", *words], cwd=owner.root, env=owner.environ, stdout=subprocess.PIPE, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"printed\n")

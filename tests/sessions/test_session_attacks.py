"""Attacks and faults around a session: strangers at the socket, garbage, killed parts, and processes that plant files later."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS
from observe import alive, eventually, unique_seconds
from session_world import Agent, is_running, wait_for, working

from corral.sessions import protocol
from corral.sessions.client import connect
from corral.sessions.peers import peer_process

pytestmark = pytest.mark.usefixtures("_full")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with working(tmp_path) as made:
        yield made


def connected(agent: Agent) -> socket.socket:
    (path,) = agent.sockets.glob("*.socket")
    sock = connect(str(path))
    assert sock is not None
    return socket.socket(fileno=sock.detach())


JOIN = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.recv(1)"


@pytest.mark.parametrize(
    "apart",
    [[], ["--mount"], ["--pid", "--fork"], ["--user"], ["--user", "--map-root-user"]],
    ids=["same", "mount", "pid", "user", "root of its own"],
)
def test_peer_must_be_in_the_same_namespaces(tmp_path: Path, apart: list[str]) -> None:
    if os.geteuid() != 0 and apart and "--user" not in apart:
        apart = ["--user", *apart]
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", *apart, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("unshare does not work here")
    os.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("socket")
        listener.listen()
        words = ["unshare", *apart, sys.executable, "-c", JOIN, "socket"]
        with subprocess.Popen(words, cwd=tmp_path) as client:
            peer, _ = listener.accept()
            assert bool(peer_process(peer)) == (not apart)
            peer.close()
            client.wait(DEADLINE_SECONDS)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")
def test_peer_must_be_the_same_user(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    path = tmp_path / "open" / "socket"
    os.chdir(tmp_path / "open")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("socket")
        listener.listen()
        path.chmod(0o777)
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.connect("socket")
            client.recv(1)
            os._exit(0)
        peer, _ = listener.accept()
        assert peer_process(peer) == 0
        peer.close()
        os.waitpid(pid, 0)


def test_garbage_and_silent_clients_do_not_stop_the_session(agent: Agent) -> None:
    agent.run("true")
    silent = [connected(agent) for _ in range(8)]
    for junk in (
        b"x",
        b"p\xff\xff",
        b"f",
        b"p" + bytes(50_000),
        b"p(\x02\x00\x00\x00i\x09\x00\x00\x00i\x01\x00\x00\x00",
    ):
        with connected(agent) as sock:
            sock.send(junk)
            try:
                answer, _ = protocol.receive(sock)
            except OSError:
                answer = ()
            assert answer in ((), (protocol.NOT_HERE,))
    for message in (
        (protocol.RUN_PENDING, "0000"),
        (protocol.RUN, {}),
        (protocol.LOGS, "0000", 0, 0),
        ("unknown",),
        (protocol.STOP, "0000"),
    ):
        with connected(agent) as sock:
            protocol.send(sock, message)
            try:
                answer, _ = protocol.receive(sock)
            except OSError:
                answer = ()
            assert answer[:1] in ((), (protocol.NOT_HERE,), (protocol.REFUSED,)), message
    assert agent.run("echo on").stdout == b"on\n"
    assert agent.was_in_session("echo on")
    for sock in silent:
        sock.close()


def test_process_that_does_not_run_below_the_host_cannot_run_its_call(agent: Agent, tmp_path: Path) -> None:
    agent.run("true")
    line = agent.rewrite("touch made", run_in_background=True)
    script = tmp_path / "stranger.sh"
    # The shell waits until its parent has ended, so that no process of the host is above it.
    script.write_text(f"while [ -d /proc/$1 ]; do sleep 0.01; done\n{line} 2>{tmp_path}/said\ntouch {tmp_path}/done\n")
    shell = f"sh {script} $$ >/dev/null 2>&1 & exit 0"
    subprocess.run(["setsid", "sh", "-c", shell], env=agent.environ, cwd=agent.root, check=True)
    wait_for(tmp_path / "done")
    assert "has not allowed this command" in (tmp_path / "said").read_text()
    assert not (agent.root / "made").exists()
    assert agent.run_line(line).returncode in (0, 125)


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.03, 0.06, 0.1])
def test_client_killed_at_any_moment_runs_its_call_at_most_once(agent: Agent, wait: float) -> None:
    agent.run("true")
    line = agent.rewrite("echo x >> made.txt; sleep 0.02; echo y >> made.txt", run_in_background=True)
    client = agent.start(line, start_new_session=True)
    time.sleep(wait)  # the moment of the attack, not a wait for something
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate(timeout=DEADLINE_SECONDS)
    again = agent.run_line(line)
    assert again.returncode in (0, 125)
    made = (agent.root / "made.txt").read_text() if (agent.root / "made.txt").exists() else ""
    assert made.count("x") <= 1
    assert made.count("y") <= 1
    assert (again.returncode == 0) <= (made == "x\ny\n")
    assert agent.run("echo on").stdout == b"on\n"


def test_killed_keeper_ends_its_commands_and_is_replaced(agent: Agent) -> None:
    agent.run("true")
    (service,) = agent.services()
    seconds = unique_seconds()
    client = agent.start(agent.rewrite(f"touch begun; sleep {seconds}"))
    wait_for(agent.root / "begun")
    for keeper in Path(f"/proc/{service}/task/{service}/children").read_text().split():
        os.kill(int(keeper), signal.SIGKILL)
    client.communicate(timeout=DEADLINE_SECONDS)
    assert client.returncode not in (0, None)
    eventually(lambda: not alive(seconds))
    assert agent.run("echo on").stdout == b"on\n"
    assert agent.services() == [service]


def test_two_hosts_in_one_project_have_two_sessions(agent: Agent) -> None:
    agent.run("true")
    agent.run("true", session="two")
    assert len(agent.services()) == 2
    first, second = agent.services()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not is_running(first))
    assert agent.services() == [second]


PLANTS = """
(while [ ! -e go ]; do sleep 0.01; done; echo '{}' > .mcp.json; touch planted; sleep 60) &
touch begun
while [ ! -e end ]; do sleep 0.01; done
"""


def test_file_planted_beside_another_command_is_reported_and_moved_away(agent: Agent) -> None:
    (agent.root / "plants.sh").write_text(PLANTS)
    client = agent.start(agent.rewrite("bash plants.sh", run_in_background=True))
    wait_for(agent.root / "begun")
    (agent.root / "go").touch()
    wait_for(agent.root / "planted")
    next_ = agent.run("true")
    assert b".mcp.json" in next_.stderr
    assert not (agent.root / ".mcp.json").exists()
    (agent.root / "end").touch()
    client.communicate(timeout=DEADLINE_SECONDS)

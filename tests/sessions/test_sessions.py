"""Commands of an agent's session share one sandbox, run exactly once, and end as they do without a session."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS
from observe import alive, eventually, free_port, unique_seconds
from session_world import Agent, is_running, wait_for, working

from corral.sessions.queries import running_sessions

pytestmark = pytest.mark.usefixtures("_full")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with working(tmp_path) as made:
        yield made


def test_later_command_reaches_server_of_earlier_one(agent: Agent) -> None:
    port = free_port()
    server = agent.start(agent.rewrite(f"python3 -m http.server --bind 127.0.0.1 {port}", run_in_background=True))
    fetch = f"for i in $(seq 100); do python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}').status)\" 2>/dev/null && break; sleep 0.1; done"
    assert agent.run(fetch).stdout == b"200\n"
    # Another agent of the same project has a loopback of its own.
    other = f"python3 -c \"import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})) != 0)\""
    assert agent.run(other, session="two").stdout == b"True\n"
    server.terminate()
    server.communicate(timeout=DEADLINE_SECONDS)
    eventually(lambda: not alive(str(port)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("echo out; echo err >&2; exit 3", id="streams and status"),
        pytest.param("cat; pwd", id="stdin"),
        pytest.param("mkdir -p sub; cd sub", id="directory"),
        pytest.param("kill -9 $$", id="signal"),
        pytest.param("nosuchcommand_", id="not found"),
        pytest.param(
            "python3 -c \"import os; open(os.path.join('.git', 'hooks', 'pre-commit'), 'w')\" 2>/dev/null; echo $?",
            id="protected",
        ),
        pytest.param("umask; ulimit -n; echo $HOME; env | cut -d= -f1 | sort", id="environment"),
    ],
)
def test_command_ends_as_it_does_without_session(tmp_path: Path, text: str) -> None:
    with working(tmp_path / "in") as inside, working(tmp_path / "out", "") as outside:
        found = []
        for agent in (inside, outside):
            agent.rewrite("true")  # the service starts
            line = f"{agent.rewrite(text)}; code=$?; pwd; exit $code"
            done = agent.run_line(line, b"given\n")
            home = str(agent.home).encode()
            found.append((done.returncode, done.stdout.replace(home, b"HOME"), done.stderr.replace(home, b"HOME")))
        assert inside.was_in_session(text)
        assert outside.services() == []
        assert found[0] == found[1]


def test_rewritten_line_runs_once(agent: Agent) -> None:
    line = agent.rewrite("echo x >> made.txt")
    assert agent.run_line(line).returncode == 0
    again = agent.run_line(line)
    assert (again.returncode, b"has run already" in again.stderr) == (125, True)
    assert (agent.root / "made.txt").read_text() == "x\n"


def test_two_lines_of_one_id_at_once_run_once(agent: Agent) -> None:
    line = agent.rewrite("sleep 0.2; echo x >> made.txt", run_in_background=True)
    both = [agent.start(line), agent.start(line)]
    assert sorted(one.wait(DEADLINE_SECONDS) for one in both) == [0, 125]
    for one in both:
        one.communicate()
    assert (agent.root / "made.txt").read_text() == "x\n"


def test_changed_policy_holds_for_the_next_command(agent: Agent) -> None:
    assert agent.run("hostname").returncode == 0
    line = agent.rewrite("hostname")
    agent.policy('sessions = true\ndenylist = ["hostname"]\n')
    refused = agent.run_line(line)
    assert (refused.returncode, b"hostname" in refused.stderr) == (126, True)
    agent.policy("sessions = true\n")
    assert agent.run("hostname").returncode == 0
    assert agent.was_in_session("hostname")


def test_policy_that_cannot_be_read_refuses(agent: Agent) -> None:
    line = agent.rewrite("echo ran")
    agent.policy("sessions = perhaps\n")
    done = agent.run_line(line)
    assert (done.returncode, done.stdout) == (125, b"")


def test_killed_client_ends_its_command(agent: Agent) -> None:
    seconds = unique_seconds()
    client = agent.start(agent.rewrite(f"touch begun; sleep {seconds}"), start_new_session=True)
    wait_for(agent.root / "begun")
    eventually(lambda: alive(seconds))
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate(timeout=DEADLINE_SECONDS)
    eventually(lambda: not alive(seconds))
    assert agent.run("echo on").stdout == b"on\n"


def test_signals_reach_the_command(agent: Agent) -> None:
    text = "trap 'echo got; exit 5' INT; touch begun; while :; do sleep 0.01; done"
    client = agent.start(agent.rewrite(text), start_new_session=True)
    wait_for(agent.root / "begun")
    child = next(int(pid) for pid in Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text().split())
    os.kill(child, signal.SIGINT)
    assert client.communicate(timeout=DEADLINE_SECONDS)[0] == b"got\n"


def test_killed_service_fails_its_commands_and_is_replaced(agent: Agent) -> None:
    seconds = unique_seconds()
    client = agent.start(agent.rewrite(f"echo x >> made.txt; sleep {seconds}"))
    wait_for(agent.root / "made.txt")
    eventually(lambda: alive(seconds))
    (service,) = agent.services()
    os.kill(service, signal.SIGKILL)
    _, said = client.communicate(timeout=DEADLINE_SECONDS)
    assert (client.returncode, b"not run again" in said) == (125, True)
    eventually(lambda: not alive(seconds))
    assert (agent.root / "made.txt").read_text() == "x\n"
    # The socket is left over. The next hook starts another service.
    assert agent.run("echo on").stdout == b"on\n"
    assert agent.services() != [service]


def test_line_of_a_session_that_has_ended_runs_without_it(agent: Agent) -> None:
    agent.run("true")
    line = agent.rewrite("echo alone")
    os.kill(agent.services()[0], signal.SIGKILL)
    done = agent.run_line(line)
    assert (done.returncode, done.stdout) == (0, b"alone\n")
    assert agent.services() == []


HOST = """
import sys
from pathlib import Path
from session_world import Agent
agent = Agent(Path(sys.argv[1]))
agent.run("true")
print(agent.services()[0])
"""


def test_end_of_the_host_ends_its_session(agent: Agent, tmp_path: Path) -> None:
    agent.run("true")
    (tmp_path / "second").mkdir()
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", HOST, str(tmp_path / "second")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True, timeout=DEADLINE_SECONDS)
    eventually(lambda: not is_running(int(done.stdout)))
    assert len(agent.services()) == 1


def test_upgrade_ends_the_session(agent: Agent, tmp_path: Path) -> None:
    agent.install(tmp_path / "lib")
    assert agent.run("echo old").stdout == b"old\n"
    (service,) = agent.services()
    line = agent.rewrite("echo between")
    (tmp_path / "lib" / "corral" / "__init__.py").touch()
    # Neither the line of before nor a new one gets to the old build.
    assert agent.run_line(line).stdout == b"between\n"
    assert not agent.was_in_session("echo between")
    assert agent.run("echo new").stdout == b"new\n"
    assert agent.was_in_session("echo new")
    eventually(lambda: service not in agent.services())


def test_client_with_another_umask_runs_without_session(agent: Agent) -> None:
    assert agent.run("touch first").returncode == 0
    line = agent.rewrite("umask")
    done = agent.run_line(f"umask 027; {line}")
    assert done.stdout == b"0027\n"
    assert not agent.was_in_session("umask")


@pytest.mark.skipif(os.geteuid() != 0, reason="another mount namespace needs root")
def test_client_in_other_namespaces_is_not_served(agent: Agent) -> None:
    assert agent.run("true").returncode == 0
    line = agent.rewrite("echo apart")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    done = agent.run_line(f"unshare --mount bash -c '{line}'".replace("'echo apart'", '"echo apart"'))
    assert done.stdout == b"apart\n"
    assert not agent.was_in_session("echo apart")


LOOK = """
import os, socket
try:
    os.chdir({!r})
except FileNotFoundError:
    print("absent")
else:
    # The path itself may be too long for a socket.
    print(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect_ex({!r}))
"""


def test_commands_cannot_reach_the_socket(agent: Agent) -> None:
    agent.run("true")
    (path,) = agent.sockets.glob("*.socket")
    (agent.root / "look.py").write_text(LOOK.format(str(path.parent), path.name))
    reached = agent.run("python3 look.py").stdout
    outside = subprocess.run([sys.executable, str(agent.root / "look.py")], capture_output=True, check=True).stdout
    assert (reached, outside) == (b"absent\n", b"0\n")  # the canary connects


def test_directory_that_others_can_enter_gives_no_session(agent: Agent) -> None:
    agent.run("true")
    agent.end()
    agent.sockets.chmod(0o755)
    assert agent.run("echo alone").stdout == b"alone\n"
    assert agent.services() == []


def test_project_that_holds_the_directory_has_no_session(tmp_path: Path) -> None:
    with working(tmp_path) as agent:
        agent.environ["XDG_STATE_HOME"] = str(agent.root / "state")
        done = agent.hook(
            "claude",
            b'{"hook_event_name": "PreToolUse", "session_id": "one", "cwd": "%s", "tool_name": "Bash", "tool_input": {"command": "true"}}'
            % str(agent.root).encode(),
        )
        assert done.returncode == 2
        assert agent.services() == []


def test_call_with_an_opening_says_that_it_does_not_reach_the_session(agent: Agent) -> None:
    port = free_port()

    agent.policy('sessions = true\n[[grant]]\ncommand = "curl"\nnetwork = ["own.example:443"]\n')
    server = agent.start(agent.rewrite(f"python3 -m http.server --bind 127.0.0.1 {port}", run_in_background=True))
    try:
        eventually(lambda: any(port in one.ports for one in running_sessions(agent.environ)))
        done = agent.run("curl -sS https://own.example")
    finally:
        server.terminate()
        server.communicate(timeout=DEADLINE_SECONDS)
    assert done.returncode != 0
    assert f"outside the session: port {port} of the session cannot be reached".encode() in done.stderr, done

"""Ports of a session on this machine's loopback: by `corral publish`, by `run --background --publish`, and by the policy."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hosting import DEADLINE_SECONDS
from observe import eventually, free_port
from screen import Screen
from session_world import Agent

import corral
from corral.apps.cli.session.publish import publish
from corral.containment.network.proxy import PORT
from corral.model.errors import PolicyError
from corral.sessions.queries import running_sessions

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.usefixtures("_full")
SOURCE = Path(corral.__file__).parents[1]
CORRAL = [sys.executable, "-m", "corral"]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator["Serving"]:
    made = Serving(tmp_path)
    (made.root / "word").write_text("arrived")
    try:
        yield made
    finally:
        made.end()
        for client in made.clients:
            # On a busy machine a command may run without the session, and does not end with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGKILL)
            client.communicate(timeout=DEADLINE_SECONDS)


class Serving(Agent):
    """An agent whose host leaves servers in the background."""

    def __init__(self, above: Path) -> None:
        super().__init__(above)
        self.clients: list[subprocess.Popen[bytes]] = []

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """Start a server, and wait until it listens."""
        line = self.rewrite(f"python3 -m http.server --bind {host} {port}")
        self.clients.append(self.start(line, start_new_session=True))
        eventually(lambda: any(port in one.ports for one in running_sessions(self.environ)))


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    made: list[Screen] = []
    yield made
    for one in made:
        one.close()


def session_of(agent: Serving) -> str:
    (session,) = running_sessions(agent.environ)
    return session.path


def fetched(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.settimeout(5)
            sock.sendall(b"GET /word HTTP/1.0\r\n\r\n")
            return sock.makefile("rb").read()
    except OSError:
        return b""


def test_user_publishes_at_the_terminal_and_ends_it(agent: Serving, screens: list[Screen]) -> None:
    port = free_port()
    agent.serve(port)
    assert fetched(port) == b""
    one = Screen(
        [*CORRAL, "publish", str(port)], agent.root, columns=200, environ=agent.environ | {"XDG_STATE_HOME": ""}
    )
    screens.append(one)
    one.until(f"port {port} of the session is at http://127.0.0.1:{port}\r\n".encode())
    assert one.status() == 0
    assert fetched(port).endswith(b"arrived")
    other = Screen(
        [*CORRAL, "publish", "--end", str(port)],
        agent.root,
        columns=200,
        environ=agent.environ | {"XDG_STATE_HOME": ""},
    )
    screens.append(other)
    assert other.status() == 0
    assert fetched(port) == b""
    with socket.create_server(("127.0.0.1", port)):
        pass
    log = (agent.state / "audit" / "log.jsonl").read_text()
    assert f"A person at a terminal published port {port}" in log


def test_only_a_person_publishes(agent: Serving) -> None:
    port = free_port()
    agent.serve(port)
    asked = agent.run_line(f"{sys.executable} -m corral publish {port}")
    assert (asked.returncode, b"only a person at a terminal" in asked.stderr) == (125, True)
    (agent.root / "ask.py").write_text(
        f"import os, subprocess; subprocess.run(['python3', '-m', 'corral', 'publish', '{port}'], env={{**os.environ, 'PYTHONPATH': '{SOURCE}'}})"
    )
    inside = agent.run("python3 ask.py")
    assert b"no session runs here" in inside.stderr or b"a terminal can publish" in inside.stderr, inside
    assert fetched(port) == b""


def test_taken_port_is_named_and_another_one_used(agent: Serving) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        agent.serve(port, "::1")
        facts = publish(session_of(agent), port, 0)
        assert facts["at"] != port
        assert f"(process {os.getpid()}) uses port {port} " in facts["taken"]
        assert fetched(facts["at"]).endswith(b"arrived")
        with pytest.raises(PolicyError, match=f"process {os.getpid()}"):
            publish(session_of(agent), port + 1, port)
        # The same again is no second port.
        assert publish(session_of(agent), port, 0)["at"] == facts["at"]


def test_published_port_survives_a_new_sandbox(agent: Serving) -> None:
    port = free_port()
    agent.serve(port)
    publish(session_of(agent), port, 0)
    assert fetched(port).endswith(b"arrived")
    # Another policy makes a new sandbox, with a loopback of its own.
    agent.policy("sessions = true\n[limits]\nprocesses = 99\n")
    (agent.root / "word").write_text("from the second")
    agent.serve(port)
    eventually(lambda: fetched(port).endswith(b"from the second"))


def test_port_of_the_policy_is_published_and_stops_no_command(agent: Serving) -> None:
    port = free_port()
    agent.policy(f"sessions = true\npublish = [{port}]\n")
    with socket.create_server(("127.0.0.1", port)):
        agent.serve(port)
        (session,) = running_sessions(agent.environ)
        assert f"{port} not published: " in session.published_texts()[0]
        # A second session runs beside the first.
        assert agent.run("echo second", session="two").stdout == b"second\n"
        (agent.root / "word").write_text("arrived")
    eventually(lambda: fetched(port).endswith(b"arrived"))


def test_own_ports_of_corral_are_not_published(agent: Serving) -> None:
    agent.policy("sessions = true\n[containment]\nlocal = [5432]\n")
    agent.serve(free_port())
    for port in (PORT, 5432):
        with pytest.raises(PolicyError, match=f"port {port} "):
            publish(session_of(agent), port, 0)


def test_end_of_the_session_frees_its_ports(agent: Serving) -> None:
    port = free_port()
    agent.serve(port)
    publish(session_of(agent), port, 0)
    agent.end()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_background_process_with_its_port(agent: Serving, screens: list[Screen]) -> None:
    port = free_port()
    words = ["run", "--background", "--publish", str(port), "--", "python3", "-m", "http.server", str(port)]
    one = Screen([*CORRAL, *words], agent.root, columns=200, environ=agent.environ | {"XDG_STATE_HOME": ""})
    screens.append(one)
    one.until(b"[y]es")
    one.type(b"y\n")
    one.until(f"http://127.0.0.1:{port}".encode())
    assert one.status() == 0
    eventually(lambda: fetched(port).endswith(b"arrived"))


def test_killed_service_frees_its_ports(agent: Serving) -> None:
    port = free_port()
    agent.serve(port)
    publish(session_of(agent), port, 0)
    (service,) = agent.services()
    os.kill(service, signal.SIGKILL)
    eventually(lambda: is_free(port))


def test_port_is_published_again_after_the_keeper_was_killed(agent: Serving) -> None:
    port = free_port()
    agent.serve(port)
    publish(session_of(agent), port, 0)
    (service,) = agent.services()
    (keeper,) = children_of(service)
    os.kill(keeper, signal.SIGKILL)
    agent.clients[0].communicate(timeout=DEADLINE_SECONDS)
    agent.serve(port)
    eventually(lambda: fetched(port).endswith(b"arrived"))


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def children_of(process: int) -> list[int]:
    """Return the children of all threads of a process."""
    files = Path(f"/proc/{process}/task").glob("*/children")
    return [int(pid) for file in files for pid in file.read_text().split()]

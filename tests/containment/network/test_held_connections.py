"""A connection to a destination that is not granted waits while the program that owns the sandbox is asked."""

import os
import socket
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attempt import has_bubblewrap, must_hold
from observe import children, descriptors, eventually, exist
from streams import begins

from corral import Containment, Decision, Profile, SandboxConfig, SandboxResult
from corral.containment.network.hold_answers import HoldAnswers
from corral.containment.network.proxy import connection_log, hold
from corral.containment.network.proxy.connection import ClientConnection
from corral.containment.network.proxy.connection_log import ConnectionLog
from corral.containment.network.proxy.hold import Holds
from corral.containment.network.proxy.upstream import ProxyContext, RefusedError, UpstreamConnector
from corral.guard.rules.loader import effects, profile_named
from corral.runtime.run_options import RunOptions, call_of
from corral.runtime.runner import open_runner

LONG = 600.0
Ask = Callable[[str], bool]


class Person:
    """Gives one answer to every question, and remembers the questions."""

    def __init__(self, answer: Any = True) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.pids: list[int] = []

    def __call__(self, destination: str) -> bool:
        self.asked.append(destination)
        self.pids.append(os.getpid())
        return self.answer  # type: ignore[no-any-return]  # tests give other values, too


class Held:
    """A sandbox that asks a callback about destinations."""

    def __init__(self, root: Path, ask: Ask, seconds: float, **containment: Any) -> None:
        groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
        profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
        made = Containment(**{"hosts": ["own.example=127.0.0.1", "more.example=127.0.0.1"]} | containment)
        config = SandboxConfig(str(root), profile=profile, denylist=(), interpreter_block=(), containment=made)
        self._runner = open_runner(config, on_hold=ask, hold_seconds=seconds)

    def run(self, *argv: str) -> SandboxResult:
        return self._runner.run(RunOptions(call_of(argv, False, None, None), None, None, None))

    def close(self) -> None:
        self._runner.state.close()


@pytest.fixture
def hold_with(project: Path) -> Iterator[Callable[..., Held]]:
    made: list[Held] = []

    def make(ask: Ask, seconds: float = LONG, **containment: Any) -> Held:
        made.append(Held(project, ask, seconds, **containment))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("network", ["off", ["else.example:443"]], ids=["off", "named"])
@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_yes_serves_the_held_connection(backend: str, network: Any, port: int, hold_with: Callable[..., Held]) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    person = Person()
    box = hold_with(person, backend=backend, network=network)
    for _ in range(2):
        result = box.run("curl", "-sS", f"http://own.example:{port}/")
        assert (result.stdout_text, result.violations) == ("reached", ()), result.stderr_text
        assert [(c.target, c.outcome, c.grant) for c in result.connections] == [
            (f"own.example:{port}", "allowed", f"own.example:{port}")
        ]
    assert person.asked == [f"own.example:{port}"]


def test_allowed_name_has_an_address_too(port: int, hold_with: Callable[..., Held]) -> None:
    box = hold_with(Person())
    direct = ["curl", "-sS", "--noproxy", "*", f"http://own.example:{port}/"]
    assert box.run(*direct).exit_code == 6
    assert box.run("curl", "-sS", f"http://own.example:{port}/").ok
    assert (box.run(*direct).stdout, box.run(*direct[:-1], f"http://more.example:{port}/").exit_code) == (b"reached", 6)


def test_yes_to_one_destination_is_none_to_another(port: int, hold_with: Callable[..., Held]) -> None:
    box = hold_with(lambda destination: destination == f"own.example:{port}")
    assert box.run("curl", "-sS", f"http://own.example:{port}/").stdout_text == "reached"
    for url in (f"http://more.example:{port}/", f"http://own.example:{port + 1}/"):
        result = box.run("curl", "-sS", url)
        assert "reached" not in result.stdout_text
        assert [v.target for v in result.violations] == [url[7:-1]]


def test_socks_is_held_too(port: int, hold_with: Callable[..., Held]) -> None:
    box = hold_with(lambda _: True)
    url = f"http://own.example:{port}/"
    assert box.run("curl", "-sS", "-x", "socks5h://127.0.0.1:61080", url).stdout_text == "reached"
    assert box.run("curl", "-sS", "-p", url).stdout_text == "reached"


@pytest.mark.parametrize("answer", [False, None, 1, "yes"])
def test_everything_but_true_is_a_no(answer: Any, port: int, hold_with: Callable[..., Held]) -> None:
    person = Person(answer)
    box = hold_with(person)
    for _ in range(2):
        result = box.run("curl", "-sS", f"http://own.example:{port}/")
        assert "reached" not in result.stdout_text
        (violation,) = result.violations
        assert violation.grant == f'containment.network = ["own.example:{port}"]'
    assert person.asked == [f"own.example:{port}"]


def test_nobody_is_asked_after_the_time_has_passed(port: int, hold_with: Callable[..., Held]) -> None:
    release, asked = threading.Event(), []

    def ask(destination: str) -> bool:
        asked.append(destination)
        return release.wait(LONG)

    box = hold_with(ask, seconds=0.2)
    url = f"http://own.example:{port}/"
    try:
        for _ in range(2):
            assert [c.outcome for c in box.run("curl", "-sS", url).connections] == ["refused"]
    finally:
        release.set()
    # A late yes serves the next connection.
    eventually(lambda: box.run("curl", "-sS", url).stdout_text == "reached")
    assert asked == [f"own.example:{port}"]


def test_zero_seconds_ask_nobody(port: int, hold_with: Callable[..., Held]) -> None:
    person = Person()
    box = hold_with(person, seconds=0.0)
    assert [c.outcome for c in box.run("curl", "-sS", f"http://own.example:{port}/").connections] == ["refused"]
    assert person.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "x.localhost", "10.9.9.9", "169.254.169.254", "[::1]"])
def test_nobody_is_asked_about_the_machine_or_a_private_network(host: str, hold_with: Callable[..., Held]) -> None:
    person = Person()
    box = hold_with(person)
    result = box.run("curl", "-sS", "--noproxy", "", f"http://{host}:9/")
    assert ([c.outcome for c in result.connections], person.asked) == (["refused"], [])


def test_allowed_name_at_a_private_address_is_refused() -> None:
    connector = UpstreamConnector((), (), lambda *_: ["10.0.0.1"])
    connector.allow("own.example:443")
    assert connector.authorise("own.example", 443) == ("own.example", "own.example:443")
    with pytest.raises(RefusedError) as raised:
        connector.connect("own.example", 443)
    assert raised.value.grant == "10.0.0.1:443"


MANY = """
import socket, sys
socks = [socket.create_connection(("127.0.0.1", 61080)) for _ in range(200)]
for sock in socks:
    sock.settimeout(120)
    sock.sendall(b"GET http://own.example:%s/ HTTP/1.1\\r\\nHost: own.example:%s\\r\\n\\r\\n" % ((sys.argv[1].encode(),) * 2))
print("sent", flush=True)
print(sum(b"reached" in sock.makefile("rb").read() for sock in socks))
"""


def test_two_hundred_connections_wait_for_one_answer(port: int, hold_with: Callable[..., Held]) -> None:
    person = Person()
    box = hold_with(person)
    result = box.run("python3", "-c", MANY, str(port))
    assert result.stdout_text == "sent\n200\n", result.stderr_text
    assert person.asked == [f"own.example:{port}"]


def below(pid: int) -> set[int]:
    return set(children(pid)).union(*(below(child) for child in children(pid)))


def sockets_and_logs() -> list[str]:
    return sorted(name for name in descriptors().values() if name.startswith(("socket:", "/memfd:")))


def test_closing_the_sandbox_leaves_nothing(port: int, hold_with: Callable[..., Held]) -> None:
    before, files = below(os.getpid()), sockets_and_logs()
    asked, release = threading.Event(), threading.Event()
    threads = len(os.listdir("/proc/self/task"))

    def ask(_: str) -> bool:
        asked.set()
        return release.wait(LONG)

    box = hold_with(ask)
    running = threading.Thread(target=box.run, args=("curl", "-sS", f"http://own.example:{port}/"))
    running.start()
    asked.wait(LONG)
    made = below(os.getpid()) - before
    box.close()
    running.join(60)
    release.set()
    assert not running.is_alive()
    assert not exist(*made)
    eventually(lambda: (len(os.listdir("/proc/self/task")), sockets_and_logs()) == (threads, files))


def test_fork_of_the_host_asks_by_itself(port: int, hold_with: Callable[..., Held], tmp_path: Path) -> None:
    person = Person()
    box = hold_with(person)
    url = f"http://own.example:{port}/"
    assert box.run("curl", "-sS", url).stdout_text == "reached"
    child = os.fork()
    if child == 0:
        try:
            said = box.run("curl", "-sS", url).stdout_text
            (tmp_path / "said").write_text(f"{said} {person.pids == [os.getppid(), os.getpid()]}")
            box.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "said").read_text() == "reached True"
    assert (box.run("curl", "-sS", url).stdout_text, person.pids) == ("reached", [os.getpid()])


# One proxy in this process, and the host's end of its socket.

PLAN: dict[str, Any] = {
    "granted": (),
    "hosts": (),
    "bytes": None,
    "connections": None,
    "certificates": "",
    "inject": (),
}


class Desk:
    """A proxy that holds connections, and the clients that wait."""

    def __init__(self, seconds: float) -> None:
        self.host, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.host.settimeout(60)
        self.holds = Holds(theirs, seconds)
        self._theirs = theirs
        self._descriptor = connection_log.create_log_file()
        self.log = ConnectionLog(self._descriptor)
        self._context = ProxyContext(PLAN, self.log, self.holds)
        self._reader = threading.Thread(target=self.holds.read_answers)
        self._reader.start()
        self._threads: list[threading.Thread] = []

    def connect(self, destination: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        serving = threading.Thread(target=ClientConnection(theirs, self._context).serve)
        serving.start()
        self._threads.append(serving)
        ours.settimeout(60)
        ours.sendall(f"CONNECT {destination} HTTP/1.1\r\n\r\n".encode())
        return ours

    def settle(self) -> None:
        """Wait until no connection is served."""
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        self.host.close()
        self._reader.join(60)
        self.settle()
        self._theirs.close()
        os.close(self._descriptor)


@contextmanager
def desk(seconds: float = LONG) -> Iterator[Desk]:
    made = Desk(seconds)
    try:
        yield made
    finally:
        made.close()


def test_client_that_leaves_is_not_held() -> None:
    with desk() as made:
        files = descriptors()
        for _ in range(3):
            client = made.connect("own.example:443")
            eventually(lambda: made.holds._held == 1)
            client.close()
            made.settle()
        assert made.holds._held == 0
        assert descriptors() == files
        assert made.host.recv(100) == b"own.example:443"
        assert {entry.outcome for entry in made.log.take()} == {"refused"}


def test_vanished_host_refuses_held_connections() -> None:
    with desk() as made:
        client = made.connect("own.example:443")
        made.host.recv(100)
        made.host.close()
        assert begins(client, b"HTTP/1.1 403 ")
        late = made.connect("more.example:443")
        assert begins(late, b"HTTP/1.1 403 ")
        client.close()
        late.close()


def test_answer_to_another_destination_has_no_effect() -> None:
    with desk() as made:
        client = made.connect("own.example:443")
        made.host.recv(100)
        for answer in (b"ymore.example:443", b"y", b"yown.example:4430", b"\xff"):
            made.host.send(answer)
        made.host.send(b"nown.example:443")
        assert begins(client, b"HTTP/1.1 403 ")
        client.close()


def test_number_of_questions_and_held_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "MAX_HELD", 3)
    monkeypatch.setattr(hold, "MAX_QUESTIONS", 2)
    with desk() as made:
        held = [made.connect(f"{name}.example:443") for name in ("a", "b", "b")]
        eventually(lambda: made.holds._held == 3)
        for name in ("a", "c"):
            with made.connect(f"{name}.example:443") as refused:
                assert begins(refused, b"HTTP/1.1 403 ")
        asked = {made.host.recv(100), made.host.recv(100)}
        assert asked == {b"a.example:443", b"b.example:443"}
        made.host.send(b"na.example:443")
        made.host.send(b"nb.example:443")
        for client in held:
            assert begins(client, b"HTTP/1.1 403 ")
            client.close()


QUESTIONS = {
    "not ASCII": "ä.example:443".encode(),
    "no port": b"own.example",
    "a wildcard": b"*.example.org:443",
    "capitals": b"Own.example:443",
    "a line feed": b"own.example\n:443",
    "a terminal's escape": b"own.example\x1b[2J:443",
}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_malformed_question_reaches_nobody(kind: str) -> None:
    person = Person()
    answers = HoldAnswers(person)
    with socket.socket(fileno=answers.connect()) as proxy:
        proxy.settimeout(60)
        proxy.send(QUESTIONS[kind])
        assert (proxy.recv(600)[:1], person.asked) == (b"n", [])
        answers.disconnect()
        assert proxy.recv(1) == b""


def test_host_asks_about_a_bounded_number_of_destinations() -> None:
    person = Person()
    answers = HoldAnswers(person)
    with socket.socket(fileno=answers.connect()) as proxy:
        proxy.settimeout(60)
        said = []
        for number in range(hold.MAX_QUESTIONS + 5):
            proxy.send(b"%d.example:443" % number)
            said.append(proxy.recv(600)[:1])
        assert (said.count(b"y"), said.count(b"n"), len(person.asked)) == (hold.MAX_QUESTIONS, 5, hold.MAX_QUESTIONS)
        answers.disconnect()


def test_answer_reaches_the_proxy_of_a_later_keeper() -> None:
    release = threading.Event()
    answers = HoldAnswers(lambda _: release.wait(LONG))
    with socket.socket(fileno=answers.connect()) as first:
        first.send(b"own.example:443")
        first.settimeout(60)
        with socket.socket(fileno=answers.connect()) as second:
            second.settimeout(60)
            second.send(b"own.example:443")
            release.set()
            assert second.recv(600) == b"yown.example:443"
            second.send(b"own.example:443")
            assert second.recv(600) == b"yown.example:443"
            answers.disconnect()


def test_callback_that_fails_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)

    def ask(_: str) -> bool:
        raise RuntimeError("no terminal")

    answers = HoldAnswers(ask)
    with socket.socket(fileno=answers.connect()) as proxy:
        proxy.settimeout(60)
        proxy.send(b"own.example:443")
        assert proxy.recv(600) == b"nown.example:443"
        answers.disconnect()
    eventually(lambda: reported)
    assert textwrap.shorten(str(reported[0].exc_value), 40) == "no terminal"  # type: ignore[attr-defined]

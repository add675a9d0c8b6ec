"""Commands reach a granted port of the host's loopback, and no other; some ports are never granted."""

import os
import signal
import socket
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attempt import has_bubblewrap, must_hold
from observe import free_port

from corral import Containment, Limits, PolicyError, Sandbox, SandboxConfig
from corral._lib.network.listening_sockets import listening_users, serving_users
from corral._lib.network.local_ports import check_port, never_granted
from corral.broker.openings import open_grants
from corral.containment.network.proxy.local_services import _is_trusted as trusts
from corral.containment.network.proxy.local_services import connect_local
from corral.containment.network.proxy.outcome_errors import RefusedError, UnreachableError
from corral.containment.network.proxy.upstream import UpstreamConnector
from corral.model.grant import LOCAL, Grant
from corral.policy.loader import load

NEVER = (22, 53, 2375, 2376, 6443, 8001, 10250, 2379, 4444, 9222, 9229, 5005, 5678, 6277, 61080)


def code(text: str) -> list[str]:
    return ["python3", "-c", textwrap.dedent(text)]


def fetch(place: str) -> list[str]:
    return ["curl", "-sS", "-m", "60", f"http://{place}/"]


GRANTS: dict[str, Callable[[int], Containment]] = {
    "local": lambda port: Containment(local=[port]),
    "an address": lambda port: Containment(network=[f"127.0.0.1:{port}"]),
    "an address of IPv6": lambda port: Containment(network=[f"[::1]:{port}"]),
    "a name": lambda port: Containment(network=[f"LocalHost:{port}"]),
    "local, beside a destination": lambda port: Containment(network=["own.example:443"], local=[port]),
}


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
@pytest.mark.parametrize("kind", GRANTS)
def test_granted_port_is_the_hosts(kind: str, backend: str, port: int, open_sandbox: Callable[..., Sandbox]) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    box = open_sandbox(containment=GRANTS[kind](port).replace(backend=backend))
    for host in ("127.0.0.1", "localhost"):
        result = box.run(fetch(f"{host}:{port}"))
        assert result.stdout == b"reached", result.stderr_text
        assert [(c.target, c.outcome) for c in result.connections] == [(f"127.0.0.1:{port}", "allowed")]
    assert box.run(fetch(f"[::1]:{port}")).stdout == b"reached"
    through = box.run(["curl", "-sS", "-x", "http://127.0.0.1:61080", f"http://127.0.0.1:{port}/"])
    assert through.stdout == b"reached", through.stderr_text


def test_other_port_of_the_host_is_out_of_reach(port: int, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(containment=Containment(local=[free_port()]))
    result = box.run(fetch(f"127.0.0.1:{port}"))
    assert (result.exit_code, result.connections) == (7, ())
    assert [(v.target, v.grant, v.inferred) for v in result.violations] == [
        (f"127.0.0.1:{port}", f"containment.local = [{port}]", True)
    ]


def test_port_without_a_server_on_the_host_is_no_violation(open_sandbox: Callable[..., Sandbox]) -> None:
    result = open_sandbox().run(fetch(f"127.0.0.1:{free_port()}"))
    assert (result.exit_code, result.violations) == (7, ())


def test_granted_port_without_a_server_ends_the_connection(open_sandbox: Callable[..., Sandbox]) -> None:
    port = free_port()
    result = open_sandbox(containment=Containment(local=[port])).run(fetch(f"127.0.0.1:{port}"))
    assert result.exit_code not in (0, 28)
    assert [(c.target, c.outcome) for c in result.connections] == [(f"127.0.0.1:{port}", "failed")]


def test_any_protocol_passes(open_sandbox: Callable[..., Sandbox]) -> None:
    talk = """
        import socket, sys
        sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60)
        sent = b"\\0\\x16GET / HTTP/1.1\\r\\nHost: other\\r\\n\\r\\n" + bytes(100_000)
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while data := sock.recv(65536):
            received += data
        print(received == sent)
        """
    with echo() as port:
        result = open_sandbox(containment=Containment(local=[port])).run([*code(talk), str(port)])
    assert result.stdout_text == "True\n", result.stderr_text


def test_bytes_are_limited(open_sandbox: Callable[..., Sandbox]) -> None:
    send = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 60); s.sendall(bytes(9000)); s.shutdown(1); print(len(s.recv(9000)))"
    with echo() as port:
        box = open_sandbox(containment=Containment(local=[port]), limits=Limits(network_bytes=5000))
        result = box.run(["python3", "-c", send, str(port)])
    assert "limits.network_bytes" in {violation.grant for violation in result.violations}, result


@contextmanager
def echo() -> Iterator[int]:
    """Serve one client on a free port, in a child process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            try:
                client, _ = server.accept()
                while data := client.recv(65536):
                    client.sendall(data)
                client.close()
            finally:
                os._exit(0)
        yield server.getsockname()[1]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_binding_a_granted_port_fails_with_a_message(open_sandbox: Callable[..., Sandbox]) -> None:
    port = free_port()
    box = open_sandbox(containment=Containment(local=[port]))
    for address in ("127.0.0.1", "0.0.0.0", "::1", "::"):
        serve = f"import socket; s = socket.socket(socket.AF_INET6 if ':' in {address!r} else socket.AF_INET); s.setsockopt(1, 2, 1); s.setsockopt(1, 15, 1); s.bind(({address!r}, {port}))"
        result = box.run(["python3", "-c", serve])
        assert [(v.target, v.grant) for v in result.violations] == [(f"127.0.0.1:{port}", "")], result.stderr_text
    other = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('up')"
    assert box.run(["python3", "-c", other]).stdout_text == "up\n"


SPELLINGS: dict[str, Callable[[int], Any]] = {
    "local": lambda port: Containment(local=[port]),
    "an address": lambda port: Containment(network=[f"127.0.0.1:{port}"]),
    "an address of IPv6": lambda port: Containment(network=[f"[0:0::1]:{port}"]),
    "a name": lambda port: Containment(network=[f"LOCALHOST:{port}"]),
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_some_ports_are_never_granted(kind: str) -> None:
    for port in NEVER:
        with pytest.raises(PolicyError, match=f"port {port} of this machine is never opened"):
            SPELLINGS[kind](port)
    assert SPELLINGS[kind](5432).local_ports == (5432,)


ELSEWHERE = ("127.9.9.9", "[::1]", "[0:0::1]", "0.0.0.0", "[::]", "x.localhost", "*.x.localhost", "LOCALHOST")


@pytest.mark.parametrize("host", ELSEWHERE)
def test_some_ports_are_never_granted_by_any_name_of_this_machine(host: str) -> None:
    for port in NEVER:
        with pytest.raises(PolicyError, match=f"port {port} of this machine is never opened"):
            Containment(network=[f"{host}:{port}"])


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_address_that_means_every_address_is_no_destination(host: str) -> None:
    with pytest.raises(PolicyError, match=r"write 127\.0\.0\.1:5432"):
        Containment(network=[f"{host}:5432"])


def test_never_granted_port_is_refused_as_a_grant_of_a_call(project: Path) -> None:
    config = SandboxConfig(str(project))
    assert open_grants(config, (Grant(LOCAL, "5432"),)).config.containment.local_ports == (5432,)
    for port in NEVER:
        with pytest.raises(PolicyError, match="never opened"):
            open_grants(config, (Grant(LOCAL, str(port)),))


def test_never_granted_port_is_refused_by_the_proxy_too() -> None:
    # Whatever leads to it: an address of the user's for a granted name, or a plan that was not checked.
    for granted, hosts in ((("a.example:22",), ("a.example=127.0.0.1",)), (("127.0.0.1:22",), ())):
        dial = UpstreamConnector(granted, hosts)
        with pytest.raises(RefusedError, match="never opened"):
            dial.connect(granted[0].partition(":")[0], 22)
    with pytest.raises(RefusedError, match="never opened"):
        connect_local(9222)


def test_every_entry_of_the_table_has_a_reason() -> None:
    for port in range(65536):
        if never_granted(port):
            with pytest.raises(ValueError, match=f"port {port} "):
                check_port(port)
    assert not any(map(never_granted, (80, 443, 3000, 3306, 5432, 6379, 8000, 8080, 8443, 9200, 11211, 27017)))


def test_port_cannot_go_both_ways() -> None:
    with pytest.raises(PolicyError, match="port 8000 "):
        Containment(local=[8000], publish=[8000])


@pytest.mark.parametrize("ports", [[0], [65536], ["80"], [True], "80", 80])
def test_invalid_local_port_is_an_error(ports: Any) -> None:
    with pytest.raises(PolicyError, match=r"containment\.local"):
        Containment(local=ports)


def test_project_can_add_no_local_port(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "project"
    (home / ".config" / "corral").mkdir(parents=True)
    root.mkdir()
    own, theirs = home / ".config" / "corral" / "policy.toml", root / "corral.toml"
    environ = {"HOME": str(home)}
    theirs.write_text("[containment]\nlocal = [5432]\n")
    assert load(str(root), environ).config.containment.local == ()
    own.write_text('[containment]\nlocal = [5432, 6379]\n[[grant]]\ncommand = "psql"\nlocal = [5433]\n')
    policy = load(str(root), environ)
    assert (policy.config.containment.local, bool(policy.waiting)) == ((5432, 6379), False)
    assert policy.config.policy_grants[0].openings == (("local", "5433"),)


def test_nobody_listens_on_a_free_port() -> None:
    port = free_port()
    assert listening_users("127.0.0.1", port) == []
    with pytest.raises(UnreachableError):
        connect_local(port)


LISTENERS = {
    "loopback": (socket.AF_INET, "127.0.0.1"),
    "every address": (socket.AF_INET, "0.0.0.0"),
    "every address of both families": (socket.AF_INET6, "::"),
}


@pytest.mark.parametrize("kind", LISTENERS)
def test_listening_user_is_found(kind: str) -> None:
    family, address = LISTENERS[kind]
    with socket.create_server((address, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert listening_users("127.0.0.1", port) == [os.geteuid()]
        sock, reached = connect_local(port)
        sock.close()
    assert reached == "127.0.0.1"


def test_user_and_system_are_trusted() -> None:
    own = os.geteuid()
    trusted = (own, 0, 113, 999, 61184, 65519)
    strangers = (own + 1001, 1_000_000, 60001)
    assert [trusts(user) for user in (*trusted, *strangers)] == [True] * len(trusted) + [False] * len(strangers)


def test_server_that_stops_to_listen_is_known_by_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        port, own = server.getsockname()[1], client.getsockname()[1]
        server.close()
        with accepted:
            assert (listening_users("127.0.0.1", port), serving_users("127.0.0.1", port, own)) == ([], [os.geteuid()])
            assert serving_users("127.0.0.1", port, own + 1) == []


if os.geteuid() == 0:

    @pytest.mark.parametrize("stays", [True, False], ids=["listens on", "stops to listen"])
    def test_server_of_another_user_gets_nothing(stays: bool, open_sandbox: Callable[..., Sandbox]) -> None:
        port = free_port()
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                # A socket belongs to the user who makes it.
                os.setuid(54321)
                with socket.create_server(("127.0.0.1", port)) as stolen:
                    os.write(tell, b"x")
                    client, _ = stolen.accept()
                    if not stays:
                        stolen.close()
                    os.write(tell, b"got " + client.recv(100))
            finally:
                os._exit(0)
        os.close(tell)
        assert os.read(told, 1) == b"x"
        result = open_sandbox(containment=Containment(local=[port])).run(fetch(f"127.0.0.1:{port}"))
        os.waitpid(child, 0)
        assert os.read(told, 100) == b"got "
        os.close(told)
        assert [(c.target, c.outcome) for c in result.connections] == [(f"127.0.0.1:{port}", "refused")]

"""Fixtures of the containment tests: a sandbox with containment, one without, and victims for attacks."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attempt import must_hold
from git_world import make_template
from observe import unique_seconds
from streams import read_head

from corral import Containment, Sandbox


@pytest.fixture
def held(open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A contained sandbox whose guard allows everything."""
    box = open_sandbox()
    if box.run(["true"]).enforcement != "full":
        must_hold()
    return box


@pytest.fixture
def loose(open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox without containment whose guard allows everything."""
    return open_sandbox(containment=Containment(backend="none"))


@pytest.fixture(scope="session")
def git_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories that tests of git start from; see `git_world`."""
    folder = tmp_path_factory.mktemp("template")
    make_template(folder)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the project, with a file in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("canary")
    return folder


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process outside the sandbox, with a secret in its environment."""
    with subprocess.Popen(["sleep", unique_seconds()], env={"SECRET": "canary"}) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def servers(outside: Path) -> Iterator[dict[str, Any]]:
    """Servers outside the sandbox: TCP and UDP on loopback, a unix socket with a path, and an abstract one."""
    abstract = f"corral-test-{os.getpid()}-{unique_seconds()}"
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    by_path, by_name = (socket.socket(socket.AF_UNIX) for _ in range(2))
    by_path.bind(str(outside / "socket"))
    by_name.bind("\0" + abstract)
    by_path.listen()
    by_name.listen()

    def echo() -> None:
        while (packet := udp.recvfrom(100))[0] != b"end":
            udp.sendto(*packet)

    thread = threading.Thread(target=echo)
    thread.start()
    yield {
        "tcp": tcp.getsockname()[1],
        "udp": udp.getsockname()[1],
        "socket": str(outside / "socket"),
        "abstract": abstract,
    }
    udp.sendto(b"end", udp.getsockname())
    thread.join()
    for server in (tcp, udp, by_path, by_name):
        server.close()


@pytest.fixture
def giver(outside: Path) -> Iterator[dict[str, Any]]:
    """Servers outside the sandbox, on a path and on an abstract name, that send a descriptor of their directory to every client."""
    addresses = [str(outside / "giver"), f"\0corral-giver-{os.getpid()}-{unique_seconds()}"]
    directory = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    servers = [socket.socket(socket.AF_UNIX) for _ in addresses]

    def give(server: socket.socket) -> None:
        while True:
            with server.accept()[0] as peer:
                if ending.is_set():
                    return
                socket.send_fds(peer, [b"x"], [directory])

    ending = threading.Event()
    threads = []
    for server, address in zip(servers, addresses, strict=True):
        server.bind(address)
        server.listen()
        threads.append(threading.Thread(target=give, args=(server,)))
        threads[-1].start()
    yield {"addresses": addresses}
    ending.set()
    for server, address, thread in zip(servers, addresses, threads, strict=True):
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(address)
        thread.join()
        server.close()
    os.close(directory)


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that answers every connection with `reached`."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _answer(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        with client:
            read_head(client)
            client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nreached")

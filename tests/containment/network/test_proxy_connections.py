"""A client's visit to the proxy from its first byte to the end: how long it is waited for, what is counted, and what is written down."""

import os
import resource
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observe import eventually

from corral.containment import protocol
from corral.containment.network.proxy import connection, connection_log
from corral.containment.network.proxy.connection import ClientConnection
from corral.containment.network.proxy.connection_log import ConnectionLog, LogEntry
from corral.containment.network.proxy.context import ProxyContext
from corral.containment.network.proxy.listener import Server
from corral.containment.network.proxy.relay import BULK_BYTES, ByteBudget, Flow, relay

PLAN: dict[str, Any] = {
    "granted": (),
    "hosts": (),
    "bytes": None,
    "connections": None,
    "certificates": "",
    "inject": (),
}


@contextmanager
def visited(**plan: Any) -> Iterator[tuple[socket.socket, int]]:
    """A client whose visit is served, and the journal."""
    descriptor = connection_log.create_log_file()
    ours, theirs = socket.socketpair()
    serving = threading.Thread(
        target=ClientConnection(ours, ProxyContext(PLAN | plan, ConnectionLog(descriptor))).serve
    )
    serving.start()
    try:
        with theirs:
            theirs.settimeout(20)
            yield theirs, descriptor
    finally:
        serving.join(20)
        os.close(descriptor)
    assert not serving.is_alive()


def all_said(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(4096), b""))


@pytest.mark.parametrize("byte", [b"x", b"\x05"], ids=["HTTP", "SOCKS"])
def test_who_says_a_byte_at_a_time_is_not_waited_for_longer(byte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.5)
    with visited() as (client, _):
        for _ in range(400):
            client.sendall(byte)
            if select.select([client], [], [], 0.05)[0]:
                break
        assert select.select([client], [], [], 0)[0], "it is still waited for"


def test_a_line_that_ends_without_a_carriage_return_is_refused_before_more_comes() -> None:
    with visited() as (client, _):
        client.sendall(b"GET http://index.example/ HTTP/1.1\nHost: index.example\n\n")
        assert all_said(client).startswith(b"HTTP/1.1 400 ")


@contextmanager
def answered(answer: bytes = b"") -> Iterator[tuple[int, list[bytes]]]:
    """A server of one connection on loopback; its port, and what it was sent until then."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as client:
                heard.append(client.recv(65536))
                client.sendall(answer)
                # Until the other end hangs up.
                while data := client.recv(65536):
                    heard.append(data)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listener.getsockname()[1], heard
        serving.join(20)
        assert not serving.is_alive(), "the server was never hung up on"


def loopback(port: int) -> dict[str, Any]:
    return {"granted": (f"index.example:{port}",), "hosts": ("index.example=127.0.0.1",)}


def asking(port: int, *lines: str) -> bytes:
    return "\r\n".join(
        [f"GET http://index.example:{port}/ HTTP/1.1", f"Host: index.example:{port}", *lines, "", ""]
    ).encode()


def test_a_client_that_hangs_up_is_not_held_while_the_server_says_nothing() -> None:
    with answered() as (port, _), visited(**loopback(port)) as (client, _):
        client.sendall(asking(port))
        client.close()


def test_what_follows_the_one_request_of_a_connection_goes_nowhere_and_cuts_no_answer() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
    with answered(said) as (port, heard), visited(**loopback(port)) as (client, _):
        client.sendall(asking(port) + asking(port, "X-Second: 1") + b"x" * 100_000)
        got = client.recv(4096)
        while len(got) < len(said):
            got += client.recv(4096)
    assert got == said
    assert b"X-Second" not in b"".join(heard)


def test_heads_count_as_bytes_too() -> None:
    pad = f"X-Pad: {'x' * 5000}"
    with answered(b"HTTP/1.1 200 OK\r\n\r\n") as (port, heard), visited(bytes=10_000, **loopback(port)) as (client, _):
        client.sendall(asking(port, pad))
        assert b" 200 " in client.recv(4096)
    assert len(b"".join(heard)) > 5000
    with answered() as (port, heard), visited(bytes=5000, **loopback(port)) as (client, descriptor):
        client.sendall(asking(port, pad))
        assert b"limits.network_bytes" in all_said(client)
        assert [entry.outcome for entry in ConnectionLog(descriptor).take()] == ["allowed", "refused"]
    assert heard == [b""]


def test_what_cannot_be_written_down_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_log, "MAX_BYTES", 1000)
    monkeypatch.setattr(connection_log, "RESERVED_BYTES", 1000)
    with answered() as (port, heard), visited(**loopback(port)) as (client, descriptor):
        client.sendall(asking(port))
        assert b"more connections than can be written down" in all_said(client)
        (entry,) = ConnectionLog(descriptor).take()
    assert (entry.outcome, entry.detail) == ("refused", "more connections than can be written down")
    assert heard == [b""]


def test_where_no_pipe_is_to_be_had_all_arrives_the_slower_way() -> None:
    source, sent = socket.socketpair()
    sink, got = socket.socketpair()
    data = os.urandom(3 * BULK_BYTES)
    heard: list[bytes] = []
    with source, sent, sink, got:
        hearing = threading.Thread(target=lambda: heard.extend(iter(lambda: got.recv(65536), b"")))
        saying = threading.Thread(target=lambda: (sent.sendall(data), sent.shutdown(socket.SHUT_WR)))
        lowest = os.dup(0)
        os.close(lowest)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            with pytest.raises(OSError, match="open files"):
                os.pipe()
            hearing.start()
            saying.start()
            relay((Flow(source, sink, ByteBudget(None)),))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        sink.close()
        hearing.join(20)
        saying.join(20)
    assert b"".join(heard) == data


class CrowdedDesk(ProxyContext):
    """Leaves the proxy without a free descriptor when it has turned a client away, as a thread that was faster does."""

    def refuse(self, target: str, detail: str, grant: str = "") -> None:
        super().refuse(target, detail, grant)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class CountingServer(Server):
    """Counts how often it has tried to hold a spare descriptor."""

    tries = 0

    def _take_spare(self) -> None:
        super()._take_spare()
        self.tries += 1


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limits of open files, which are back after the test."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield usual
    resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_proxy_lives_on_when_its_spare_descriptor_is_taken(limits: tuple[int, int]) -> None:
    descriptor = connection_log.create_log_file()
    ours, theirs = socket.socketpair()
    server = CountingServer(ours, CrowdedDesk(PLAN, ConnectionLog(descriptor)), limits[0])
    serving = threading.Thread(target=server.serve)
    serving.start()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        protocol.send(theirs, b"x", (listener.fileno(),))
        eventually(lambda: server._listeners)
        # The second time shows that the proxy holds a spare again.
        for _ in range(2):
            with socket.socket() as late, socket.socket() as later:
                late.settimeout(60)
                later.settimeout(60)
                tries, held = server.tries, [os.dup(descriptor)]
                while held[-1] < server._spare:
                    held.append(os.dup(descriptor))
                resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1, limits[1]))
                late.connect(listener.getsockname())
                assert late.recv(1) == b""
                eventually(lambda tries=tries: server.tries > tries or not serving.is_alive())  # type: ignore[misc]
                assert server._spare < 0
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                later.connect(listener.getsockname())
                later.sendall(b"GET http://index.example/ HTTP/1.1\nHost: index.example\n\n")
                assert all_said(later).startswith(b"HTTP/1.1 400 ")
                eventually(lambda: server._visits == 0)
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                for number in held:
                    os.close(number)
        theirs.close()
        serving.join(60)
    assert not serving.is_alive()
    for taken in server._listeners.values():
        taken.close()
    os.close(server._spare)
    os.close(descriptor)


# The journal.


def test_what_is_written_is_read_once() -> None:
    descriptor = connection_log.create_log_file()
    writer, host = ConnectionLog(os.dup(descriptor)), ConnectionLog(descriptor)
    writer.write(connection_log.REFUSED, "evil.example:443", detail="it is not granted", grant="evil.example:443")
    writer.write(connection_log.ALLOWED, "index.example:443", address="1.2.3.4", grant="index.example:443")
    assert [entry.replace(at=0.0) for entry in host.take()] == [
        LogEntry(0.0, "refused", "evil.example:443", "", "it is not granted", "evil.example:443"),
        LogEntry(0.0, "allowed", "index.example:443", "1.2.3.4", "", "index.example:443"),
    ]
    assert host.take() == []


@given(st.text(max_size=300))
def test_a_client_cannot_forge_a_line(text: str) -> None:
    descriptor = connection_log.create_log_file()
    try:
        ConnectionLog(descriptor).write(connection_log.REFUSED, text, detail=f"{text}\n0\tallowed\tx\t\t\t")
        (entry,) = ConnectionLog(descriptor).take()
    finally:
        os.close(descriptor)
    assert entry.outcome == "refused"


def written(book: ConnectionLog, names: Iterable[str], outcome: str = connection_log.REFUSED) -> None:
    for name in names:
        book.write(outcome, name)


def test_what_cannot_be_written_down_raises_and_that_it_could_not_is_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_log, "MAX_BYTES", 1000)
    monkeypatch.setattr(connection_log, "RESERVED_BYTES", 200)
    book = ConnectionLog(connection_log.create_log_file())
    with pytest.raises(connection_log.FullError):
        written(book, (f"{number}.example.org:443" for number in range(100)), connection_log.ALLOWED)
    written(book, ["evil.example:443"])
    assert [entry.outcome for entry in book.take()][-1] == "refused"
    written(book, ["index.example:443"], connection_log.ALLOWED)
    assert [entry.target for entry in book.take()] == ["index.example:443"]


def test_what_says_the_same_becomes_one_before_the_file_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_log, "MAX_BYTES", 2000)
    monkeypatch.setattr(connection_log, "RESERVED_BYTES", 200)
    descriptor = connection_log.create_log_file()
    writer, host = ConnectionLog(os.dup(descriptor)), ConnectionLog(descriptor)
    for _ in range(500):
        written(writer, ["index.example:443"], connection_log.ALLOWED)
        written(writer, ["evil.example:443"])
    assert os.fstat(descriptor).st_size <= 2000
    counts = {entry.target: entry.count for entry in connection_log.merge_entries(host.take(), 10)}
    assert counts == {"index.example:443": 500, "evil.example:443": 500}


def test_names_without_end_leave_room_for_what_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_log, "MAX_BYTES", 4000)
    monkeypatch.setattr(connection_log, "RESERVED_BYTES", 200)
    monkeypatch.setattr(connection_log, "MAX_KINDS", 20)
    book = ConnectionLog(connection_log.create_log_file())
    written(book, (f"{number}.evil.example:443" for number in range(1000)))
    written(book, ["index.example:443"], connection_log.ALLOWED)
    written(book, (f"{number}.more.example:443" for number in range(1000)))
    found = book.take()
    assert sum(entry.count for entry in found) == 2001
    assert [entry.target for entry in found if entry.outcome == "allowed"] == ["index.example:443"]


@given(st.lists(st.tuples(st.sampled_from(["allowed", "refused", "failed"]), st.integers(0, 9))), st.integers(0, 8))
def test_folding_loses_nothing_it_does_not_count_and_tells_first_where_data_went(
    asked: list[tuple[str, int]], most: int
) -> None:
    entries = [LogEntry(float(at), outcome, f"{name}.example:1") for at, (outcome, name) in enumerate(asked)]
    made = connection_log.merge_entries(entries, most)
    for outcome in ("allowed", "refused", "failed"):
        assert sum(e.count for e in made if e.outcome == outcome) == sum(o == outcome for o, _ in asked)
    assert sum(bool(entry.target) for entry in made) <= most
    assert max((entry.at for entry in made), default=0) == max((entry.at for entry in entries), default=0)
    named = [entry.outcome for entry in made if entry.target]
    assert named == sorted(named, key=["allowed", "failed", "refused"].index)
    assert connection_log.merge_entries(made, most + 3) == made

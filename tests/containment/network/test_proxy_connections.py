"""The proxy serves one client: deadlines, the byte limit, and the connection log."""

import os
import resource
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observe import eventually
from streams import begins, read_all, read_exactly, read_head

from corral.containment import protocol
from corral.containment.network.proxy import connection, connection_log
from corral.containment.network.proxy.connection import ClientConnection
from corral.containment.network.proxy.connection_log import ConnectionLog, LogEntry
from corral.containment.network.proxy.listener import Server
from corral.containment.network.proxy.relay import BULK_BYTES, ByteBudget, Flow, relay
from corral.containment.network.proxy.upstream import ProxyContext
from golden import check

PLAN: dict[str, Any] = {
    "granted": (),
    "hosts": (),
    "bytes": None,
    "connections": None,
    "certificates": "",
    "inject": (),
}


@contextmanager
def connected(**plan: Any) -> Iterator[tuple[socket.socket, int]]:
    """A client of a proxy connection, and the descriptor of the log."""
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


@pytest.mark.parametrize("byte", [b"x", b"\x05"], ids=["HTTP", "SOCKS"])
def test_slow_client_does_not_extend_the_deadline(byte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.5)
    with connected() as (client, _):
        # The proxy can end the connection between two bytes.
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(400):
                client.sendall(byte)
                if select.select([client], [], [], 0.05)[0]:
                    break
        assert select.select([client], [], [], 0)[0], "the proxy still waits for the client"


def test_bare_line_feed_is_refused_at_once() -> None:
    with connected() as (client, _):
        client.sendall(b"GET http://index.example/ HTTP/1.1\nHost: index.example\n\n")
        assert read_all(client).startswith(b"HTTP/1.1 400 ")


ANSWERS = {
    "not granted": (b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n", {}),
    "unreachable": (
        b"CONNECT index.example:9 HTTP/1.1\r\n\r\n",
        {"granted": ("index.example:9",), "hosts": ("index.example=127.0.0.1",)},
    ),
    "byte limit": (b"CONNECT index.example:443 HTTP/1.1\r\n\r\n", {"bytes": -1}),
    "malformed": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", {}),
    "body in CONNECT": (b"CONNECT index.example:443 HTTP/1.1\r\nContent-Length: 1\r\n\r\n", {}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_wording_of_the_answer_to_a_refused_client(name: str) -> None:
    request, plan = ANSWERS[name]
    with connected(**plan) as (client, _):
        client.sendall(request)
        answer = read_all(client).decode()
    check("violations", f"proxy answer: {name}", answer.replace("\r\n", "\n"))


@contextmanager
def answered(answer: bytes = b"") -> Iterator[tuple[int, list[bytes]]]:
    """A server for one connection on loopback: its port, and the bytes that it received."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            # The proxy resets the connection where it refuses.
            with suppress(ConnectionResetError, BrokenPipeError), listener.accept()[0] as client:
                # The answer follows the first byte: servers may answer before they have read everything.
                heard.append(client.recv(1))
                client.sendall(answer)
                # Until the client hangs up.
                while data := client.recv(65536):
                    heard.append(data)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listener.getsockname()[1], heard
        serving.join(20)
        assert not serving.is_alive(), "the proxy never closed its connection to the server"


def loopback(port: int) -> dict[str, Any]:
    return {"granted": (f"index.example:{port}",), "hosts": ("index.example=127.0.0.1",)}


BOUND = 100_000  # bytes


@pytest.mark.parametrize("is_http", [True, False], ids=["HTTP", "tunnel"])
def test_call_that_may_only_download_sends_no_more_than_its_bound(is_http: bool) -> None:
    with answered() as (port, heard), connected(**loopback(port), sent_bytes=BOUND) as (client, _log):
        if is_http:
            client.sendall(asking(port, "Content-Length: 1000000").replace(b"GET", b"POST"))
        else:
            client.sendall(f"CONNECT index.example:{port} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in read_head(client)
        with suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(b"\0" * 1_000_000)
        with suppress(ConnectionResetError):
            read_all(client)
    assert 0 < sum(map(len, heard)) <= BOUND


def test_call_that_may_only_download_receives_more_than_its_bound() -> None:
    with (
        answered(b"HTTP/1.1 200 OK\r\n\r\n" + b"\0" * 5 * BOUND) as (port, _),
        connected(**loopback(port), sent_bytes=BOUND) as (client, _),
    ):
        client.sendall(asking(port))
        assert len(read_exactly(client, 5 * BOUND)) == 5 * BOUND


def asking(port: int, *lines: str) -> bytes:
    return "\r\n".join(
        [f"GET http://index.example:{port}/ HTTP/1.1", f"Host: index.example:{port}", *lines, "", ""]
    ).encode()


def test_client_hang_up_ends_a_silent_connection() -> None:
    with answered() as (port, _), connected(**loopback(port)) as (client, _):
        client.sendall(asking(port))
        client.close()


def test_second_request_of_a_connection_is_dropped() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
    with answered(said) as (port, heard), connected(**loopback(port)) as (client, _):
        client.sendall(asking(port) + asking(port, "X-Second: 1") + b"x" * 100_000)
        assert read_exactly(client, len(said)) == said
    assert b"X-Second" not in b"".join(heard)


EVIL = b" /x HTTP/1.1\r\nHost: evil.example\r\n\r\n"
SMUGGLED = {
    "a sign first": (b"_", EVIL),
    "a digit first": (b"1", EVIL),
    "a long method": (b"A" * 33, EVIL),
    "no version": (b"GET\t/x\r\n", b"GET" + EVIL),
    "a POST without a version": (b"POST /x\r\nHost: evil.example\r\n\r\n", b"POST" + EVIL),
    "another protocol first": (b"hello\r\n", b"GET" + EVIL),
    "bytes first": (b"\0\0\n", b"GET" + EVIL),
    "blanks of another alphabet": (b"hello\r\n", b"GET" + EVIL.replace(b" /x ", b"\xa0/x\x1f")),
}


@pytest.mark.parametrize("case", SMUGGLED)
@pytest.mark.parametrize("protects", [True, False], ids=["", "control"])
def test_request_in_an_opaque_tunnel_is_refused(case: str, protects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not protects:
        monkeypatch.setattr(connection.http_request.RequestScanner, "feed", lambda *_: None)
    first, rest = SMUGGLED[case]
    with answered(b"go on\n") as (port, heard), connected(**loopback(port)) as (client, descriptor):
        client.sendall(f"CONNECT index.example:{port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in read_head(client)
        client.sendall(first)
        if not protects or b"/x" not in first:
            assert begins(client, b"go on\n")  # the first bytes are through
            client.sendall(rest)
            client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
        outcomes = [entry.outcome for entry in ConnectionLog(descriptor).take()]
    assert outcomes == (["allowed", "refused"] if protects else ["allowed"])
    assert (b"Host: evil" in b"".join(heard)) is not protects


def test_request_heads_count_towards_the_byte_limit() -> None:
    pad = f"X-Pad: {'x' * 5000}"
    with (
        answered(b"HTTP/1.1 200 OK\r\n\r\n") as (port, heard),
        connected(bytes=10_000, **loopback(port)) as (client, _),
    ):
        client.sendall(asking(port, pad))
        assert b" 200 " in read_head(client)
    assert len(b"".join(heard)) > 5000
    with answered() as (port, heard), connected(bytes=5000, **loopback(port)) as (client, descriptor):
        client.sendall(asking(port, pad))
        assert b"limits.network_bytes" in read_all(client)
        assert [entry.outcome for entry in ConnectionLog(descriptor).take()] == ["allowed", "refused"]
    assert heard == [b""]


def test_connection_is_refused_when_the_log_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_log, "MAX_BYTES", 1000)
    monkeypatch.setattr(connection_log, "RESERVED_BYTES", 1000)
    with answered() as (port, heard), connected(**loopback(port)) as (client, descriptor):
        client.sendall(asking(port))
        answer = read_all(client)
        (entry,) = ConnectionLog(descriptor).take()
    assert entry.outcome == "refused"
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert entry.detail.encode() in answer
    assert heard == [b""]


def test_relay_without_a_pipe_delivers_everything() -> None:
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


class CrowdedContext(ProxyContext):
    """Takes all free descriptors after a client was refused, like a thread that is faster than the proxy."""

    def refuse(self, target: str, detail: str, grant: str = "") -> None:
        super().refuse(target, detail, grant)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class CountingServer(Server):
    """Counts the attempts to reserve a spare descriptor."""

    tries = 0

    def _reserve_spare(self) -> None:
        super()._reserve_spare()
        self.tries += 1


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limits of open files, restored after the test."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield usual
    resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_proxy_survives_losing_its_spare_descriptor(limits: tuple[int, int]) -> None:
    descriptor = connection_log.create_log_file()
    ours, theirs = socket.socketpair()
    server = CountingServer(ours, CrowdedContext(PLAN, ConnectionLog(descriptor)), limits[0])
    serving = threading.Thread(target=server.serve)
    serving.start()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        protocol.send(theirs, b"x", (listener.fileno(),))
        eventually(lambda: server._listeners)
        # The second round proves that the proxy has reserved a spare again.
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
                assert read_all(later).startswith(b"HTTP/1.1 400 ")
                eventually(lambda: server._clients == 0)
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


# The connection log.


def test_log_entry_is_read_once() -> None:
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
def test_client_cannot_forge_a_log_line(text: str) -> None:
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


def test_full_log_still_takes_refusals(
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


def test_equal_entries_are_merged_when_the_log_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_endless_refusals_leave_room_for_allowed_entries(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_merging_keeps_counts_and_lists_allowed_first(asked: list[tuple[str, int]], most: int) -> None:
    entries = [LogEntry(float(at), outcome, f"{name}.example:1") for at, (outcome, name) in enumerate(asked)]
    made = connection_log.merge_entries(entries, most)
    for outcome in ("allowed", "refused", "failed"):
        assert sum(e.count for e in made if e.outcome == outcome) == sum(o == outcome for o, _ in asked)
    assert sum(bool(entry.target) for entry in made) <= most
    assert max((entry.at for entry in made), default=0) == max((entry.at for entry in entries), default=0)
    named = [entry.outcome for entry in made if entry.target]
    assert named == sorted(named, key=["allowed", "failed", "refused"].index)
    assert connection_log.merge_entries(made, most + 3) == made

"""HTTP/2 without TLS and WebSockets pass the proxy, and no second request hides behind their beginnings."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from streams import read_exactly, read_head

from corral.containment.network.proxy import connection_log
from corral.containment.network.proxy.connection import ClientConnection
from corral.containment.network.proxy.connection_log import ConnectionLog
from corral.containment.network.proxy.http_request import (
    HTTP2_PREFACE,
    accepts_websocket,
    asks_for_websocket,
    begins_http2,
    is_http2_answer,
    parse,
)
from corral.containment.network.proxy.upstream import ProxyContext

SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
SMUGGLED = b"GET /victim HTTP/1.1\r\nHost: evil.example\r\n\r\n"
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
PLAN: dict[str, Any] = {"granted": (), "bytes": None, "connections": None, "certificates": "", "inject": ()}


class Server:
    """A server for one connection on loopback: it sends `answer` after the preface of HTTP/2, and then echoes."""

    def __init__(self, answer: bytes, greeting: bytes = b"") -> None:
        self.answer = answer
        self.greeting = greeting  # what it sends before the client speaks
        self.heard = b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        # The proxy resets the connection where it refuses.
        with suppress(ConnectionResetError, BrokenPipeError), self.listener, self.listener.accept()[0] as client:
            client.sendall(self.greeting)
            self._read_beginning(client)
            client.sendall(self.answer)
            while data := client.recv(65536):
                self.heard += data
                client.sendall(data)

    def _read_beginning(self, client: socket.socket) -> None:
        """Read the preface, or one request's head, and no byte more: what comes behind it is echoed."""
        self.heard += read_exactly(client, len(HTTP2_PREFACE))
        if self.heard != HTTP2_PREFACE:
            self.heard += read_head(client)


@contextmanager
def direct(answer: bytes, greeting: bytes = b"") -> Iterator[tuple[socket.socket, Server]]:
    """A client at the address of a granted name, and the server of that name."""
    server = Server(answer, greeting)
    descriptor = connection_log.create_log_file()
    ours, theirs = socket.socketpair()
    granted = (f"own.example:{server.port}",)
    context = ProxyContext(PLAN | {"granted": granted, "hosts": ("own.example=127.0.0.1",)}, ConnectionLog(descriptor))
    serving = threading.Thread(target=ClientConnection(ours, context, ("own.example", server.port)).serve, daemon=True)
    serving.start()
    with theirs:
        theirs.settimeout(60)
        yield theirs, server
    serving.join(60)
    server.thread.join(60)
    os.close(descriptor)
    assert not serving.is_alive()
    assert not server.thread.is_alive()


def read_all(client: socket.socket) -> bytes:
    try:
        return b"".join(iter(lambda: client.recv(4096), b""))
    except ConnectionResetError:
        return b""


def read(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        assert more, data
        data += more
    return data


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_http2_passes_both_ways(step: int) -> None:
    sent = HTTP2_PREFACE + SETTINGS + bytes(range(256)) * 100
    with direct(SETTINGS) as (client, server):
        client.sendall(sent[:step])
        client.sendall(sent[step:])
        assert read(client, 9 + len(sent) - 24) == SETTINGS + sent[24:]
    assert server.heard == sent


def test_server_of_http2_may_speak_first() -> None:
    with direct(b"", SETTINGS) as (client, server):
        assert read(client, 9) == SETTINGS
        client.sendall(HTTP2_PREFACE)
        client.sendall(b"more")
        assert read(client, 4) == b"more"
    assert server.heard == HTTP2_PREFACE + b"more"


def test_greeting_of_another_protocol_is_no_http2() -> None:
    with direct(SETTINGS, b"220 mail.example ready\r\n") as (client, server):
        assert read(client, 3) == b"220"
        client.sendall(HTTP2_PREFACE + SMUGGLED)
        read_all(client)
    assert server.heard == HTTP2_PREFACE


def test_server_of_http1_gets_nothing_behind_the_beginning_of_http2() -> None:
    with direct(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (client, server):
        client.sendall(HTTP2_PREFACE + SMUGGLED)
        assert b"HTTP/1.1 400".startswith(read_all(client))
    assert server.heard == HTTP2_PREFACE


def test_request_behind_the_beginning_of_http2_is_refused() -> None:
    with direct(SETTINGS) as (client, server):
        client.sendall(HTTP2_PREFACE + SMUGGLED)
        assert read_all(client) in (b"", SETTINGS)
    assert b"victim" not in server.heard


def upgrade(port: int, *lines: str, method: str = "GET", version: str = "HTTP/1.1") -> bytes:
    head = [f"{method} /socket {version}", f"Host: own.example:{port}", *lines, "", ""]
    return "\r\n".join(head).encode()


ASKED = ("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")


def test_websocket_passes_both_ways() -> None:
    with direct(ACCEPTED) as (client, server):
        client.sendall(upgrade(server.port, *ASKED))
        assert read(client, len(ACCEPTED)) == ACCEPTED
        client.sendall(b"\x81\x85mask" + bytes(range(250)))
        assert read(client, 256) == b"\x81\x85mask" + bytes(range(250))
    assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" in server.heard
    assert b"Sec-WebSocket-Key: x" in server.heard
    assert b"keep-alive" not in server.heard


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ACCEPTED.replace(b"101", b"200")]
)
def test_bytes_behind_a_refused_websocket_are_dropped(answer: bytes) -> None:
    with direct(answer) as (client, server):
        client.sendall(upgrade(server.port, *ASKED) + SMUGGLED)
        assert read(client, len(answer)) == answer
        client.sendall(SMUGGLED)
    assert b"victim" not in server.heard


def test_request_behind_a_websocket_is_refused() -> None:
    with direct(ACCEPTED) as (client, server):
        client.sendall(upgrade(server.port, *ASKED) + SMUGGLED)
        read(client, len(ACCEPTED))
        assert read_all(client) == b""
    assert b"victim" not in server.heard


OTHER = {
    "another protocol": upgrade(80, "Connection: Upgrade", "Upgrade: h2c"),
    "two protocols": upgrade(80, "Connection: Upgrade", "Upgrade: websocket, h2c"),
    "two headers": upgrade(80, "Connection: Upgrade", "Upgrade: websocket", "Upgrade: websocket"),
    "no connection header": upgrade(80, "Upgrade: websocket"),
    "a body": upgrade(80, *ASKED, "Content-Length: 3"),
    "a body in another spelling": upgrade(80, *ASKED, "Transfer-Encoding: chunked"),
    "another method": upgrade(80, *ASKED, method="POST"),
    "an old version": upgrade(80, *ASKED, version="HTTP/1.0"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER)
def test_other_upgrade_is_an_ordinary_request(kind: str) -> None:
    assert not asks_for_websocket(parse(OTHER[kind]))
    assert asks_for_websocket(parse(upgrade(80, *ASKED)))


def test_beginning_of_http2_is_recognized_by_all_its_bytes() -> None:
    assert [begins_http2(HTTP2_PREFACE[:count]) for count in (0, 1, 23, 24)] == [False, None, None, True]
    assert begins_http2(b"PRI * HTTP/1.1\r\n") is False
    assert [is_http2_answer(data) for data in (SETTINGS, SETTINGS[:8], b"HTTP/1.1 200 OK", b"\0\0\0\x04\0\0\0\0\1")] == [True, False, False, False]  # fmt: skip


@pytest.mark.parametrize("line", ["Upgrade: h2c", "X-Upgrade: websocket", "Upgrade: websocket\r\nUpgrade: x"])
def test_other_answer_accepts_no_websocket(line: str) -> None:
    assert not accepts_websocket(f"HTTP/1.1 101 Switching Protocols\r\n{line}".encode())

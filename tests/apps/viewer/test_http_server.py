"""The server of a page answers only requests with its host name and its token."""

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from observe import eventually
from streams import begins

from corral.apps.viewer import http_server, page
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import MAX_STRANGERS, Server

PATHS = ("/api/calls", "/api/detail?key=a", "/api/evals")
HELD = "canary-of-the-log"


@pytest.fixture
def server() -> Iterator[Server]:
    feed = Feed()
    feed.put([({"key": "a", "id": "a", "shell": HELD, "decision": "allow", "outcome": "ok"}, {"stdout": HELD})])
    feed.loaded()
    made = Server(feed, page.meta(name="n", kind="log", live=True), Reader(os.environ)).start()
    yield made
    made.close()


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    answer = connection.getresponse()
    made = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return made


@pytest.mark.parametrize("path", PATHS)
def test_token_gives_access_to_the_data(server: Server, path: str) -> None:
    status, body, _ = get(server, path, X_Corral_Token=server.token)
    assert status == 200
    assert path == "/api/evals" or HELD in body


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "wrong", "ü"])
def test_request_without_the_token_is_401(server: Server, path: str, token: str) -> None:
    status, body, _ = get(server, path, X_Corral_Token=token.encode().decode("latin-1"))
    assert status == 401
    assert HELD not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/", *PATHS])
def test_other_site_is_refused_even_with_the_token(server: Server, headers: dict[str, str], path: str) -> None:
    given = {name: value.replace("{port}", str(server.port)) for name, value in headers.items()}
    status, body, _ = get(server, path, X_Corral_Token=server.token, **given)
    assert status in (403, 421)
    assert HELD not in body
    assert "<script" not in body


def test_own_page_is_answered(server: Server) -> None:
    origin = f"http://127.0.0.1:{server.port}"
    assert get(server, "/api/calls", X_Corral_Token=server.token, Origin=origin, Sec_Fetch_Site="same-origin")[0] == 200
    assert get(server, "/", Host=f"localhost:{server.port}")[0] == 200


def test_page_contains_no_data_and_no_token(server: Server) -> None:
    status, body, _ = get(server, "/")
    assert status == 200
    assert HELD not in body
    assert server.token not in body
    assert server.url == f"http://127.0.0.1:{server.port}/#token={server.token}"


@pytest.mark.parametrize("path", ["/", "/api/calls", "/nothing"])
def test_every_answer_has_the_security_headers(server: Server, path: str) -> None:
    headers = get(server, path)[2]
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"], headers["Referrer-Policy"]) == (
        "nosniff",
        "no-store",
        "no-referrer",
    )
    assert "Server" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get_is_answered(server: Server, method: str) -> None:
    assert get(server, "/api/calls", method, X_Corral_Token=server.token)[0] == 501


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/page.css", "/api/", "/api/calls/../x", "/%2e%2e/x"])
def test_no_file_is_served(server: Server, path: str) -> None:
    assert get(server, path, X_Corral_Token=server.token)[0] == 404


@pytest.mark.parametrize("query", ["after=", "after=9&after=0", "after=0&other=x"])
def test_position_is_the_last_one_and_zero_by_default(
    server: Server, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "WAIT_SECONDS", 0.0)
    status, body, _ = get(server, f"/api/calls?{query}", X_Corral_Token=server.token)
    answer: dict[str, Any] = json.loads(body)
    assert (status, answer["next"]) == (200, 1)


@pytest.mark.parametrize(
    "path",
    [
        "/api/calls?after=x",
        "/api/calls?after=-1",
        "/api/calls?evals=%00",
        "/api/calls?after=%D9%A3",
        f"/api/calls?after={'9' * 5000}",
        f"/?evals={'9' * 5000}",
    ],
    ids=["a letter", "a sign", "a NUL", "another digit", "5000 digits", "5000 digits for the page"],
)
@pytest.mark.parametrize("has_token", [True, False])
def test_unreadable_request_is_400(server: Server, path: str, has_token: bool) -> None:
    headers = {"X_Corral_Token": server.token} if has_token else {}
    status, body, _ = get(server, path, **headers)
    assert (status, body.startswith("the address cannot be read: ")) == (400, True)


def test_address_that_cannot_be_parsed_is_400(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(f"GET http://[x/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        assert begins(client, b"HTTP/1.1 400 ")


def threads_of_connections() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: ", b"GET /api/calls HTTP/1.1\r\n"])
def test_connections_without_the_token_are_bounded(server: Server, sent: bytes) -> None:
    before = threads_of_connections()
    page_ = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    page_.request("GET", "/api/evals", headers={"X-Corral-Token": server.token})
    assert page_.getresponse().read()
    held = []
    try:
        for _ in range(10 * MAX_STRANGERS):
            held.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            held[-1].sendall(sent)
        eventually(lambda: threads_of_connections() - before <= MAX_STRANGERS + 1)
        # Ended, not only unanswered.
        assert held[0].recv(1) == b""
        # The page still has its connection, and gets new ones.
        page_.request("GET", "/api/evals", headers={"X-Corral-Token": server.token})
        assert page_.getresponse().status == 200
        assert get(server, "/api/evals", X_Corral_Token=server.token)[0] == 200
    finally:
        for each in held:
            each.close()
        page_.close()


def test_server_listens_on_loopback_only(server: Server) -> None:
    assert server._http.server_address[0] == "127.0.0.1"

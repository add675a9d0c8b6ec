"""The server of a page answers only requests with its host name and its token."""

import http.client
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from corral.apps.viewer import http_server, page
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server

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


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=", "after=9&after=1", "evals=%00"])
def test_invalid_position_counts_as_zero(server: Server, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WAIT_SECONDS", 0.0)
    status, body, _ = get(server, f"/api/calls?{query}&evals=0", X_Corral_Token=server.token)
    answer: dict[str, Any] = json.loads(body)
    assert (status, answer["next"]) == (200, 1)


def test_server_listens_on_loopback_only(server: Server) -> None:
    assert server._http.server_address[0] == "127.0.0.1"

"""The HTTP server listens on loopback only, requires a token, and refuses requests that a web page could send."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from mcp_client_ways import PROGRAM, Home, Served, connected, drive, served, told

from corral.integrations.mcp.server import local_address, read_token
from corral.model.errors import PolicyError

BODY = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A user's home directory beside a project."""
    return Home(tmp_path_factory.mktemp("mcp-http"))


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[Served]:
    """A server over HTTP."""
    with served(home) as made:
        yield made


def status(server: Served, headers: dict[str, str], method: str = "POST", path: str = "") -> int:
    """Return the status code of a request."""
    return httpx2.request(
        method, server.url + path, json=BODY if method == "POST" else None, headers=ACCEPT | headers
    ).status_code


def test_right_token_is_accepted(server: Served) -> None:
    # The request has no session, so the protocol reports an error, but the token is accepted.
    assert status(server, {"Authorization": f"Bearer {server.token}"}) not in (401, 403, 421)
    assert status(server, {"Authorization": f"bearer {server.token}"}) not in (401, 403, 421)


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS", "PUT"])
@pytest.mark.parametrize(
    "given",
    [
        pytest.param("", id="none"),
        pytest.param("Bearer", id="no word"),
        pytest.param("Bearer wrong", id="a wrong one"),
        pytest.param("Bearer {token}x", id="a longer one"),
        pytest.param("Bearer {half}", id="half of it"),
        pytest.param("Basic {token}", id="another scheme"),
        pytest.param("{token}", id="no scheme"),
        pytest.param("Bearer {token} {token}", id="twice"),
    ],
)
def test_wrong_token_is_refused(server: Served, method: str, given: str) -> None:
    given = given.format(token=server.token, half=server.token[:20])
    headers = {"Authorization": given} if given else {}
    assert status(server, headers, method) == 401


def test_token_outside_the_header_is_refused(server: Served) -> None:
    assert status(server, {}, path=f"?access_token={server.token}") == 401
    assert status(server, {"Cookie": f"token={server.token}"}) == 401
    double = [("Authorization", f"Bearer {server.token}"), ("Authorization", "Bearer x"), *ACCEPT.items()]
    assert httpx2.post(server.url, json=BODY, headers=double).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "127.0.0.1:1",
        "localhost",
        "0.0.0.0:{port}",
    ],
)
def test_foreign_host_header_is_refused_despite_the_token(server: Served, host: str) -> None:
    port = server.url.split(":")[2].split("/")[0]
    headers = {"Host": host.format(port=port), "Authorization": f"Bearer {server.token}"}
    assert status(server, headers) == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:{port}.evil.example",
        "http://localhost:1",
        "",
    ],
)
def test_foreign_origin_is_refused_despite_the_token(server: Served, origin: str) -> None:
    port = server.url.split(":")[2].split("/")[0]
    headers = {"Origin": origin.format(port=port), "Authorization": f"Bearer {server.token}"}
    assert status(server, headers) == 403


def test_own_origin_is_accepted(server: Served) -> None:
    port = server.url.split(":")[2].split("/")[0]
    headers = {"Origin": f"http://localhost:{port}", "Authorization": f"Bearer {server.token}"}
    assert status(server, headers) not in (401, 403, 421)


def test_every_path_requires_the_token(server: Served) -> None:
    base = server.url.removesuffix("/mcp")
    for path in ("/", "/sse", "/messages/", "/.well-known/oauth-protected-resource", "/mcp/"):
        assert httpx2.get(base + path).status_code == 401


def test_oversized_body_is_refused(server: Served) -> None:
    headers = ACCEPT | {"Authorization": f"Bearer {server.token}"}
    assert httpx2.post(server.url, content=b"[" * (5 << 20), headers=headers).status_code == 413
    assert httpx2.post(server.url, content=b"[" * 100_000, headers=headers).status_code == 400


def test_every_server_has_its_own_token_and_prints_it_once(home: Home, server: Served) -> None:
    with served(home) as other:
        assert len(other.token) >= 43
        assert other.token != server.token
        other.process.terminate()
        assert other.process.stderr is not None
        assert other.token not in other.process.stderr.read()


def test_token_is_not_in_environment_or_command_line(server: Served) -> None:
    for name in ("environ", "cmdline"):
        assert server.token.encode() not in Path(f"/proc/{server.process.pid}/{name}").read_bytes()


def test_token_can_be_read_from_a_file(home: Home) -> None:
    file = home.home / "token"
    file.touch(0o600)
    file.write_text("0123456789abcdef0123456789abcdef\n")

    async def body() -> None:
        with served(home, "--token-file", str(file), token="0123456789abcdef0123456789abcdef") as server:
            async with connected(home, "http", "auto", server) as client:
                assert told(await client.call_tool("run_command", {"argv": ["echo", "x"]}))["stdout"] == "x\n"

    drive(body)


@pytest.mark.parametrize(
    ("mode", "text", "word"),
    [
        pytest.param(0o644, "0123456789abcdef" * 2, "chmod 600", id="others read it"),
        pytest.param(0o620, "0123456789abcdef" * 2, "chmod 600", id="the group writes it"),
        pytest.param(0o600, "short", "32 to 1024", id="too short"),
        pytest.param(0o600, "", "32 to 1024", id="empty"),
        pytest.param(0o600, "x" * 2000, "32 to 1024", id="too long"),
        pytest.param(0o600, "0123456789abcdef 0123456789abcdef", "one word", id="two words"),
        pytest.param(0o600, "0123456789abcdef" * 2 + "\u00e9", "one word", id="not ASCII"),
    ],
)
def test_unsafe_token_file_is_refused(tmp_path: Path, mode: int, text: str, word: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(PolicyError, match=word):
        read_token(str(file), "/usr")


def test_missing_or_reachable_token_file_is_refused(tmp_path: Path) -> None:
    for path, bound, word in (
        (tmp_path / "missing", "/usr", "cannot be read"),
        (tmp_path, "/usr", "chmod 600"),
        (tmp_path / "token", str(tmp_path), "inside"),
        (tmp_path / "token", "/", "inside"),
    ):
        with pytest.raises(PolicyError, match=word):
            read_token(str(path), bound)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8765", ("127.0.0.1", 8765)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("127.0.0.2:65535", ("127.0.0.2", 65535)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_loopback_address_is_accepted(text: str, expected: tuple[str, int]) -> None:
    assert local_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:80",
        "[::]:80",
        ":::80",
        "10.0.0.1:80",
        "example.org:80",
        "[::ffff:10.0.0.1]:80",
        "0:80",
        "",
        "x",
        "127.0.0.1",
        "1:99999",
        "-1",
        "localhost:",
        "٣",
    ],
)
def test_other_address_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="--http"):
        local_address(text)


def test_program_refuses_to_listen_on_all_interfaces(home: Home) -> None:
    done = subprocess.run(
        [*PROGRAM, "--root", str(home.project), "--http", "0.0.0.0:0"],
        env=home.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert "0.0.0.0" in done.stderr

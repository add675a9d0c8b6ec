"""Connections go by the proxy of the user's environment, whose credentials stay outside, and commands get its certificates."""

import base64
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from streams import read_all, read_head

from corral import Containment, Sandbox
from corral._lib.network.certificates import CERTIFICATES_FILE, VARIABLES, certificates
from corral._lib.network.proxy_settings import ParentProxy, goes_direct, no_proxy, parent_settings, parse_proxy
from corral.containment.network.proxy.outcome_errors import RefusedError, UnreachableError
from corral.containment.network.proxy.parent import ParentProxies
from corral.containment.network.proxy.upstream import UpstreamConnector

SECRET = "p@ss word"
USER = "me:p%40ss%20word@"
BASIC = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
GRANTED = "192.0.2.7:8099"


class Parent:
    """A small proxy, which answers plain requests itself and leads every tunnel to one server."""

    def __init__(self, port: int, *, status: int = 200) -> None:
        self.heads: list[str] = []
        self.status = status
        self.leads_to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            head = read_head(client)
            self.heads.append(head.decode())
            if not head.startswith(b"CONNECT") or self.status != 200:
                client.sendall(b"HTTP/1.1 %d x\r\nContent-Length: 6\r\n\r\nparent" % self.status)
                return
            with socket.create_connection(("127.0.0.1", self.leads_to)) as server:
                client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                server.sendall(read_head(client))
                client.sendall(read_all(server))


@contextmanager
def parent(port: int, **more: Any) -> Iterator[Parent]:
    made = Parent(port, **more)
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


def open_with(
    open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch, granted: str = GRANTED, **variables: str
) -> Sandbox:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return open_sandbox(containment=Containment(network=[granted]))


def test_tunnel_goes_by_the_parent(
    port: int, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    with parent(port) as proxy:
        box = open_with(open_sandbox, monkeypatch, HTTPS_PROXY=f"http://{USER}{proxy.place}")
        result = box.run(["curl", "-sS", "-p", f"http://{GRANTED}/x"])
        assert (result.stdout, result.violations) == (b"reached", ()), result.stderr_text
        assert [(c.target, c.outcome, c.address) for c in result.connections] == [
            (GRANTED, "allowed", f"by the proxy {proxy.place}")
        ]
        assert proxy.heads[0].splitlines()[:3] == [
            f"CONNECT {GRANTED} HTTP/1.1",
            f"Host: {GRANTED}",
            f"Proxy-Authorization: {BASIC}",
        ]
        environment = box.run(["env"]).stdout_text
        assert SECRET not in environment
        assert "p%40ss" not in environment
        assert proxy.place not in environment


def test_plain_request_goes_whole_to_the_parent(
    port: int, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    with parent(port) as proxy:
        box = open_with(open_sandbox, monkeypatch, http_proxy=f"http://{USER}{proxy.place}")
        result = box.run(["curl", "-sS", "-H", "Proxy-Authorization: Basic forged", f"http://{GRANTED}/x?y"])
        assert result.stdout == b"parent", result.stderr_text
        lines = proxy.heads[0].splitlines()
        assert lines[:2] == [f"GET http://{GRANTED}/x?y HTTP/1.1", f"Host: {GRANTED}"]
        assert [line for line in lines if "authorization" in line.lower()] == [f"Proxy-Authorization: {BASIC}"]


def test_refusals_stay_with_a_parent(
    port: int, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    with parent(port) as proxy:
        place = f"http://{proxy.place}"
        box = open_with(open_sandbox, monkeypatch, HTTPS_PROXY=place, HTTP_PROXY=place)
        for url in ("https://evil.example/", "http://evil.example/", "http://192.0.2.7/", "http://127.0.0.1:9/"):
            assert not box.run(["curl", "-sSf", "-m", "60", url]).ok
        # The parent is not opened to commands.
        assert not box.run(["curl", "-sSf", "-m", "60", "-x", place, f"http://{GRANTED}/"]).ok
        assert proxy.heads == []


@pytest.mark.parametrize("status", [403, 407, 502])
def test_refusal_of_the_parent_is_told(
    status: int, port: int, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    with parent(port, status=status) as proxy:
        box = open_with(open_sandbox, monkeypatch, HTTPS_PROXY=f"http://{USER}{proxy.place}")
        result = box.run(["curl", "-sS", "-p", f"http://{GRANTED}/"])
    (connection,) = result.connections
    assert (result.ok, connection.outcome) == (False, "failed")
    assert str(status) in connection.detail
    assert SECRET not in repr(result)


@pytest.mark.parametrize("kind", ["https://proxy.example:3128", "socks5h://127.0.0.1:1080"])
def test_other_kind_of_proxy_is_told(
    kind: str, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = open_with(open_sandbox, monkeypatch, HTTPS_PROXY=kind)
    (connection,) = box.run(["curl", "-sS", "-p", f"http://{GRANTED}/"]).connections
    assert connection.outcome == "failed"
    assert "HTTPS_PROXY" in connection.detail


def test_commands_do_not_learn_the_parents_address(
    open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = open_with(
        open_sandbox,
        monkeypatch,
        HTTP_PROXY=f"http://{USER}127.0.0.1:9",
        HTTPS_PROXY=f"http://{USER}127.0.0.1:9",
    )
    plain = box.run(["curl", "-sS", f"http://{GRANTED}/"])
    tunnel = box.run(["curl", "-sSv", "-p", f"http://{GRANTED}/"])
    assert "the user's proxy cannot be reached" in plain.stdout_text
    for result in (plain, tunnel):
        told = result.stdout_text + result.stderr_text
        assert "127.0.0.1:9 " not in told
        assert SECRET not in repr(result)
        (connection,) = result.connections
        assert "the proxy 127.0.0.1:9 cannot be reached" in connection.detail


def test_no_proxy_and_fixed_addresses_go_direct(
    port: int, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    with parent(port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.place}")
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.place}")
        granted = Containment(network=[f"own.example:{port}"], hosts=["own.example=127.0.0.1"], local=[port])
        box = open_sandbox(containment=granted)
        for place in (f"own.example:{port}", f"127.0.0.1:{port}"):
            assert box.run(["curl", "-sS", f"http://{place}/"]).stdout == b"reached"
        assert proxy.heads == []


def test_name_at_a_private_address_is_refused_before_the_parent_is_asked() -> None:
    parents = ParentProxies({"tunnel": ("127.0.0.1", 9, "", "")})
    dial = UpstreamConnector(("a.example:443",), (), lambda *_: ["169.254.169.254"], parents)
    with pytest.raises(RefusedError, match=r"169\.254\.169\.254"):
        dial.connect("a.example", 443)

    def unknown(*_: object) -> list[str]:
        raise OSError(-2, "no such name")

    with pytest.raises(UnreachableError, match=r"the proxy 127\.0\.0\.1:9 cannot be reached"):
        UpstreamConnector(("a.example:443",), (), unknown, parents).connect("a.example", 443)


PROXIES = {
    "http://proxy.example:3128": ParentProxy("proxy.example", 3128),
    "proxy.example:3128/": ParentProxy("proxy.example", 3128),
    "HTTP://PROXY.example": ParentProxy("proxy.example", 80),
    "http://a:b%3Ac@10.0.0.1:1": ParentProxy("10.0.0.1", 1, "a:b:c"),
    "http://a@[::1]:3128": ParentProxy("::1", 3128, "a"),
}


@pytest.mark.parametrize("text", PROXIES)
def test_proxy_is_parsed(text: str) -> None:
    assert parse_proxy(text, "HTTPS_PROXY") == PROXIES[text]


@pytest.mark.parametrize(
    "text",
    [
        "https://a:s3cret@b",
        "http://a:s3cret@",
        "http://a:s3%0acret@b",
        "http://s3cret@127.1",
        "http://s3cret:1/x@b",
        "a:s3cret://x@b",
    ],
)
def test_unusable_proxy_has_a_problem_without_credentials(text: str) -> None:
    made = parse_proxy(text, "HTTPS_PROXY")
    assert made.problem.startswith("HTTPS_PROXY ")
    assert "s3cret" not in made.problem


def test_lower_case_variables_count_first() -> None:
    environ = {"https_proxy": "http://a:1", "HTTPS_PROXY": "http://b:2", "ALL_PROXY": "http://c:3", "no_proxy": "X, .y"}
    assert parent_settings(environ) == {
        "tunnel": ("a", 1, "", ""),
        "http": ("c", 3, "", ""),
        "direct": ("x", ".y"),
    }
    assert parent_settings({}) == {"direct": ()}


DIRECT = {
    "*": ("a.example", True),
    "a.example": ("a.example", True),
    ".example": ("a.example", True),
    "*.example": ("a.example", True),
    "example.": ("a.example", True),
    "ample": ("a.example", False),
    "b.example": ("a.example", False),
    "a.example:443": ("a.example", True),
    "a.example:80": ("a.example", False),
    "10.0.0.0/8": ("10.1.2.3", True),
    "10.0.0.0/8, x": ("11.1.2.3", False),
    "10.1.2.3": ("10.1.2.3", True),
    "2.3": ("10.1.2.3", False),
    "fd00::/8": ("fd00::1", True),
    "[fd00::1]:443": ("fd00::1", True),
    "not/a/block": ("10.1.2.3", False),
    "": ("a.example", False),
    " ": ("127.0.0.9", True),
    ",": ("localhost", True),
}


@pytest.mark.parametrize("text", DIRECT)
def test_no_proxy_matches_as_in_curl(text: str) -> None:
    name, expected = DIRECT[text]
    assert goes_direct(name, 443, no_proxy(text)) is expected


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "company.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-subj", "/CN=company", "-keyout", str(tmp_path / "key"), "-out", str(made)]
    subprocess.run(words, check=True, capture_output=True)
    made.write_bytes(made.read_bytes() + b"notes of the user\n" + (tmp_path / "key").read_bytes())
    return made


def test_commands_get_the_companys_certificates(
    bundle: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(bundle))
    monkeypatch.setenv("CURL_CA_BUNDLE", str(bundle.parent))  # a directory
    box = open_sandbox(containment=Containment(network=["a.example:443"]))
    seen = dict(line.split("=", 1) for line in box.run(["env"]).stdout_text.splitlines() if "=" in line)
    assert {name: seen[name] for name in VARIABLES if name in seen} == {
        "SSL_CERT_FILE": CERTIFICATES_FILE,
        "NODE_EXTRA_CA_CERTS": CERTIFICATES_FILE,
    }
    text = box.run(["cat", CERTIFICATES_FILE]).stdout
    assert text == certificates(os.environ)
    assert text.count(b"BEGIN CERTIFICATE") == 1
    assert b"PRIVATE KEY" not in text
    assert b"notes" not in text
    assert box.run(["sh", "-c", f"echo x > {CERTIFICATES_FILE}"]).exit_code != 0


def test_file_without_certificates_is_not_shown(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(secret))
    for name in VARIABLES[1:]:
        monkeypatch.delenv(name, raising=False)
    box = open_sandbox(containment=Containment(network=["a.example:443"]))
    assert "SSL_CERT_FILE" not in box.run(["env"]).stdout_text
    assert box.run(["cat", CERTIFICATES_FILE]).exit_code != 0

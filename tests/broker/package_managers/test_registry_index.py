"""Tests which second hosts corral takes from the page of a package index, with real servers on loopback."""

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from corral import Containment, SandboxConfig
from corral.broker.package_managers.addresses import Address
from corral.broker.package_managers.index import MAX_PAGE_BYTES, _accepted, second_addresses
from corral.broker.package_managers.registries import TimeLimits, resolve, second_hosts
from corral.model.grant import Grant

SECONDS = 60.0  # a busy machine is no failure
PUBLIC = Address("https", "index.example", 443)


class Index:
    """A server on 127.0.0.1, which `localhost` names too: the two hosts of these tests."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        self.ended = threading.Event()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                if self.path == "/endless/config.json":
                    self.drip()
                    return
                status, headers, body = index.pages.get(self.path, (404, {}, b"nothing here"))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def drip(self) -> None:
                """Send headers byte by byte, until the client is gone."""
                with suppress(OSError):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                    while not index.ended.wait(0.01):
                        self.wfile.write(b"x")

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self.server.server_address[1]
        self.address = Address("http", "127.0.0.1", self.port, "simple/")

    @property
    def other(self) -> str:
        return f"http://localhost:{self.port}"

    def serve(self, path: str, body: bytes | str, status: int = 200, **headers: str) -> None:
        self.pages[path] = (status, headers, body.encode() if isinstance(body, str) else body)


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.ended.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def html(*links: str) -> str:
    return "<!DOCTYPE html><body>" + "".join(f'<a href="{link}">x</a>' for link in links)


PAGES: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "PEP 503": ("pep503", "six/", lambda other: html(f"{other}/six-1.whl#sha256=1", "../../six-2.whl")),
    "PEP 691": ("pep503", "six/", lambda other: json.dumps({"files": [{"url": f"{other}/six.whl"}, {"url": "x"}]})),
    "cargo": ("cargo", "config.json", lambda other: json.dumps({"dl": f"{other}/{{crate}}/{{version}}", "api": "x"})),
    "npm version": ("npm", "x/latest", lambda other: json.dumps({"dist": {"tarball": f"{other}/x.tgz"}})),
    "npm package": ("npm", "x", lambda other: json.dumps({"versions": {"1": {"dist": {"tarball": f"{other}/x.tgz"}}}})),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_the_host_of_its_files(index: Index, name: str) -> None:
    kind, page, body = PAGES[name]
    index.serve(f"/simple/{page}", body(index.other))
    found = second_addresses(index.address, kind, page, seconds=SECONDS)
    assert found == [Address("http", "localhost", index.port)]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(
    "other",
    [
        *("https://localhost:{port}", "http://user@localhost:{port}", "http://127.0.0.2:{port}", "http://[::1]:{port}"),
        *("http://localhost:22", "http://127.1:{port}", "http://local host:{port}", "ftp://localhost:{port}"),
    ],
    ids=["another scheme", "user", "address", "IPv6", "port", "short address", "space", "ftp"],
)
def test_other_hosts_of_a_page_are_not_taken(index: Index, name: str, other: str) -> None:
    kind, page, body = PAGES[name]
    index.serve(f"/simple/{page}", body(other.format(port=index.port)))
    assert second_addresses(index.address, kind, page, seconds=SECONDS) == []
    assert index.asked == [f"/simple/{page}"]


def test_one_bad_address_spoils_the_page(index: Index) -> None:
    index.serve("/simple/six/", html(f"{index.other}/good.whl", "http://user@localhost/bad.whl"))
    assert second_addresses(index.address, "pep503", "six/", seconds=SECONDS) == []


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (["https://a.example/x", "https://b.example/x", "https://c.example/x"], ["a.example", "b.example", "c.example"]),
        (["https://a.example/x", "https://a.example/y", "x", "/x", "https://index.example/x"], ["a.example"]),
        (["//a.example/x"], ["a.example"]),
        ([f"https://h{n}.example/x" for n in range(50)], []),
        ([f"https://h{n}.example/x" for n in range(4)], []),
        (["http://a.example/x"], []),
        (["http://index.example/x"], []),
        (["https://192.0.2.1/x"], []),
        (["https://a.example@b.example/x"], []),
        (["https://a.example:22/x"], []),
        (["https://localhost/x"], []),
        (["https://intranet/x"], []),
        (["https://*.example/x"], []),
        (["https://\u0430.example/x"], []),
        (["https://a.example\\@b.example/x"], []),
    ],
)  # fmt: skip
def test_a_public_index_opens_few_public_names(links: list[str], expected: list[str]) -> None:
    assert [address.host for address in _accepted(PUBLIC, links)] == expected


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (404, html("{other}/x.whl"), {}),
        (302, html("{other}/x.whl"), {"Location": "/simple/elsewhere/"}),
        (200, html("{other}/x.whl") + " " * (MAX_PAGE_BYTES + 1), {}),
        (200, "<base href='{other}/'>" + html("{other}/x.whl"), {}),
        (200, b"\xff" + html("{other}/x.whl").encode(), {}),
        (200, "{" * 100_000, {}),
        (200, '{"files": 7}', {}),
        (200, "{\"files\": " + "[" * 100_000, {}),
    ],
    ids=["missing", "redirect", "long", "base", "not text", "not JSON", "another type", "nested"],
)  # fmt: skip
def test_odd_pages_name_nothing(index: Index, status: int, body: str | bytes, headers: dict[str, str]) -> None:
    raw = body if isinstance(body, bytes) else body.encode()
    index.serve("/simple/six/", raw.replace(b"{other}", index.other.encode()), status, **headers)
    index.serve("/simple/elsewhere/", html(f"{index.other}/x.whl"))
    assert second_addresses(index.address, "pep503", "six/", seconds=SECONDS) == []
    assert index.asked == ["/simple/six/"]


def test_an_index_that_does_not_answer_names_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("http", "127.0.0.1", silent.getsockname()[1])
        assert second_addresses(address, "cargo", "config.json", seconds=0.2) is None


def test_an_index_that_never_ends_its_answer_names_nothing(index: Index) -> None:
    endless = Address("http", "127.0.0.1", index.port, "endless/")
    assert second_addresses(endless, "cargo", "config.json", seconds=0.2) is None
    assert index.asked == ["/endless/config.json"]


def test_a_certificate_that_nobody_signed_is_refused(index: Index, tmp_path: Path) -> None:
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"],
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    index.server.socket = context.wrap_socket(index.server.socket, server_side=True)
    address = Address("https", "localhost", index.port)
    assert second_addresses(address, "cargo", "config.json", seconds=SECONDS) is None
    assert index.asked == []


# From the tool to the second host


@pytest.fixture
def settings(tmp_path: Path, index: Index) -> dict[str, Any]:
    """A project, and a stub npm that is configured for the index."""
    for name in ("home", "project", "bin"):
        (tmp_path / name).mkdir()
    program = tmp_path / "bin" / "npm"
    program.write_text(f"#!/bin/sh\necho http://127.0.0.1:{index.port}/\n")
    program.chmod(0o755)
    index.serve("/isarray/latest", json.dumps({"dist": {"tarball": f"{index.other}/x.tgz"}}))
    config = SandboxConfig(project_root=str(tmp_path / "project"), containment=Containment(backend="none"))
    environ = {"HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    return {"tool": "npm", "program": "", "environ": environ, "config": config, "limits": TimeLimits(60, 60, 60)}


def test_second_hosts_are_read_after_the_yes_and_kept(index: Index, settings: dict[str, Any]) -> None:
    first = Grant("network", f"127.0.0.1:{index.port}", "npm config get registry")
    second = Grant("network", f"localhost:{index.port}", "named by the index 127.0.0.1")
    assert resolve(**settings) == (first,)
    assert index.asked == []
    assert second_hosts(**settings, granted=[first]) == (second,)
    assert second_hosts(**settings, granted=[first]) == (second,)
    assert resolve(**settings) == (first, second)
    assert index.asked == ["/isarray/latest"]


def test_an_index_that_serves_its_own_files_is_read_once(index: Index, settings: dict[str, Any]) -> None:
    index.serve("/isarray/latest", json.dumps({"dist": {"tarball": f"http://127.0.0.1:{index.port}/x.tgz"}}))
    granted = resolve(**settings)
    assert [second_hosts(**settings, granted=granted) for _ in range(2)] == [(), ()]
    assert index.asked == ["/isarray/latest"]


@pytest.mark.parametrize("kind", ["nothing", "another host", "uncertain", "another kind"])
def test_an_index_without_a_yes_is_not_read(index: Index, settings: dict[str, Any], kind: str) -> None:
    target = f"127.0.0.1:{index.port}"
    granted = {
        "nothing": [],
        "another host": [Grant("network", "other.example:443")],
        "uncertain": [Grant("network", target, certain=False)],
        "another kind": [Grant("registry", target)],
    }[kind]
    assert second_hosts(**settings, granted=granted) == ()
    assert index.asked == []

"""The proxy's parsers are strict: TLS hellos, HTTP requests, SOCKS requests and addresses."""

import argparse
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import read_all

from corral.containment.network.proxy import addresses, connection_log, http_request, socks, tls_hello
from corral.containment.network.proxy.connection import ClientConnection
from corral.containment.network.proxy.connection_log import ConnectionLog
from corral.containment.network.proxy.upstream import ProxyContext
from golden import check

# TLS.


@cache
def client_hello(name: str | None, **settings: object) -> bytes:
    """Return the first bytes of a real client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = name is not None
    for key, value in settings.items():
        setattr(context, key, value)
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def fragmented(data: bytes, size: int) -> bytes:
    """Return the same handshake message, split into records of `size` bytes."""
    message = data[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(data[:3] + len(part).to_bytes(2, "big") + part for part in parts)


def with_extension(data: bytes, kind: int, value: bytes) -> bytes:
    """Return a hello with another extension at its end."""
    more = kind.to_bytes(2, "big") + len(value).to_bytes(2, "big") + value
    message = bytearray(data[5:])
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    message[at : at + 2] = (int.from_bytes(message[at : at + 2], "big") + len(more)).to_bytes(2, "big")
    message += more
    message[1:4] = (len(message) - 4).to_bytes(3, "big")
    return data[:3] + len(message).to_bytes(2, "big") + bytes(message)


def server_name_extension(*names: tuple[int, bytes]) -> bytes:
    listed = b"".join(bytes((kind,)) + len(name).to_bytes(2, "big") + name for kind, name in names)
    return len(listed).to_bytes(2, "big") + listed


def test_server_name_of_a_real_hello_is_found() -> None:
    assert tls_hello.server_name(client_hello("index.example")) == "index.example"
    assert tls_hello.server_name(client_hello("Index.EXAMPLE")) == "index.example"
    assert tls_hello.server_name(client_hello(None, verify_mode=ssl.CERT_NONE)) == ""
    assert (
        tls_hello.server_name(client_hello("index.example", maximum_version=ssl.TLSVersion.TLSv1_2)) == "index.example"
    )


@pytest.mark.parametrize("size", [2, 7, 100])
def test_fragmented_hello_is_reassembled(size: int) -> None:
    assert tls_hello.server_name(fragmented(client_hello("index.example"), size)) == "index.example"


def test_incomplete_hello_needs_more_bytes() -> None:
    whole = client_hello("index.example")
    assert {tls_hello.server_name(whole[:count]) for count in range(len(whole))} == {None}


HELLOS = {
    "encrypted": with_extension(client_hello("index.example"), 0xFE0D, b"\0" * 8),
    "two extensions for the name": with_extension(
        client_hello("index.example"), 0, server_name_extension((0, b"evil.example"))
    ),
    "two names": with_extension(
        client_hello(None, verify_mode=ssl.CERT_NONE),
        0,
        server_name_extension((0, b"index.example"), (0, b"evil.example")),
    ),
    "no name": with_extension(client_hello(None, verify_mode=ssl.CERT_NONE), 0, server_name_extension()),
    "another kind of name": with_extension(
        client_hello(None, verify_mode=ssl.CERT_NONE), 0, server_name_extension((1, b"index.example"))
    ),
    "NUL in the name": with_extension(
        client_hello(None, verify_mode=ssl.CERT_NONE), 0, server_name_extension((0, b"index.example\0.evil.example"))
    ),
    "something behind the name": with_extension(
        client_hello(None, verify_mode=ssl.CERT_NONE), 0, server_name_extension((0, b"index.example")) + b"x"
    ),
    "no hello": b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "SSL 2": b"\x80\x2e\x01\x03\x01",
    "an empty record": b"\x16\x03\x01\x00\x00",
    "a record that is too long": b"\x16\x03\x01\xff\xff\x01",
    "a message without end": b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
    "more to come in its record": b"\x16\x03\x01\x08\x00" + client_hello("index.example")[5:],
    "too many pieces": b"\x16\x03\x01\x00\x04\x01\x00\x20\x00" + b"\x16\x03\x01\x00\x01\x00" * tls_hello.MAX_RECORDS,
    "an alert in between": fragmented(client_hello("index.example"), 40)[:45] + b"\x15\x03\x01\x00\x02\x01\x00",
}


@pytest.mark.parametrize("case", HELLOS)
def test_unusual_hello_is_refused(case: str) -> None:
    with pytest.raises(tls_hello.HelloError):
        tls_hello.server_name(HELLOS[case])


def messages(parse: Callable[[Any], object], cases: Iterable[Any]) -> str:
    """Return the messages with which a parser refuses the cases, each once."""
    found: dict[str, None] = {}
    for case in cases:
        with pytest.raises(ValueError, match=r".") as raised:
            parse(case)
        found[str(raised.value)] = None
    return "\n".join(found)


def test_wording_of_refused_hellos() -> None:
    check("violations", "proxy: TLS hellos", messages(tls_hello.server_name, HELLOS.values()))


@given(st.binary(max_size=200), st.integers(0, 300))
def test_no_bytes_crash_the_hello_parser(data: bytes, at: int) -> None:
    whole = client_hello("index.example")
    for text in (data, whole[:at] + data, whole[:at] + data + whole[at + len(data) :]):
        try:
            found = tls_hello.server_name(text)
        except tls_hello.HelloError:
            continue
        assert found is None or isinstance(found, str)


# HTTP.


def head(*lines: str) -> http_request.RequestHead:
    return http_request.parse("\r\n".join([*lines, "", ""]).encode("latin-1"))


def test_request_head_is_rewritten_for_the_server() -> None:
    asked = head(
        "GET http://index.example/a?b HTTP/1.1",
        *("Host: index.example", "Proxy-Connection: keep-alive", "Proxy-Authorization: Basic eA==", "X-Key: forged"),
        *("Connection: X-Hop", "X-Hop: 1", "Upgrade: h2c", "Accept: */*"),
    )
    assert http_request.destination(asked) == ("index.example", 80, "/a?b")
    http_request.check_host(asked, "index.example", 80)
    assert http_request.rewrite_head(asked, "/a?b", "index.example", [("X-Key", "own")]) == (
        b"GET /a?b HTTP/1.1\r\nHost: index.example\r\nAccept: */*\r\nX-Key: own\r\nConnection: close\r\n\r\n"
    )


PLACES = {
    "http://index.example": ("index.example", 80, "/"),
    "http://INDEX.example:8080/x": ("index.example", 8080, "/x"),
    "HTTP://index.example./": ("index.example", 80, "/"),
    "http://[::1]:81/": ("::1", 81, "/"),
    "http://index.example:443/": ("index.example", 443, "/"),
}


@pytest.mark.parametrize("target", PLACES)
def test_destination_of_an_absolute_url(target: str) -> None:
    assert http_request.destination(head(f"GET {target} HTTP/1.1")) == PLACES[target]


@pytest.mark.parametrize(
    "target",
    [
        *("/", "*", "index.example:443", "https://index.example/", "ftp://index.example/", "http:/index.example/"),
        *("http://user@index.example/", "http://index.example@evil.example/", "http://index.example%00/"),
        *("http://index.example\\@evil.example/", "http://index.example?@evil.example/", "http://index.example#/"),
        *("http://2130706433/", "http://0x7f.1/", "http://index.example:0/", "http://index.example:/", "http://"),
    ],
)
def test_ambiguous_url_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        http_request.destination(head(f"GET {target} HTTP/1.1"))


HEADS = {
    "bare line feed": b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    "bare line feed in a header": b"GET / HTTP/1.1\r\nA: b\nHost: x\r\n\r\n",
    "bare carriage return": b"GET / HTTP/1.1\r\nA: b\rHost: x\r\n\r\n",
    "folded line": b"GET / HTTP/1.1\r\nA: b\r\n Host: x\r\n\r\n",
    "blank before the colon": b"GET / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    "empty name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nA: b\0\r\n\r\n",
    "two blanks": b"GET  / HTTP/1.1\r\n\r\n",
    "tab": b"GET\t/ HTTP/1.1\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "another version": b"GET / HTTP/2.0\r\n\r\n",
    "version 0.9": b"GET / HTTP/0.9\r\n\r\n",
    "blank in the target": b"GET /a b HTTP/1.1\r\n\r\n",
    "not ASCII in the target": b"GET /\xff HTTP/1.1\r\n\r\n",
    "not a method": b"G(T / HTTP/1.1\r\n\r\n",
    "empty line in front": b"\r\nGET / HTTP/1.1\r\n\r\n",
    "a name that some servers fold": b"GET / HTTP/1.1\r\nTransfer_Encoding: chunked\r\n\r\n",
    "too many": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 201 + b"\r\n",
}


@pytest.mark.parametrize("case", HEADS)
def test_ambiguous_head_is_refused(case: str) -> None:
    with pytest.raises(http_request.RequestError):
        http_request.parse(HEADS[case])


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: evil.example",),
        ("Host: index.example", "Host: index.example"),
        ("Host: index.example, evil.example",),
        ("Host: index.example:81",),
        ("Host: ",),
        ("Host: index.example:80@evil.example",),
        (),
    ],
)
def test_host_header_must_name_the_destination(lines: tuple[str, ...]) -> None:
    with pytest.raises(http_request.RequestError):
        http_request.check_host(head("GET / HTTP/1.1", *lines), "index.example", 80)


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 1", "Transfer-Encoding: chunked"),
        ("Content-Length: 1", "Content-Length: 1"),
        ("Content-Length: 1, 1",),
        ("Content-Length: +1",),
        ("Content-Length: 0x1",),
        ("Content-Length: 1_0",),
        ("Content-Length: ",),
        ("Content-Length: -1",),
        ("Content-Length: 99999999999999999999",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: identity",),
        ("Transfer-Encoding: chunked, identity",),
    ],
)
def test_ambiguous_request_length_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(http_request.RequestError):
        http_request.framing(head("POST / HTTP/1.1", *lines))


def test_connection_header_cannot_remove_the_length() -> None:
    with pytest.raises(http_request.RequestError):
        http_request.rewrite_head(
            head("POST / HTTP/1.1", "Connection: content-length", "Content-Length: 3"), "/", "x", ()
        )


CHUNKED = b"5\r\nhello\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n"


@given(st.lists(st.integers(1, len(CHUNKED)), max_size=6), st.binary(max_size=20))
def test_chunked_body_ends_at_its_last_chunk(cuts: list[int], behind: bytes) -> None:
    body = http_request.ChunkedBody()
    data, passed, at = CHUNKED + behind, b"", 0
    for cut in [*sorted(cuts), len(data)]:
        passed += body.feed(data[at:cut])
        at = max(at, cut)
    assert (passed, body.is_whole) == (CHUNKED, True)
    assert body.feed(b"GET / HTTP/1.1\r\n\r\n") == b""


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"5;x=y\r\nhello\r\n",
            b"5\nhello\r\n",
            b"0x5\r\n",
            b"-1\r\n",
            b"+5\r\n",
            b" 5\r\n",
            b"\r\n",
            b"5\r\nhelloX\r\n",
        ),
        *(b"5\r\nhelloXX0\r\n", b"0\r\nTrailer: x\r\n\r\n", b"fffffffffffffffff\r\n", b"5" * 300),
    ],
)
def test_ambiguous_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(http_request.RequestError):
        http_request.ChunkedBody().feed(data)


@given(st.integers(0, 50), st.lists(st.binary(max_size=20), max_size=8))
def test_fixed_length_body_has_its_stated_length(count: int, parts: list[bytes]) -> None:
    body = http_request.FixedLengthBody(count)
    passed = b"".join(body.feed(part) for part in parts)
    assert passed == b"".join(parts)[:count]
    assert body.is_whole == (len(b"".join(parts)) >= count)


def test_wording_of_refused_requests() -> None:
    def parse_all(lines: tuple[str, ...]) -> None:
        asked = head(*lines)
        http_request.check_host(asked, "index.example", 80)
        http_request.framing(asked)
        http_request.rewrite_head(asked, "/", "index.example", [("X-Key", "own")])

    host = "Host: index.example"
    requests = [
        ("POST / HTTP/1.1",),
        ("POST / HTTP/1.1", "Host: evil.example"),
        ("POST / HTTP/1.1", host, "Content-Length: 1", "Content-Length: 1"),
        ("POST / HTTP/1.1", host, "Content-Length: x"),
        ("POST / HTTP/1.1", host, "Transfer-Encoding: gzip"),
        ("POST / HTTP/1.1", host, "Connection: content-length"),
        ("TRACE / HTTP/1.1", host),
    ]
    bodies = [b"5;x=y\r\n", b"5\r\nhelloX\r\n", b"0\r\nTrailer: x\r\n\r\n", b"5" * 300]
    targets = [head(f"GET {target} HTTP/1.1") for target in ("/", "http://index.example#/")]
    found = [
        messages(http_request.parse, HEADS.values()),
        messages(http_request.destination, targets),
        messages(parse_all, requests),
        messages(lambda data: http_request.ChunkedBody().feed(data), bodies),
    ]
    check("violations", "proxy: HTTP requests", "\n".join(found))


REQUESTS = {
    "a request": b"GET / HTTP/1.1\r\n",
    "a method of its own": b"REPORT / HTTP/1.1\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n",
    "an empty line in front": b"\r\nGET / HTTP/1.1\r\n",
    "blanks in front": b" \t\nGET / HTTP/1.1\r\n",
    "tabs between": b"GET\t/\tHTTP/1.1\n",
    "small letters": b"get / http/1.1\r\n",
    "bytes that are no text": b"GET /\xff\0 HTTP/1.1\r\n",
    "a line without an end": b"GET /" + b"x" * http_request.MAX_HEAD,
    "no version": b"GET /\r\n",
    "no version and a whole address": b"GET http://evil.example/\n",
}
OTHERS = {
    "a greeting": b"EHLO x\r\n",
    "ssh": b"SSH-2.0-x\r\n",
    "a number first": b"\0\0\0\x08",
    "a word and a NUL": b"AMQP\0\0\x09\x01",
    "git": b"003egit-upload-pack /x\0host=y\0",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "redis by hand": b"GET key\r\n",
    "memcached": b"get /key\r\n",
    "nats": b"CONNECT {}\r\n",
    "a word too long for a method": b"DIST00000001ARGC00000008ARGV00000003gcc",
}


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS)
def test_http_request_is_recognized_in_any_form(data: bytes) -> None:
    assert http_request.looks_like_request(data) is True
    assert [http_request.looks_like_request(data[:end]) for end in range(1, 4)] == [None] * 3


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_other_protocols_are_not_taken_for_http(data: bytes) -> None:
    assert http_request.looks_like_request(data) is False


FOLLOWING = {
    **{name: data for name, data in REQUESTS.items() if name != "a line without an end"},
    "a method that begins with a sign": b"_ / HTTP/1.1\r\n",
    "a method that begins with a digit": b"1GET / HTTP/1.1\r\n",
    "a long method": b"A" * 33 + b" / HTTP/1.1\r\n",
    "bytes that are no text in the method": b"\0G\xff / HTTP/1.1\r\n",
    "a target without a slash": b"GET x HTTP/1.1\r\n",
    "something after the version": b"GET / HTTP/1.1 x\n",
    "carriage returns alone": b"x\rGET / HTTP/1.1\r",
    "a tab and no version": b"GET\t/\n",
    "another method and no version": b"POST /x\r\n",
    "an unknown method, no version, and a host": b"REPORT /x\r\nAccept: x\r\nhOST : y\r\n",
    "a very long line": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\n",
}
NOT_FOLLOWING = {
    **OTHERS,
    "mail": b"DATA\r\nReceived: from x by y with HTTP; today\r\nSee http://x/ for HTTP/1.1, and so on.\r\n",
    "ftp": b"CWD /pub\r\nRETR /pub/x\r\nHELP\r\nHost: x\r\n",
    "an access log": b'INSERT 127.0.0.1 - "GET / HTTP/1.1" 200\n',
    "prose": Path(argparse.__file__).read_bytes(),
    "yaml": b"SET x\nhost: y\n",
    "bytes": bytes(range(256)) * 300,
}


def _scan(data: bytes, size: int) -> None:
    scanner = http_request.RequestScanner()
    for at in range(0, len(data), size):
        scanner.feed(data[at : at + size])


@pytest.mark.parametrize(
    "begin", [b"", b"x\r\n", b"\x16\x03\x01\n", b"\0" * 1000 + b"\n"], ids=["", "line", "tls", "bytes"]
)
@pytest.mark.parametrize("data", FOLLOWING.values(), ids=FOLLOWING)
def test_request_after_other_bytes_is_refused(begin: bytes, data: bytes) -> None:
    for size in (1, 7, 65536):
        with pytest.raises(http_request.RequestError):
            _scan(begin + data, size)


@pytest.mark.parametrize("data", NOT_FOLLOWING.values(), ids=NOT_FOLLOWING)
def test_other_protocols_pass_the_scanner(data: bytes) -> None:
    for size in (1, 65536):
        _scan(data, size)


@pytest.mark.parametrize(
    "name",
    ["Transfer_Encoding", "Content_Length", "content.length", "Transfer~Encoding", "PROXY_CONNECTION", "Keep_Alive"],
)
def test_header_that_servers_may_fold_into_another_is_refused(name: str) -> None:
    with pytest.raises(http_request.RequestError):
        head("GET / HTTP/1.1", f"{name}: x")


def test_other_header_with_an_underscore_is_kept() -> None:
    assert head("GET / HTTP/1.1", "X_Trace_Id: x").headers == (("X_Trace_Id", "x"),)


@pytest.mark.parametrize("name", ["X_Api_Key", "x-api_key", "X.Api.Key", "X-Api-Key"])
def test_header_that_servers_may_fold_into_an_injected_one_is_dropped(name: str) -> None:
    asked = head("GET / HTTP/1.1", "Host: a.example", f"{name}: forged", "X_Other: kept")
    made = http_request.rewrite_head(asked, "/", "a.example", [("X-Api-Key", "own")])
    assert b"forged" not in made
    assert b"X_Other: kept\r\nX-Api-Key: own\r\n" in made


@pytest.mark.parametrize("method", ["TRACE", "TRACK", "trace"])
def test_echoing_method_is_refused_with_injected_credentials(method: str) -> None:
    head = http_request.parse(f"{method} / HTTP/1.1\r\nHost: a.example\r\n\r\n".encode())
    with pytest.raises(http_request.RequestError):
        http_request.rewrite_head(head, "/", "a.example", [("X-Key", "secret")])
    assert http_request.rewrite_head(head, "/", "a.example", []).startswith(method.encode())


# SOCKS.


def reader(data: bytes) -> "Feed":
    return Feed(data)


class Feed:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __call__(self, count: int) -> bytes:
        if count > len(self.data):
            raise EOFError
        taken, self.data = self.data[:count], self.data[count:]
        return taken


def test_socks_request_names_host_and_port() -> None:
    assert socks.request(reader(b"\x05\x01\x00\x03\x0dindex.example\x01\xbb")) == ("index.example", 443)
    assert socks.request(reader(b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50")) == ("127.0.0.1", 80)
    assert socks.request(reader(b"\x05\x01\x00\x04" + b"\0" * 15 + b"\x01\x00\x50")) == ("::1", 80)
    # The name is not cut at the NUL byte, where a C program would end it.
    name = b"index.example\0.evil.example"
    assert socks.request(reader(b"\x05\x01\x00\x03" + bytes((len(name),)) + name + b"\x01\xbb")) == (name.decode(), 443)


@pytest.mark.parametrize(
    "data",
    [
        b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50",  # bind
        b"\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50",  # UDP
        b"\x05\x01\x01\x01\x7f\x00\x00\x01\x00\x50",
        b"\x05\x01\x00\x02\x7f\x00\x00\x01\x00\x50",
        b"\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
    ],
)
def test_other_socks_commands_are_refused(data: bytes) -> None:
    with pytest.raises(socks.SocksError):
        socks.request(reader(data))


def test_wording_of_refused_socks_requests() -> None:
    data = [b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", b"\x05\x01\x00\x02", b"\x04\x01\x00\x01"]
    found = [
        messages(lambda data: socks.request(reader(data)), data),
        messages(lambda data: socks.greeting(reader(data)), [b"\x05\x01\x02"]),
    ]
    check("violations", "proxy: SOCKS requests", "\n".join(found))


def test_socks_login_is_refused() -> None:
    socks.greeting(reader(b"\x05\x02\x02\x00"))
    with pytest.raises(socks.SocksError):
        socks.greeting(reader(b"\x05\x01\x02"))


BEGINNINGS = [
    b"GET http://index.example/ HTTP/1.1\r\nHost: index.example\r\n\r\n",
    b"CONNECT index.example:443 HTTP/1.1\r\nHost: index.example:443\r\n\r\n",
    b"\x05\x01\x00\x05\x01\x00\x03\x0dindex.example\x01\xbb",
    b"POST http://index.example/ HTTP/1.1\r\nHost: index.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"",
]

# Addresses.

NOT_PUBLIC = [
    *("0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255", "168.63.129.16"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.168.1.1", "198.18.0.1"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1"),
    *(
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "5f00::1",
    ),
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_special_purpose_address_is_recognized(address: str) -> None:
    assert addresses.special_purpose(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:2800:220:1::1", "2a00:1450:4001::1"]
)
def test_public_address_has_no_special_purpose(address: str) -> None:
    assert addresses.special_purpose(address) == ""


@given(st.ip_addresses())
def test_no_address_is_public_that_python_calls_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
    ):
        # One block of protocol assignments has public parts. The proxy refuses the whole block.
        assert addresses.special_purpose(str(address))


# All parsers together.


@settings(max_examples=200)
@given(st.sampled_from(BEGINNINGS), st.lists(st.tuples(st.integers(0, 120), st.binary(max_size=6)), max_size=5))
def test_no_bytes_crash_a_connection_or_are_let_through(begun: bytes, changes: list[tuple[int, bytes]]) -> None:
    data = begun
    for at, more in changes:
        data = data[:at] + more + data[at:]
    descriptor = connection_log.create_log_file()
    plan = {"granted": (), "hosts": (), "bytes": None, "connections": None, "certificates": "", "inject": ()}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        ClientConnection(ours, ProxyContext(plan, ConnectionLog(descriptor))).serve()
        theirs.settimeout(20)
        said = read_all(theirs)
    outcomes = {entry.outcome for entry in ConnectionLog(descriptor).take()}
    os.close(descriptor)
    assert outcomes <= {"refused"}
    assert b" 200 " not in said

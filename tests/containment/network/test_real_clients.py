"""Real programs reach granted names and local ports without proxy variables: databases, SSH, TLS, gRPC, WebSockets, node, Java, git, pip, npm and cargo."""

import base64
import hashlib
import http.server
import json
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from observe import eventually, free_port
from ssh_server import SSHD, make_server

from corral import Containment, Sandbox, SandboxResult

pytestmark = pytest.mark.real
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/nonexistent"))
SYSTEM_PYTHON = "/usr/bin/python3"  # which has Debian's packages
# Without the variables by which programs find the proxy.
BARE = ["env", "-i", f"PATH={os.environ['PATH']}", "HOME=/tmp", "LANG=C.UTF-8"]


def needs(*programs: str | Path) -> None:
    for program in programs:
        if shutil.which(str(program)) is None:
            pytest.skip(f"{program} is not installed")


@contextmanager
def running(words: list[str], port: int, **more: Any) -> Iterator[None]:
    """Run a server until it is not needed, and wait until it listens."""
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more
    )
    try:
        eventually(lambda: answers(port))
        yield
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


Open = Callable[..., Sandbox]


def by_name(open_sandbox: Open, port: int) -> Sandbox:
    """A sandbox in which own.example is this machine, at one port."""
    granted = Containment(network=[f"own.example:{port}"], hosts=["own.example=127.0.0.1"])
    return open_sandbox(containment=granted, timeout_seconds=120)


def by_port(open_sandbox: Open, port: int) -> Sandbox:
    return open_sandbox(containment=Containment(local=[port]), timeout_seconds=120)


def bare(box: Sandbox, *words: str) -> SandboxResult:
    return box.run([*BARE, *words])


def test_postgresql(open_sandbox: Open, tmp_path: Path) -> None:
    needs(POSTGRES / "postgres", POSTGRES / "initdb", "psql")
    port, data = free_port(), tmp_path / "data"
    # PostgreSQL does not run as root.
    who: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    if who:
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(folder.stat().st_mode | 0o005)
        shutil.chown(tmp_path, "postgres")
    made = [str(POSTGRES / "initdb"), "-A", "trust", "-U", "owner", "-D", str(data)]
    subprocess.run(made, check=True, capture_output=True, cwd="/", **who)
    serve = [str(POSTGRES / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(tmp_path)]
    with running(serve, port, cwd="/", **who):
        query = ["-U", "owner", "-p", str(port), "-Atc", "select 6 * 7", "postgres"]
        result = bare(by_name(open_sandbox, port), "psql", "-h", "own.example", *query)
        assert result.stdout == b"42\n", result.stderr_text
        # psql asks for TLS first, and the server has none.
        assert {(c.target, c.outcome) for c in result.connections} == {(f"own.example:{port}", "allowed")}
        local = by_port(open_sandbox, port)
        for host in ("localhost", "127.0.0.1"):
            assert bare(local, "psql", "-h", host, *query).stdout == b"42\n"
        refused = bare(open_sandbox(), "psql", "-h", "localhost", *query)
        assert [v.grant for v in refused.violations] == [f"containment.local = [{port}]"], refused.stderr_text
        stranger = bare(open_sandbox(), "psql", "-h", "db.example", *query)
        assert [v.target for v in stranger.violations] == ["db.example"]


def test_redis(open_sandbox: Open, tmp_path: Path) -> None:
    needs("redis-server", "redis-cli")
    port = free_port()
    with running(["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)], port):
        talk = ["-p", str(port), "set", "word", "arrived"]
        assert bare(by_name(open_sandbox, port), "redis-cli", "-h", "own.example", *talk).stdout == b"OK\n"
        local = by_port(open_sandbox, port)
        assert bare(local, "redis-cli", "-p", str(port), "get", "word").stdout == b"arrived\n"
        refused = bare(open_sandbox(), "redis-cli", "-p", str(port), "get", "word")
        assert [v.grant for v in refused.violations] == [f"containment.local = [{port}]"], refused.stderr_text


def test_ssh_server(open_sandbox: Open, tmp_path: Path) -> None:
    needs("ssh", "ssh-keyscan")
    if SSHD is None:
        pytest.skip("sshd is not installed")
    port = free_port()
    with running(make_server(tmp_path / "ssh", port), port):
        box = by_name(open_sandbox, port)
        keys = bare(box, "ssh-keyscan", "-p", str(port), "own.example")
        assert (tmp_path / "ssh" / "host.pub").read_text().split()[1] in keys.stdout_text, keys.stderr_text
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        login = bare(box, "ssh", *options, "-p", str(port), "own.example", "true")
        # The server is reached, and there is no key inside.
        assert "Permission denied (publickey)" in login.stderr_text


GRPC = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
same = lambda data: data
if sys.argv[1] == "serve":
    call = grpc.unary_unary_rpc_method_handler(lambda request, _: b"got " + request, same, same)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("own.Echo", {"Say": call}),))
    server.add_insecure_port("127.0.0.1:" + sys.argv[2])
    server.start()
    server.wait_for_termination()
channel = grpc.insecure_channel(sys.argv[2])
say = channel.unary_unary("/own.Echo/Say", same, same)
print(say(b"x" * 100_000, timeout=60)[:8].decode())
"""


def test_grpc_in_the_clear(open_sandbox: Open, project: Path) -> None:
    if subprocess.run([SYSTEM_PYTHON, "-c", "import grpc"], capture_output=True, check=False).returncode:
        pytest.skip("python3-grpcio is not installed")
    port = free_port()
    (project / "echo.py").write_text(GRPC)
    with running([SYSTEM_PYTHON, str(project / "echo.py"), "serve", str(port)], port):
        box = by_name(open_sandbox, port)
        ask = [SYSTEM_PYTHON, "echo.py", "ask", f"own.example:{port}"]
        for result in (bare(box, *ask), box.run(ask)):  # by its address, and through the proxy
            assert result.stdout == b"got xxxx\n", result.stderr_text


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_GET(self) -> None:
        if self.headers.get("Upgrade") == "websocket":
            self._websocket()
            return
        path = self.folder / self.path.lstrip("/").partition("?")[0]
        found = path.read_bytes() if path.is_file() else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html" if path.suffix == ".html" else "application/octet-stream")
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def _websocket(self) -> None:
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        head = self.rfile.read(6)
        mask, size = head[2:], head[1] & 127
        text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
        self.wfile.write(b"\x81" + bytes([size + 4]) + b"got " + text)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web(folder: Path, certificate: Path | None = None) -> Iterator[int]:
    """Serve the files of a folder, over TLS if there is a certificate."""
    handler = type("Own", (Handler,), {"folder": folder})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for own.example, with its key."""
    needs("openssl")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=own.example -addext subjectAltName=DNS:own.example"
    subprocess.run([*words.split(), "-keyout", "key", "-out", "own.pem"], cwd=tmp_path, check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text((tmp_path / "key").read_text() + (tmp_path / "own.pem").read_text())
    return both


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "word").write_text("arrived")
    return folder


def test_tls_server(open_sandbox: Open, project: Path, served: Path, certificate: Path) -> None:
    shutil.copy(certificate.with_name("own.pem"), project)
    with web(served, certificate) as port:
        box, place = by_name(open_sandbox, port), f"https://own.example:{port}/word"
        for words in (
            ["curl", "-sS", "--cacert", "own.pem", place],
            ["env", "SSL_CERT_FILE=own.pem", "python3", "-c", f"import urllib.request as r; print(r.urlopen({place!r}).read().decode())"],
            ["openssl", "s_client", "-CAfile", "own.pem", "-verify_return_error", "-brief", "-connect", f"own.example:{port}"],
        ):  # fmt: skip
            result = bare(box, *words)
            assert "arrived" in result.stdout_text or "Verification: OK" in result.stderr_text, result.stderr_text
        spoof = [
            "curl",
            "-sS",
            "-k",
            "--connect-to",
            f"evil.example:{port}:own.example:{port}",
            f"https://evil.example:{port}/word",
        ]
        assert "arrived" not in bare(box, *spoof).stdout_text


def test_node_fetch(open_sandbox: Open, project: Path, served: Path, certificate: Path) -> None:
    needs("node")
    shutil.copy(certificate.with_name("own.pem"), project)
    for scheme, key in (("http", None), ("https", certificate)):
        with web(served, key) as port:
            code = f"fetch('{scheme}://own.example:{port}/word').then(r => r.text()).then(console.log)"
            result = bare(by_name(open_sandbox, port), "env", "NODE_EXTRA_CA_CERTS=own.pem", "node", "-e", code)
            assert result.stdout == b"arrived\n", result.stderr_text
    stranger = bare(
        open_sandbox(), "node", "-e", "fetch('https://evil.example/').catch(e => console.log(e.cause.code))"
    )
    assert (stranger.stdout, [v.target for v in stranger.violations]) == (b"ENOTFOUND\n", ["evil.example"])


WEBSOCKET = """
import base64, os, socket, sys
host, port = sys.argv[1], int(sys.argv[2])
sock = socket.create_connection((host, port), 60)
key = base64.b64encode(os.urandom(16)).decode()
sock.sendall(f"GET /socket HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Key: {key}\\r\\nSec-WebSocket-Version: 13\\r\\n\\r\\n".encode())
head = b""
while b"\\r\\n\\r\\n" not in head:
    head += sock.recv(1)
sock.sendall(b"\\x81\\x85\\0\\0\\0\\0hello")
print(head.split()[1].decode(), sock.makefile("rb").read(11)[2:].decode())
"""


def test_websocket_in_the_clear(open_sandbox: Open, served: Path) -> None:
    with web(served) as port:
        result = bare(by_name(open_sandbox, port), "python3", "-c", WEBSOCKET, "own.example", str(port))
    assert result.stdout == b"101 got hello\n", result.stderr_text


def test_java(open_sandbox: Open, served: Path, certificate: Path) -> None:
    needs("java", "keytool")
    with web(served, certificate) as port:
        result = bare(by_name(open_sandbox, port), "keytool", "-printcert", "-sslserver", f"own.example:{port}")
    assert "Owner: CN=own.example" in result.stdout_text, result.stderr_text
    stranger = bare(open_sandbox(timeout_seconds=120), "keytool", "-printcert", "-sslserver", "evil.example:443")
    assert stranger.exit_code != 0
    assert [v.target for v in stranger.violations] == ["evil.example"]


def test_git_over_https(open_sandbox: Open, project: Path, served: Path, certificate: Path) -> None:
    shutil.copy(certificate.with_name("own.pem"), project)
    script = """
        git init -q work && cd work && echo arrived >file && git add file
        git -c user.email=x@example.org -c user.name=x commit -qm one
        cd .. && git clone -q --bare work repo.git && cd repo.git && git update-server-info
        """
    subprocess.run(["sh", "-ec", textwrap.dedent(script)], cwd=served, check=True, capture_output=True)
    with web(served, certificate) as port:
        clone = ["git", "-c", "http.sslCAInfo=own.pem", "clone", "-q", f"https://own.example:{port}/repo.git", "/tmp/c"]
        box = by_name(open_sandbox, port)
        result = bare(box, *clone)
        assert result.ok, result.stderr_text
        assert box.run(["cat", "/tmp/c/file"]).stdout == b"arrived\n"


def test_pip(open_sandbox: Open, served: Path, certificate: Path, project: Path) -> None:
    from test_proxy_process import make_wheel

    shutil.copy(certificate.with_name("own.pem"), project)
    folder = served / "simple" / "parcel"
    folder.mkdir(parents=True)
    make_wheel(folder)
    wheel = next(folder.iterdir()).name
    pip = [SYSTEM_PYTHON if os.path.exists("/usr/bin/pip3") else "python3", "-m", "pip"]
    with web(served, certificate) as port:
        index = served / "simple" / "parcel" / "index.html"
        index.write_text(f'<a href="https://own.example:{port}/simple/parcel/{wheel}">{wheel}</a>')
        links = ["--find-links", f"https://own.example:{port}/simple/parcel/index.html", "--no-index"]
        install = [
            *pip,
            "--disable-pip-version-check",
            "install",
            "--no-cache-dir",
            "--target",
            "/tmp/t",
            "--cert",
            "own.pem",
        ]
        result = bare(by_name(open_sandbox, port), *install, *links, "parcel")
        assert result.ok, result.stdout_text + result.stderr_text
        stranger = bare(
            open_sandbox(timeout_seconds=120),
            *install,
            "--retries",
            "0",
            "-i",
            "https://index.example/simple",
            "parcel",
        )
        assert [v.target for v in stranger.violations if not v.inferred] == ["index.example"]


def test_npm(open_sandbox: Open, served: Path, project: Path) -> None:
    needs("npm")
    package = served / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name":"parcel-js","version":"1.0.0","main":"index.js"}')
    (package / "index.js").write_text("module.exports = 'arrived'\n")
    subprocess.run(["tar", "czf", "parcel-js.tgz", "package"], cwd=served, check=True)
    with web(served) as port:
        url = f"http://own.example:{port}"
        version = {"name": "parcel-js", "version": "1.0.0", "dist": {"tarball": f"{url}/parcel-js.tgz"}}
        listing = {"name": "parcel-js", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        (served / "parcel-js").write_text(json.dumps(listing))
        (project / "package.json").write_text('{"name":"x","version":"1.0.0"}')
        install = ["npm", "install", "--no-audit", "--no-fund", "--registry", url, "parcel-js"]
        result = bare(by_name(open_sandbox, port), *install)
        assert result.ok, result.stderr_text
        assert (project / "node_modules" / "parcel-js" / "index.js").exists()


def test_cargo(open_sandbox: Open, served: Path, project: Path) -> None:
    needs("cargo")
    # The program itself: rustup's starts only with the user's settings.
    own = Path(pwd.getpwuid(os.getuid()).pw_dir, ".rustup", "toolchains")
    found = [str(path.parents[1]) for path in sorted(own.glob("*/bin/cargo"))][:1]
    tools = f"{found[0]}/bin" if found else "/usr/bin"
    crate = served / "leaf-1.0.0"
    (crate / "src").mkdir(parents=True)
    (crate / "Cargo.toml").write_text('[package]\nname="leaf"\nversion="1.0.0"\nedition="2018"\n')
    (crate / "src" / "lib.rs").write_text("pub fn word() {}\n")
    subprocess.run(["tar", "czf", "leaf.crate", "leaf-1.0.0"], cwd=served, check=True)
    digest = hashlib.sha256((served / "leaf.crate").read_bytes()).hexdigest()
    row = {"name": "leaf", "vers": "1.0.0", "deps": [], "cksum": digest, "features": {}, "yanked": False}
    (served / "le" / "af").mkdir(parents=True)
    (served / "le" / "af" / "leaf").write_text(json.dumps(row) + "\n")
    (project / "src").mkdir()
    (project / "src" / "lib.rs").touch()
    (project / "Cargo.toml").write_text(
        '[package]\nname="x"\nversion="0.1.0"\nedition="2018"\n[dependencies]\nleaf="1"\n'
    )
    with web(served) as port:
        url = f"http://own.example:{port}"
        (served / "config.json").write_text(json.dumps({"dl": f"{url}/{{crate}}.crate"}))
        replaced = ['source.crates-io.replace-with="own"', f'source.own.registry="sparse+{url}/"']
        options = [word for each in replaced for word in ("--config", each)]
        words = [f"PATH={tools}:/usr/bin:/bin", "CARGO_HOME=/tmp/cargo", "cargo", "fetch", *options]
        granted = Containment(network=[f"own.example:{port}"], hosts=["own.example=127.0.0.1"], read=tuple(found))
        result = bare(open_sandbox(containment=granted, timeout_seconds=120), "env", *words)
        assert result.ok, result.stderr_text

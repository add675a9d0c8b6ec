"""With the network off, a proxy refuses every destination at once, and the result names the grant."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import has_bubblewrap, must_hold
from observe import children, descriptors, eventually, exist

import corral
from corral import Containment, Sandbox

ASK = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", 61080))
sock.settimeout(60)
sock.sendall(bytes.fromhex(sys.argv[1]))
said = b""
while data := sock.recv(4096):
    said += data
print(said[:60].hex())
"""
NAME = b"files.example"
SOCKS_GREETING, SOCKS_NAME = b"\x05\x01\x00", b"\x05\x01\x00\x03"
REQUESTS = {
    "HTTP": (b"GET http://files.example/x HTTP/1.1\r\nHost: files.example\r\n\r\n", 80, b"HTTP/1.1 403 "),
    "CONNECT": (b"CONNECT files.example:443 HTTP/1.1\r\n\r\n", 443, b"HTTP/1.1 403 "),
    "CONNECT, another port": (b"CONNECT files.example:5432 HTTP/1.1\r\n\r\n", 5432, b"HTTP/1.1 403 "),
    "SOCKS": (
        SOCKS_GREETING + SOCKS_NAME + bytes([len(NAME)]) + NAME + (443).to_bytes(2, "big"),
        443,
        b"\x05\x00\x05\x02",
    ),
}


def ask(request: bytes) -> list[str]:
    return ["python3", "-c", ASK, request.hex()]


def told(box: Sandbox, *argv: str) -> list[tuple[str, str, bool]]:
    """Run a command, and return its network violations that the proxy reported."""
    result = box.run(argv)
    return [(v.target, v.grant, v.inferred) for v in result.violations if v.kind == "network" and not v.inferred]


def refusal(destination: str) -> list[tuple[str, str, bool]]:
    return [(destination, f'containment.network = ["{destination}"]', False)]


@pytest.fixture(params=["warden", "bubblewrap"])
def off(request: pytest.FixtureRequest, open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox without a network, by either backend."""
    if request.param == "bubblewrap" and not has_bubblewrap():
        must_hold()
    return open_sandbox(containment=Containment(backend=request.param))


@pytest.mark.parametrize("kind", REQUESTS)
def test_request_is_refused_and_names_the_grant(kind: str, off: Sandbox) -> None:
    request, port, answer = REQUESTS[kind]
    result = off.run(ask(request))
    assert bytes.fromhex(result.stdout_text.strip()).startswith(answer), result.stderr_text
    assert [(c.target, c.outcome, c.count) for c in result.connections] == [(f"files.example:{port}", "refused", 1)]
    assert [(v.target, v.grant, v.inferred) for v in result.violations] == refusal(f"files.example:{port}")
    assert result.network == "off"


def test_programs_find_the_proxy(off: Sandbox) -> None:
    assert told(off, "curl", "-sS", "https://a.example/") == refusal("a.example:443")
    assert told(off, "git", "ls-remote", "https://b.example/r.git") == refusal("b.example:443")
    code = "import urllib.request as r; r.urlopen('http://c.example/')"
    assert told(off, "python3", "-c", code) == refusal("c.example:80")


def test_pip_is_refused_without_a_second_attempt(open_sandbox: Callable[..., Sandbox]) -> None:
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        pip = ["python3", "-m", "pip"]
    install = ["--disable-pip-version-check", "install", "--target", "/tmp/t", "-i", "https://index.example/simple"]
    result = open_sandbox().run([*pip, *install, "parcel"])
    assert result.exit_code != 0
    assert [(c.target, c.outcome, c.count) for c in result.connections] == [("index.example:443", "refused", 1)]
    assert "Retrying" not in result.stderr_text


TOOLS = {
    "npm": "npm ci --registry https://index.example/",
    "cargo": """cargo fetch --config 'source.crates-io.replace-with="m"' --config 'source.m.registry="sparse+https://index.example/"'""",
    "go": "GOFLAGS=-mod=mod GOPROXY=https://index.example GONOSUMDB=* go get forge.example/leaf@v1.0.0",
}


@pytest.mark.real
@pytest.mark.parametrize("tool", TOOLS)
def test_package_manager_is_refused_and_names_the_grant(
    tool: str, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    # cargo of rustup starts only with the user's own settings.
    works = shutil.which(tool) and not subprocess.run([tool, "help"], capture_output=True, check=False).returncode
    if tool == "npm" and not works:
        must_hold()
    if not works:
        return
    (project / "package.json").write_text('{"name":"x","version":"1.0.0","dependencies":{"leaf":"1.0.0"}}')
    locked = '"resolved":"https://index.example/leaf/-/leaf-1.0.0.tgz","integrity":"sha512-AAAA"'
    (project / "package-lock.json").write_text(
        '{"name":"x","version":"1.0.0","lockfileVersion":3,"packages":{"":{"name":"x","version":"1.0.0",'
        f'"dependencies":{{"leaf":"1.0.0"}}}},"node_modules/leaf":{{"version":"1.0.0",{locked}}}}}}}'
    )
    (project / "Cargo.toml").write_text(
        '[package]\nname="x"\nversion="0.1.0"\nedition="2021"\n[dependencies]\nleaf="1"\n'
    )
    (project / "src").mkdir()
    (project / "src" / "lib.rs").touch()
    (project / "go.mod").write_text("module x.example/x\n\ngo 1.19\n")
    result = open_sandbox().run(["sh", "-c", TOOLS[tool]])
    assert result.exit_code != 0
    assert {(c.target, c.outcome) for c in result.connections} == {("index.example:443", "refused")}, result.stderr_text
    assert [v.grant for v in result.violations if not v.inferred] == ['containment.network = ["index.example:443"]']


SERVES = """
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"own server")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for host in ("127.0.0.1", "localhost", "0.0.0.0"):
    print(urllib.request.urlopen(f"http://{host}:{server.server_port}/").read().decode())
"""


def test_servers_on_the_sandboxes_loopback_are_reached(off: Sandbox) -> None:
    result = off.run(["python3", "-c", SERVES])
    assert (result.stdout_text.split("\n")[:3], result.connections) == (["own server"] * 3, ()), result.stderr_text


def test_name_resolution_fails_and_is_explained(off: Sandbox) -> None:
    assert told(off, "curl", "-sS", "--noproxy", "*", "http://a.example/") == [
        ("a.example", 'containment.network = ["a.example:PORT"]', False)
    ]


def below(pid: int) -> set[int]:
    return set(children(pid)).union(*(below(child) for child in children(pid)))


def sockets_and_logs() -> list[str]:
    return sorted(name for name in descriptors().values() if name.startswith(("socket:", "/memfd:")))


def test_proxy_starts_with_the_first_client_and_ends_with_the_sandbox(open_sandbox: Callable[..., Sandbox]) -> None:
    before, files = below(os.getpid()), sockets_and_logs()
    box = open_sandbox()
    box.run(["true"])
    eventually(lambda: len(below(os.getpid()) - before) == 2)  # the keeper and a warden
    for _ in range(3):
        box.run(["curl", "-sS", "https://a.example/"])
    eventually(lambda: len(below(os.getpid()) - before) == 3)
    made = below(os.getpid()) - before
    box.close()
    assert not exist(*made)
    assert sockets_and_logs() == files


def test_refusing_proxy_has_no_network_and_no_capabilities(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    before = below(os.getpid())
    box.run(["true"])
    quiet = below(os.getpid())
    inside = box.run(["readlink", "/proc/self/ns/net"]).stdout_text.strip()
    box.run(["curl", "-sS", "https://a.example/"])
    eventually(lambda: len(below(os.getpid()) - quiet - before) == 1)  # the command before may still be ending
    (proxy,) = below(os.getpid()) - quiet - before
    state = dict(line.split(":\t") for line in Path(f"/proc/{proxy}/status").read_text().splitlines() if ":\t" in line)
    assert (state["CapEff"], state["CapPrm"], state["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
    if os.geteuid() == 0:
        assert inside == os.readlink(f"/proc/{proxy}/ns/net") != os.readlink("/proc/self/ns/net")


def test_killed_proxy_refuses_clients_all_the_same(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    box.run(["true"])
    quiet = below(os.getpid())
    box.run(["curl", "-sS", "https://a.example/"])
    eventually(lambda: len(below(os.getpid()) - quiet) == 1)
    (proxy,) = below(os.getpid()) - quiet
    os.kill(proxy, 9)
    eventually(lambda: Path(f"/proc/{proxy}/stat").read_text().rpartition(")")[2].split()[0] in "ZX")
    assert box.run(["curl", "-sS", "-m", "20", "https://a.example/"]).exit_code == 7
    assert box.run(["true"]).ok


def test_many_clients_arrive_before_the_proxy(off: Sandbox) -> None:
    many = """
        import socket
        socks = [socket.create_connection(("127.0.0.1", 61080)) for _ in range(200)]
        for sock in socks:
            sock.settimeout(60)
            sock.sendall(b"CONNECT files.example:443 HTTP/1.1\\r\\n\\r\\n")
        print(sum(b" 403 " in sock.makefile("rb").readline() for sock in socks))
        """
    result = off.run(["python3", "-c", textwrap.dedent(many)])
    assert result.stdout_text == "200\n", result.stderr_text
    assert [(c.target, c.count) for c in result.connections] == [("files.example:443", 200)]


def test_transaction_is_refused_too(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    with box.transaction() as transaction:
        result = transaction.run(["curl", "-sS", "https://a.example/"])
        transaction.discard()
    assert [(v.target, v.grant, v.inferred) for v in result.violations] == refusal("a.example:443")


def test_fork_of_the_host_is_refused_by_its_own_proxy(open_sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    box = open_sandbox()
    assert told(box, "curl", "-sS", "https://a.example/") == refusal("a.example:443")
    child = os.fork()
    if child == 0:
        try:
            said = told(box, "curl", "-sS", "https://b.example/")
            box.close()
            (tmp_path / "said").write_text(repr(said))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "said").read_text() == repr(refusal("b.example:443"))
    assert told(box, "curl", "-sS", "https://c.example/") == refusal("c.example:443")


def test_sandbox_with_the_whole_network_has_no_proxy(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(containment=Containment(network="on"))
    assert "proxy" not in box.run(["env"]).stdout_text.lower()
    loose = open_sandbox(containment=Containment(backend="none"))
    assert "proxy" not in loose.run(["env"]).stdout_text.lower()


@pytest.mark.real
def test_every_namespace_of_bubblewrap_is_refused(tmp_path: Path, project: Path) -> None:
    if not has_bubblewrap():
        must_hold()
    # A copy of corral that makes no namespaces itself, like on a machine where AppArmor allows only bubblewrap to.
    copied = tmp_path / "lib" / "corral"
    shutil.copytree(Path(corral.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    own = 'self.is_nested = {"user", "mount", "net"} <= {*available}'
    file = copied / "containment" / "processes" / "bubblewrap.py"
    assert own in file.read_text()
    file.write_text(file.read_text().replace(own, "self.is_nested = False"))
    (project / "ask.py").write_text(ASK)
    program = """
        import sys
        from corral import Containment, Sandbox, SandboxConfig
        with Sandbox(SandboxConfig(sys.argv[1], containment=Containment(backend="bubblewrap"))) as box:
            ask = ["python3", "ask.py", sys.argv[2]]
            started = [box.start(ask), box.start(ask)]
            results = [one.wait() for one in started] + [box.run(ask)]
        print([bytes.fromhex(r.stdout_text)[9:12].decode() for r in results])
        print({(c.target, c.outcome) for r in results for c in r.connections})
        """
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "lib"), *sys.path])}
    words = [sys.executable, "-c", textwrap.dedent(program), str(project), REQUESTS["CONNECT"][0].hex()]
    done = subprocess.run(words, env=environ, cwd=project, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['403', '403', '403']", "{('files.example:443', 'refused')}"]

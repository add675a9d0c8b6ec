"""Common programs reach granted destinations through the proxy, and the proxy ends with its sandbox."""

import os
import resource
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attempt import has_bubblewrap, must_hold
from fleet import GRANTED, Fleet
from observe import children, descriptors, eventually, exist, free_port

import corral
from corral import Containment, Limits, Sandbox
from corral.containment.network.proxy.upstream import RefusedError, UpstreamConnector
from golden import check


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    folder.chmod(0o755)
    made = Fleet(folder)
    (folder / "project").mkdir(exist_ok=True)
    shutil.copy(folder / "ca.pem", folder / "project")
    yield made
    made.close()


def code(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


WAYS = {
    "curl, plain": ["curl", "-sS", "http://index.example/x"],
    "curl over TLS, checked": ["curl", "-sS", "--cacert", "ca.pem", "https://index.example/x"],
    "curl by SOCKS": ["curl", "-sS", "-x", "socks5h://127.0.0.1:61080", "http://index.example/x"],
    "curl over TLS by SOCKS": ["curl", "-sS", "-k", "-x", "socks5h://127.0.0.1:61080", "https://index.example/x"],
    "curl, plain, in a tunnel": ["curl", "-sS", "-p", "http://index.example/x"],
    "curl below a wildcard": ["curl", "-sS", "http://files.example.org/x"],
    "curl to IPv6": ["curl", "-sS", "-k", "https://six.example.org/x"],
    "curl in capitals": ["curl", "-sS", "-k", "https://INDEX.Example/x"],
    "wget": ["wget", "-qO-", "http://index.example/x"],
    "python": code("import urllib.request as r; print(r.urlopen('http://index.example/x').read().decode())"),
    "python over TLS": code(
        "import ssl, urllib.request as r; c = ssl.create_default_context(cafile='ca.pem')\n"
        "print(r.urlopen('https://index.example/x', context=c).read().decode())"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_granted_destination_is_reached(way: str, fleet: Fleet) -> None:
    result = fleet.run(*WAYS[way])
    assert (result["stdout"].strip(), result["exit_code"], result["violations"]) == ("good /x", 0, []), result
    assert [(c["outcome"], c["count"]) for c in result["connections"]] == [("allowed", 1)]


def test_request_bodies_arrive_complete(fleet: Fleet) -> None:
    text = "x" * 100_000
    plain = fleet.run("curl", "-sS", "-d", text, "http://index.example/")
    chunked = fleet.run("curl", "-sS", "-H", "Transfer-Encoding: chunked", "-d", text, "http://index.example/")
    waits = fleet.run("curl", "-sS", "-H", "Expect: 100-continue", "-d", text, "http://index.example/")
    assert [r["stdout"] for r in (plain, chunked, waits)] == ["took 100000"] * 3


def test_custom_protocol_is_relayed_both_ways(fleet: Fleet) -> None:
    result = fleet.run(
        *code("""
        import socket
        sock = socket.create_connection(("127.0.0.1", 61080))
        sock.sendall(b"CONNECT index.example:5432 HTTP/1.1\\r\\n\\r\\n")
        answer = sock.makefile("rb")
        print(answer.readline().split()[1], answer.readline())
        sock.sendall(b"#" + b"y" * 99999)
        sock.shutdown(socket.SHUT_WR)
        print(len(answer.read()))
        """)
    )
    assert result["stdout"].split() == ["b'200'", "b'\\r\\n'", "100000"], result


def test_server_may_speak_first(fleet: Fleet) -> None:
    result = fleet.run(
        *code("""
        import socket
        sock = socket.create_connection(("127.0.0.1", 61080))
        sock.sendall(b"CONNECT index.example:22 HTTP/1.1\\r\\n\\r\\n")
        answer = sock.makefile("rb")
        print(answer.readline(), answer.readline(), answer.readline())
        """),
        containment={"network": ["index.example:22"]},
    )
    assert "SSH-2.0-good" in result["stdout"], result


def test_refusal_names_the_grant_that_would_allow_it(fleet: Fleet) -> None:
    result = fleet.run("curl", "-sS", "https://evil.example/")
    (violation,) = [v for v in result["violations"] if not v["inferred"]]
    assert (violation["kind"], violation["target"]) == ("network", "evil.example:443")
    assert violation["grant"] == 'containment.network = ["evil.example:443"]'
    granted = fleet.run("curl", "-sSk", "https://evil.example/", containment={"network": ["evil.example:443"]})
    assert granted["stdout"] == "VICTIM"


def test_status_line_of_a_refusal_names_corral(fleet: Fleet) -> None:
    result = fleet.run(*code("import urllib.request as r; r.urlopen('https://evil.example/')"))
    assert "403 Refused by corral" in result["stderr"], result


def test_unreachable_destination_is_no_violation(fleet: Fleet) -> None:
    result = fleet.run("curl", "-sS", "http://nowhere.example.org/")
    told = [(c["outcome"], c["target"]) for c in result["connections"]]
    assert told == [("failed", "nowhere.example.org:80")], result
    assert result["violations"] == []


def test_address_without_the_proxy_names_its_grant(fleet: Fleet) -> None:
    (violation,) = fleet.run("curl", "-sS", "--noproxy", "*", "http://93.184.216.66/")["violations"]
    assert violation["inferred"]
    assert violation["grant"] == 'containment.network = ["93.184.216.66:80"]'


def test_name_is_refused_once_it_resolves_to_private_address(fleet: Fleet) -> None:
    turning = ["curl", "-sS", "http://turning.example.org/x"]
    assert fleet.run(*turning)["stdout"] == "good /x"
    try:
        for address in ("127.0.0.1", "10.9.9.9", "169.254.169.254", "::1"):
            fleet.ask(hosts={"turning.example.org": address})
            result = fleet.run(*turning)
            assert "VICTIM" not in result["stdout"]
            assert [c["outcome"] for c in result["connections"]] == ["refused"]
    finally:
        fleet.ask(hosts={})
    assert fleet.run(*turning)["stdout"] == "good /x"


def test_name_is_resolved_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answers = iter([["127.0.0.1"], ["10.0.0.1"]])
        dial = UpstreamConnector((f"index.example:{port}", f"127.0.0.1:{port}"), (), lambda *_: next(answers))
        sock, address = dial.connect("index.example", port)
        sock.close()
        assert (address, next(answers)) == ("127.0.0.1", ["10.0.0.1"])
        both = UpstreamConnector((f"index.example:{port}",), (), lambda *_: ["10.0.0.1", "127.0.0.1"])
        with pytest.raises(RefusedError) as raised:
            both.connect("index.example", port)
        assert raised.value.grant == f"10.0.0.1:{port}"
        check("violations", "proxy: private address", raised.value.detail)


def test_private_address_may_be_granted(fleet: Fleet) -> None:
    by_name = {"network": ["corp.example:80"], "hosts": ["corp.example=10.9.9.9"]}
    assert fleet.run("curl", "-sS", "http://corp.example/", containment=by_name)["stdout"] == "VICTIM"
    by_address = {"network": ["private.example.org:80", "10.9.9.9:80"]}
    for url in ("http://private.example.org/", "http://10.9.9.9/"):
        assert fleet.run("curl", "-sS", url, containment=by_address)["stdout"] == "VICTIM"
    other = fleet.run("curl", "-sS", "http://meta.example.org/", containment=by_name)
    assert "VICTIM" not in other["stdout"]


def test_injected_credential_is_never_seen_inside(fleet: Fleet) -> None:
    secret = "s3cret-of-the-user"
    fleet.ask(argv=["true"], environ={"OWN_KEY": secret, "SSL_CERT_FILE": str(fleet.folder / "ca.pem")})
    inject = [f"index.example:{port} X-Key: ${{OWN_KEY}}" for port in (80, 443)]
    settings = {"network": GRANTED, "inject": inject}
    for url in ("http://index.example/x", "http://index.example:443/x"):
        result = fleet.run("curl", "-sS", "-H", "X-Key: forged", url, containment=settings)
        assert result["stdout"] == f"good /x X-Key={secret}", result
    other = fleet.run("curl", "-sS", "http://files.example.org/x", containment=settings)
    assert other["stdout"] == "good /x"
    echo = ("curl", "-sS", "-X", "TRACE", "http://index.example/x")
    assert "Host: index.example" in fleet.run(*echo)["stdout"]  # the server echoes the whole request
    assert secret not in fleet.run(*echo, containment=settings)["stdout"]
    looked = fleet.run("sh", "-c", "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; true", containment=settings)
    assert secret not in looked["stdout"] + str(looked["connections"])


def test_proxy_verifies_the_servers_certificate(fleet: Fleet) -> None:
    fleet.ask(argv=["true"], environ={"OWN_KEY": "x", "SSL_CERT_FILE": ""})
    settings = {"network": GRANTED, "inject": ["index.example:443 X-Other: ${OWN_KEY}"]}
    result = fleet.run("curl", "-sS", "http://index.example:443/x", containment=settings)
    assert "good" not in result["stdout"]
    assert "unable to get local issuer certificate" in result["stdout"], result
    assert "failed" in {c["outcome"] for c in result["connections"]}


def test_connection_limit_is_enforced(fleet: Fleet) -> None:
    asks = """
        import socket
        open_ = []
        for _ in range(5):
            sock = socket.create_connection(("127.0.0.1", 61080))
            sock.settimeout(10)
            try:
                sock.sendall(b"CONNECT index.example:5432 HTTP/1.1\\r\\n\\r\\n")
                print(sock.makefile("rb").readline()[9:12].decode() or "closed")
            except OSError:
                print("closed")
            open_.append(sock)
        """
    result = fleet.run(*code(asks), limits={"connections": 3})
    assert result["stdout"].split() == ["200"] * 3 + ["closed"] * 2
    assert {v["grant"] for v in result["violations"]} == {"limits.connections"}


def test_byte_limit_is_enforced(fleet: Fleet) -> None:
    result = fleet.run(
        "curl", "-sS", "-o", "/dev/null", "http://index.example/big", limits={"network_bytes": 1_000_000}
    )
    assert result["exit_code"] != 0
    assert [v["grant"] for v in result["violations"]] == ["limits.network_bytes"]


def test_many_refused_names_do_not_hide_an_allowed_one(fleet: Fleet) -> None:
    many = """
        import socket
        for name in (*(f"{n}.evil.example" for n in range(300)), "index.example"):
            with socket.create_connection(("127.0.0.1", 61080)) as sock:
                sock.sendall(b"CONNECT %s:443 HTTP/1.1\\r\\n\\r\\n" % name.encode())
                assert sock.makefile("rb").readline()
        """
    result = fleet.run(*code(many))
    assert [c["target"] for c in result["connections"] if c["outcome"] == "allowed"] == ["index.example:443"]
    refused = [c for c in result["connections"] if c["outcome"] == "refused"]
    assert sum(c["count"] for c in refused) == 300
    assert (refused[-1]["target"], refused[-1]["count"]) == ("", 251)
    assert (result["violations"][-1]["target"], "290" in result["violations"][-1]["detail"]) == ("", True)


@pytest.fixture(params=["as it is", "a soft limit of 1024"])
def limited(request: pytest.FixtureRequest, fleet: Fleet, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose sandboxes start with the usual limit of a login session."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8192:
        pytest.skip("the hard limit of open files is below 8192, and a thousand connections need more")
    if request.param == "as it is":
        yield fleet
        return
    made = _fleet(tmp_path, "ulimit -Sn 1024")
    yield made
    made.close()


def _fleet(folder: Path, limits: str) -> Fleet:
    folder.chmod(0o755)
    (folder / "project").mkdir(exist_ok=True)
    return Fleet(folder, limits)


LIMITS = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"


def test_commands_keep_the_hosts_descriptor_limit(tmp_path: Path) -> None:
    made = _fleet(tmp_path, "ulimit -Sn 1000")
    try:
        assert made.run(*code(LIMITS))["stdout"].split()[0] == "1000"
    finally:
        made.close()


def test_low_hard_limit_refuses_clients_at_once(tmp_path: Path) -> None:
    many = """
        import socket
        socks = [socket.create_connection(("127.0.0.1", 61080)) for _ in range(100)]
        answered = []
        for sock in socks:
            sock.settimeout(60)
            try:
                sock.sendall(b"CONNECT index.example:5432 HTTP/1.1\\r\\n\\r\\n")
                answered.append(b" 200 " in sock.makefile("rb").readline())
            except ConnectionError:
                answered.append(False)
        print(sum(answered), len(answered))
        """
    made = _fleet(tmp_path, "ulimit -n 256")
    try:
        result = made.run(*code(many))
        assert result["stdout"].split() == ["31", "100"], result
        told = {violation["detail"] for violation in result["violations"]}
        assert {" 256 " in text and "ulimit -Hn" in text for text in told} == {True}
        # Connections that have ended make room for new ones.
        assert made.run(*code(many))["stdout"].split() == ["31", "100"]
    finally:
        made.close()


def test_proxy_serves_a_thousand_connections_at_once(limited: Fleet) -> None:
    many = """
        import resource, selectors, socket
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        socks = [socket.create_connection(("127.0.0.1", 61080)) for _ in range(1000)]
        for sock in socks:
            sock.settimeout(60)
            sock.sendall(b"CONNECT index.example:5432 HTTP/1.1\\r\\n\\r\\n")
        answers = [sock.makefile("rb") for sock in socks]
        for answer in answers:
            assert b" 200 " in answer.readline()
            assert answer.readline() == b"\\r\\n"
        for number, sock in enumerate(socks):
            sock.sendall(b"#%d\\n" % number)
        right = 0
        for number, answer in enumerate(answers):
            right += answer.readline() == b"#%d\\n" % number
        print(right)
        """
    result = limited.run(*code(many))
    assert (result["stdout"].strip(), result["violations"]) == ("1000", []), result["stderr"][-2000:]
    assert sum(c["count"] for c in result["connections"]) == 1000


def test_large_download_arrives_complete(fleet: Fleet) -> None:
    result = fleet.run("sh", "-c", "curl -sS http://index.example/big | wc -c")
    assert int(result["stdout"]) == 256 * 1024 * 1024, result


# Programs that install from an index.


def test_pip_installs_from_granted_index(fleet: Fleet) -> None:
    served = fleet.folder / "served" / "simple" / "parcel"
    served.mkdir(parents=True, exist_ok=True)
    make_wheel(served)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--no-cache-dir",
        "--target",
        "/tmp/t",
    ]
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pip[:3] = ["python3", "-m", "pip"]
    index = ["--index-url", "https://index.example/files/simple", "--cert", "ca.pem", "parcel"]
    result = fleet.run(*pip, *index)
    assert result["exit_code"] == 0, result["stdout"] + result["stderr"]
    used = fleet.run(*code("import sys; sys.path.insert(0, '/tmp/t'); import parcel; print(parcel.WORD)"))
    assert used["stdout"] == "arrived\n"
    refused = fleet.run(*pip, "--retries", "0", "--index-url", "https://evil.example/files/simple", "parcel")
    assert refused["exit_code"] != 0
    assert [v["target"] for v in refused["violations"] if not v["inferred"]] == ["evil.example:443"]


def make_wheel(folder: Path) -> None:
    import zipfile

    info = "parcel-1.0.dist-info"
    with zipfile.ZipFile(folder / "parcel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("parcel.py", "WORD = 'arrived'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"parcel.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.mark.real
def test_npm_installs_from_granted_registry(fleet: Fleet) -> None:
    if shutil.which("npm") is None:
        must_hold()
    import base64
    import hashlib
    import io
    import json
    import tarfile

    served = fleet.folder / "served" / "npm"
    (served / "tarballs").mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in (
            ("package.json", '{"name":"parcel-js","version":"1.0.0","main":"index.js"}'),
            ("index.js", "module.exports = 'arrived'\n"),
        ):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    (served / "tarballs" / "parcel-js.tgz").write_bytes(buffer.getvalue())
    digest = base64.b64encode(hashlib.sha512(buffer.getvalue()).digest()).decode()
    url = "https://index.example/files/npm/tarballs/parcel-js.tgz"
    version = {"name": "parcel-js", "version": "1.0.0", "main": "index.js"}
    version |= {"dist": {"tarball": url, "integrity": f"sha512-{digest}"}}  # type: ignore[dict-item]
    (served / "parcel-js").write_text(
        json.dumps({"name": "parcel-js", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
    )
    install = (
        "mkdir -p /tmp/js && cd /tmp/js && npm install --no-audit --no-fund --registry https://index.example/files/npm/"
    )
    result = fleet.run(
        "sh",
        "-c",
        f"CA=$PWD/ca.pem; {install} --cafile $CA parcel-js && node -p \"require('parcel-js')\"",
    )
    assert result["stdout"].strip().endswith("arrived"), result["stdout"] + result["stderr"]


def test_git_clones_over_http(fleet: Fleet) -> None:
    served = fleet.folder / "served"
    served.mkdir(exist_ok=True)
    script = (
        "git init -q work && cd work && git config user.email x@example.org && git config user.name x && echo arrived > file"
        " && git add file && git commit -qm one && cd .. && git clone -q --bare work repo.git && cd repo.git && git update-server-info"
    )
    if not (served / "repo.git").exists():
        subprocess.run(["sh", "-c", script], cwd=served, check=True, capture_output=True)
    clone = "rm -rf /tmp/c && git -c http.sslCAInfo=ca.pem clone -q {} /tmp/c && cat /tmp/c/file"
    result = fleet.run("sh", "-c", clone.format("https://index.example/files/repo.git"))
    assert result["stdout"] == "arrived\n", result
    refused = fleet.run("sh", "-c", clone.format("https://evil.example/files/repo.git"))
    assert refused["exit_code"] != 0
    assert "evil.example:443" in [v["target"] for v in refused["violations"]]


# The proxy's process.


@pytest.fixture
def named(open_sandbox: Callable[..., Sandbox]) -> Iterator[tuple[Sandbox, int]]:
    """A sandbox with a grant for a server of this test, and the server's port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        yield (
            open_sandbox(containment=Containment(network=[f"own.example:{port}"], hosts=["own.example=127.0.0.1"])),
            port,
        )


def below(pid: int) -> set[int]:
    return set(children(pid)).union(*(below(child) for child in children(pid)))


def proxy_of(made: set[int]) -> int:
    """Return the process that has no children, unlike the keeper, and no PID namespace of its own, unlike wardens."""
    (found,) = [
        pid for pid in made if f"NSpid:\t{pid}\n" in Path(f"/proc/{pid}/status").read_text() and not children(pid)
    ]
    return found


def test_only_named_destinations_start_a_proxy_at_once(held: Sandbox, named: tuple[Sandbox, int]) -> None:
    box, _ = named
    before = len(below(os.getpid()))
    held.run(["true"])
    box.run(["true"])
    # Another keeper and warden, and the proxy.
    assert len(below(os.getpid())) == before + 3


def test_proxy_ends_with_its_sandbox(named: tuple[Sandbox, int]) -> None:
    box, _ = named
    before = below(os.getpid())
    box.run(["true"])
    made = below(os.getpid()) - before
    assert len(made) == 3
    box.close()
    assert not made & below(os.getpid())
    assert not exist(*made)


def test_proxy_ends_when_the_host_is_killed(tmp_path: Path) -> None:
    program = """
        import os, sys
        from corral import Containment, Sandbox, SandboxConfig
        box = Sandbox(SandboxConfig(sys.argv[1], containment=Containment(network=["own.example:443"])))
        box.run(["true"])
        def below(pid):
            for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
                yield child
                yield from below(child)
        print(*below(os.getpid()), flush=True)
        sys.stdin.read()
        """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        made = host.stdout.readline().split()
        host.kill()
    assert len(made) == 3
    eventually(lambda: not exist(*map(int, made)))


def test_other_processes_cannot_reach_the_proxy(
    named: tuple[Sandbox, int], open_sandbox: Callable[..., Sandbox]
) -> None:
    box, port = named
    dials = ["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 61080), 20); print('reached')"]
    assert box.run(dials).stdout_text == "reached\n"
    # Another sandbox has a proxy of its own, with its own grants.
    asked = open_sandbox().run(["curl", "-sS", "-m", "20", f"http://own.example:{port}/"])
    assert [(c.target, c.outcome) for c in asked.connections] == [(f"own.example:{port}", "refused")]
    other = open_sandbox(containment=Containment(network="on"))
    assert other.run(dials).stdout_text == ""
    with pytest.raises(OSError):  # noqa: PT011  whichever way it is refused
        socket.create_connection(("127.0.0.1", 61080), 20)


def test_proxy_has_no_capabilities(named: tuple[Sandbox, int]) -> None:
    box, _ = named
    before = below(os.getpid())
    box.run(["true"])
    proxy = proxy_of(below(os.getpid()) - before)
    state = dict(line.split(":\t") for line in Path(f"/proc/{proxy}/status").read_text().splitlines() if ":\t" in line)
    assert (state["CapEff"], state["CapPrm"], state["CapBnd"].strip("0") if os.geteuid() == 0 else "") == (
        "0" * 16,
        "0" * 16,
        "",
    )
    assert state["NoNewPrivs"] == "1"


def test_fork_of_the_host_has_its_own_proxy(named: tuple[Sandbox, int], tmp_path: Path) -> None:
    box, port = named
    asks = ["curl", "-sS", "-m", "20", f"http://evil.example:{port}/"]
    assert [c.outcome for c in box.run(asks).connections] == ["refused"]
    child = os.fork()
    if child == 0:
        try:
            said = [c.outcome for c in box.run(asks).connections]
            box.close()
            (tmp_path / "said").write_text(repr(said))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "said").read_text() == "['refused']"
    assert [c.outcome for c in box.run(asks).connections] == ["refused"]


def test_result_lists_only_its_own_connections(named: tuple[Sandbox, int]) -> None:
    box, port = named
    for host in ("one.example", "two.example"):
        result = box.run(["curl", "-sS", "-m", "20", f"http://{host}:{port}/"])
        assert [c.target for c in result.connections] == [f"{host}:{port}"]
    assert box.run(["true"]).connections == ()


def test_killed_proxy_means_no_network(named: tuple[Sandbox, int]) -> None:
    box, port = named
    before = below(os.getpid())
    box.run(["true"])
    proxy = proxy_of(below(os.getpid()) - before)
    os.kill(proxy, 9)
    eventually(lambda: Path(f"/proc/{proxy}/stat").read_text().rpartition(")")[2].split()[0] in "ZX")
    result = box.run(["curl", "-sS", "-m", "20", f"http://own.example:{port}/"])
    assert result.exit_code != 0


def test_unset_variable_in_inject_is_an_error(
    open_sandbox: Callable[..., Sandbox],
) -> None:
    from corral import ContainmentError

    settings = {"network": ["own.example:443"], "inject": ["own.example:443 X-Key: ${NOT_SET_HERE}"]}
    with pytest.raises(ContainmentError, match="NOT_SET_HERE"):
        open_sandbox(containment=Containment(**settings)).run(["true"])  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_both_backends_reach_granted_destinations(backend: str, fleet: Fleet) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    settings = {"network": GRANTED, "backend": backend}
    result = fleet.run("curl", "-sS", "http://index.example/x", containment=settings)
    assert (result["backend"], result["stdout"]) == (backend, "good /x"), result
    refused = fleet.run("curl", "-sS", "http://evil.example/x", containment=settings)
    assert [c["outcome"] for c in refused["connections"]] == ["refused"]


@pytest.mark.real
def test_proxy_serves_every_namespace_of_bubblewrap(tmp_path: Path, project: Path) -> None:
    if not has_bubblewrap():
        must_hold()
    # A copy of corral that makes no namespaces itself, like on a machine where AppArmor allows only bubblewrap to.
    copied = tmp_path / "lib" / "corral"
    shutil.copytree(Path(corral.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    own = 'self.is_nested = {"user", "mount", "net"} <= {*available}'
    text = (copied / "containment" / "processes" / "bubblewrap.py").read_text()
    assert own in text
    (copied / "containment" / "processes" / "bubblewrap.py").write_text(text.replace(own, "self.is_nested = False"))
    program = r"""
        import socket, sys
        from corral import Containment, Sandbox, SandboxConfig
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        granted = Containment(backend="bubblewrap", network=[f"own.example:{port}"], hosts=["own.example=127.0.0.1"])
        asks = "import socket; s = socket.create_connection(('127.0.0.1', 61080)); "
        asks += f"s.sendall(b'CONNECT {sys.argv[2]}:{port} HTTP/1.1\\r\\n\\r\\n'); print(s.makefile('rb').readline()[9:12])"
        open("ask.py", "w").write(asks)
        with Sandbox(SandboxConfig(sys.argv[1], containment=granted)) as box:
            first, second = box.start(["python3", "ask.py"]), box.start(["python3", "ask.py"])
            results = [first.wait(), second.wait()]
        print([(r.stdout_text.strip() or r.stderr_text, r.backend, [c.outcome for c in r.connections]) for r in results])
        """
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "lib"), *sys.path])}
    for host, said, outcome in (("own.example", "b'200'", "allowed"), ("evil.example", "b'403'", "refused")):
        words = [sys.executable, "-c", textwrap.dedent(program), str(project), host]
        done = subprocess.run(words, env=environ, cwd=project, capture_output=True, text=True, check=True)
        told = eval(done.stdout)
        assert {(status, backend) for status, backend, _ in told} == {(said, "bubblewrap")}, done.stdout
        assert {one for _, _, outcomes in told for one in outcomes} == {outcome}


def test_destinations_are_normalized_in_the_config() -> None:
    made: Any = Containment(network=["B.example:443", "b.EXAMPLE:443"])
    assert made.network == ("b.example:443",)
    assert (Limits().connections, Limits().network_bytes) == (1024, None)


# Published ports: the host's loopback reaches a port of the sandbox's loopback.


def fetched(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.settimeout(5)
            sock.sendall(b"GET /word HTTP/1.0\r\n\r\n")
            return sock.makefile("rb").read()
    except OSError:
        return b""


def test_published_port_reaches_the_server_inside(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (project / "word").write_text("arrived")
    port, other = free_port(), free_port()
    box = open_sandbox(containment=Containment(publish=[port]), timeout_seconds=None)
    serve = ["python3", "-m", "http.server", "--bind", "127.0.0.1"]
    with box.start([*serve, str(port)]), box.start([*serve, str(other)]):
        eventually(lambda: fetched(port).endswith(b"arrived"))
        assert fetched(other) == b""
    # The port stays reserved while the sandbox runs, but no server answers.
    assert fetched(port) == b""
    box.close()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_port_in_use_cannot_be_published(open_sandbox: Callable[..., Sandbox]) -> None:
    from corral import ContainmentError

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ContainmentError, match=f"port {port} "):
            open_sandbox(containment=Containment(publish=[port])).run(["true"])


def test_proxy_port_cannot_be_published(open_sandbox: Callable[..., Sandbox]) -> None:
    from corral import ContainmentError

    with pytest.raises(ContainmentError, match="port 61080 "):
        open_sandbox(containment=Containment(network=["own.example:443"], publish=[61080])).run(["true"])


def test_port_publisher_ends_with_its_sandbox(open_sandbox: Callable[..., Sandbox]) -> None:
    before = below(os.getpid())
    box = open_sandbox(containment=Containment(publish=[free_port()]))
    box.run(["true"])
    made = below(os.getpid()) - before
    assert len(made) == 3
    assert "CapEff:\t0000000000000000" in Path(f"/proc/{proxy_of(made)}/status").read_text()
    box.close()
    assert not exist(*made)


@pytest.mark.parametrize("ports", [[0], [65536], ["80"], [True], "80", 80])
def test_invalid_published_port_is_an_error(ports: Any) -> None:
    from corral import PolicyError

    with pytest.raises(PolicyError, match=r"containment\.publish"):
        Containment(publish=ports)


def test_network_leaves_no_descriptor_open(open_sandbox: Callable[..., Sandbox]) -> None:
    open_sandbox().run(["true"])  # opens what stays open
    before = descriptors()
    for _ in range(3):
        box = open_sandbox(containment=Containment(network=["own.example:443"], publish=[free_port()]))
        box.run(["true"])
        box.close()
    assert sorted(descriptors().values()) == sorted(before.values())

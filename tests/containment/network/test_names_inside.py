"""Programs that know no proxy reach granted names, and no others: each name has an address on the sandbox's loopback."""

import json
import shutil
import socket
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attempt import has_bubblewrap, must_hold
from fleet import GRANTED, Fleet
from hypothesis import given
from hypothesis import strategies as st
from observe import eventually

from corral import Containment, Sandbox
from corral._lib.network import name_addresses
from corral._lib.network.name_addresses import NameAddresses, address_of_number
from corral.containment.network.proxy.connection_log import NAME_REFUSED
from corral.containment.network.proxy.responder import (
    AAAA,
    FORMAT_ERROR,
    NO_ADDRESS,
    NO_ERROR,
    NO_SUCH_NAME,
    NOT_IMPLEMENTED,
    POOL_USED_UP,
    PTR,
    A,
    QueryError,
    Responder,
    parse_query,
)
from corral.containment.network.proxy.upstream import RefusedError, UpstreamConnector

DIRECT = ("--noproxy", "*")


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
    return ["python3", "-c", textwrap.dedent(text)]


def outcomes(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(c["target"], c["outcome"]) for c in result["connections"]]


def refusals(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(v["target"], v["grant"]) for v in result["violations"] if not v["inferred"]]


WAYS = {
    "curl, plain": ["curl", "-sS", *DIRECT, "http://index.example/x"],
    "curl over TLS, checked": ["curl", "-sS", *DIRECT, "--cacert", "ca.pem", "https://index.example/x"],
    "curl in capitals, with a dot at the end": ["curl", "-sS", *DIRECT, "http://INDEX.Example./x"],
    "curl over TLS in capitals": ["curl", "-sS", "-k", *DIRECT, "https://INDEX.Example/x"],
    "curl below a wildcard": ["curl", "-sS", *DIRECT, "http://files.example.org/x"],
    "curl over TLS below a wildcard": ["curl", "-sS", "-k", *DIRECT, "https://files.example.org/x"],
    "wget": ["wget", "--no-proxy", "-qO-", "http://index.example/x"],
    "bash": ["bash", "-c", "exec 3<>/dev/tcp/index.example/80; printf 'GET /x HTTP/1.0\\r\\nHost: index.example\\r\\n\\r\\n' >&3; tail -n 1 <&3"],
    "python": code("""
        import http.client
        client = http.client.HTTPConnection("index.example")
        client.request("GET", "/x")
        print(client.getresponse().read().decode())
        """),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_granted_name_is_reached_without_a_proxy(way: str, fleet: Fleet) -> None:
    result = fleet.run(*WAYS[way])
    assert (result["stdout"].strip(), result["exit_code"], result["violations"]) == ("good /x", 0, []), result
    assert [outcome for _, outcome in outcomes(result)] == ["allowed"]


def test_other_protocol_is_relayed_both_ways(fleet: Fleet) -> None:
    result = fleet.run(
        *code("""
        import socket
        for host in ("index.example", "files.example.org"):
            sock = socket.create_connection((host, 5432))
            sock.sendall(b"#" + b"y" * 99999)
            sock.shutdown(socket.SHUT_WR)
            count = 0
            while data := sock.recv(65536):
                count += len(data)
            print(count)
        """)
    )
    assert result["stdout"].split() == ["100000", "100000"], result


def test_server_may_speak_first(fleet: Fleet) -> None:
    read = code("import socket; print(socket.create_connection(('index.example', 22)).makefile('rb').readline())")
    result = fleet.run(*read, containment={"network": ["index.example:22"]})
    assert "SSH-2.0-good" in result["stdout"], result


REFUSED_NAMES = {
    "another name": "evil.example",
    "the name above a wildcard": "example.org",
    "a granted name as the beginning": "index.example.evil.example",
    "a granted name as the end, without a dot": "xexample.org",
    "capitals": "EVIL.Example",
    "a dot at the end": "evil.example.",
    "the machine's public address as a name": "93-184-216-66.evil.example",
}


@pytest.mark.parametrize("kind", REFUSED_NAMES)
def test_other_name_is_refused_and_names_the_grant(kind: str, fleet: Fleet) -> None:
    name = REFUSED_NAMES[kind]
    result = fleet.run("curl", "-sS", "-m", "60", *DIRECT, f"http://{name}/")
    plain = name.lower().rstrip(".")
    assert result["exit_code"] == 6, result  # curl's number for a name that does not exist
    assert refusals(result) == [(plain, f'containment.network = ["{plain}:PORT"]')]
    assert fleet.bare("curl", "-sS", "-m", "20", *DIRECT, f"http://{'evil.example'}/")["stdout"] == "VICTIM"


def test_refused_name_gets_the_port_that_the_program_prints(fleet: Fleet) -> None:
    said = 'echo "ssh: connect to host evil.example port 2222: Network is unreachable" >&2'
    result = fleet.run("sh", "-c", f"getent ahosts evil.example || {said}")
    assert refusals(result) == [("evil.example:2222", 'containment.network = ["evil.example:2222"]')]


def test_other_port_of_a_granted_name_is_refused_at_once(fleet: Fleet) -> None:
    connect = "import socket; socket.create_connection(('index.example', 8080), 60)"
    assert "ConnectionRefusedError" in fleet.run(*code(connect))["stderr"]


def test_tls_server_name_must_be_the_name(fleet: Fleet) -> None:
    spoof = [
        "curl",
        "-sS",
        "-k",
        *DIRECT,
        "--connect-to",
        "evil.example:443:index.example:443",
        "https://evil.example/",
    ]
    result = fleet.run(*spoof)
    assert "VICTIM" not in result["stdout"]
    assert outcomes(result) == [("index.example:443", "allowed"), ("index.example:443", "refused")]


def test_host_header_must_be_the_name(fleet: Fleet) -> None:
    for port in (80, 5432):
        spoof = ["curl", "-sS", *DIRECT, "-H", "Host: evil.example", f"http://index.example:{port}/"]
        result = fleet.run(*spoof)
        assert "VICTIM" not in result["stdout"]
        assert (f"index.example:{port}", "refused") in outcomes(result)


def test_plain_text_on_a_tls_port_is_refused(fleet: Fleet) -> None:
    result = fleet.run("curl", "-sS", *DIRECT, "http://index.example:443/")
    assert (result["stdout"], outcomes(result)[-1]) == ("", ("index.example:443", "refused"))


def test_injected_header_reaches_the_server_over_tls(fleet: Fleet) -> None:
    fleet.ask(argv=["true"], environ={"OWN_KEY": "s3cret", "SSL_CERT_FILE": str(fleet.folder / "ca.pem")})
    settings = {"network": GRANTED, "inject": ["index.example:443 X-Key: ${OWN_KEY}"]}
    result = fleet.run("curl", "-sS", *DIRECT, "http://index.example:443/x", containment=settings)
    assert result["stdout"] == "good /x X-Key=s3cret"


def test_name_that_resolves_to_a_private_address_is_refused(fleet: Fleet) -> None:
    turning = ["curl", "-sS", *DIRECT, "http://turning.example.org/x"]
    assert fleet.run(*turning)["stdout"] == "good /x"
    try:
        for address in ("127.0.0.1", "10.9.9.9", "169.254.169.254", "::1", "93.184.216.1"):
            # After the responder has answered: the address is checked when the program connects.
            fleet.ask(hosts={"turning.example.org": address})
            result = fleet.run(*turning)
            assert "VICTIM" not in result["stdout"]
            assert [outcome for _, outcome in outcomes(result)] == ["refused"]
    finally:
        fleet.ask(hosts={})


def test_datagrams_reach_no_other_server(fleet: Fleet) -> None:
    send = """
        import socket
        for place in (("93.184.216.66", 53), ("127.0.0.53", 53), ("10.9.9.9", 53)):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                sock.connect(place)
                sock.send(b"x" * 20)
                sock.settimeout(60)
                print("answered", sock.recv(100))
            except OSError as error:
                print(error.errno)
        """
    assert [int(number) for number in fleet.run(*code(send))["stdout"].split()] == [101, 111, 101]


def test_command_cannot_take_the_address_of_a_name(fleet: Fleet) -> None:
    take = """
        import json, socket
        taken = []
        for number in range(1, 12):
            for port in (5432, 53, 443):
                for reuse in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
                    sock = socket.socket()
                    for option in reuse:
                        sock.setsockopt(socket.SOL_SOCKET, option, 1)
                    try:
                        sock.bind((f"127.64.0.{number}", port))
                        sock.listen()
                    except OSError:
                        continue
                    taken.append(sock)
        mine = {sock.getsockname() for sock in taken}
        for name in ("index.example", "files.example.org", "turning.example.org"):
            (address,) = {place[4][0] for place in socket.getaddrinfo(name, 5432, socket.AF_INET)}
            client = socket.create_connection((address, 5432), 60)
            client.sendall(b"#y")
            client.shutdown(socket.SHUT_WR)
            print(json.dumps([(address, 5432) in mine, client.makefile("rb").read().decode()]))
        """
    result = fleet.run(*code(take), containment={"network": [*GRANTED, "turning.example.org:5432"]})
    assert [json.loads(line) for line in result["stdout"].splitlines()] == [[False, "#y"]] * 3, result


def test_name_is_refused_where_commands_have_taken_its_addresses(fleet: Fleet) -> None:
    take = """
        import socket
        taken = []
        for number in range(2, 200):
            taken.append(socket.socket())
            taken[-1].bind((f"127.64.0.{number}", 5432))
        try:
            print(socket.getaddrinfo("files.example.org", 5432))
        except socket.gaierror:
            print("refused")
        """
    result = fleet.run(*code(take), containment={"network": ["index.example:5432", "*.example.org:5432"]})
    assert (result["stdout"], [v["detail"] for v in result["violations"]]) == ("refused\n", [NO_ADDRESS]), result


def test_wildcard_names_are_bounded(fleet: Fleet) -> None:
    most = name_addresses.MAX_WILDCARD_NAMES
    ask = f"""
        import socket
        found = 0
        for number in range({most + 5}):
            try:
                socket.getaddrinfo(f"data-{{number}}.example.org", 80, socket.AF_INET)
                found += 1
            except socket.gaierror:
                pass
        print(found)
        """
    result = fleet.run(*code(ask), containment={"network": ["*.example.org:80", "index.example:80"]})
    assert result["stdout"] == f"{most}\n", result
    assert POOL_USED_UP in {violation["detail"] for violation in result["violations"]}
    again = ["curl", "-sS", *DIRECT, "http://index.example/x"]
    assert fleet.run(*again, containment={"network": ["*.example.org:80", "index.example:80"]})["stdout"] == "good /x"


def test_lookups_outside_are_bounded() -> None:
    asked: list[str] = []

    def resolve(name: str, _: int) -> list[str]:
        asked.append(name)
        return ["10.0.0.1"]

    dial = UpstreamConnector(("*.example.org:443", "own.example:443"), (), resolve)
    for number in range(name_addresses.MAX_WILDCARD_NAMES + 3):
        for _ in range(2):
            with pytest.raises(RefusedError):
                dial.connect(f"data-{number}.example.org", 443)
    with pytest.raises(RefusedError, match=r"10\.0\.0\.1"):
        dial.connect("own.example", 443)
    assert len({*asked}) == name_addresses.MAX_WILDCARD_NAMES + 1


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_both_backends_serve_names(backend: str, port: int, open_sandbox: Callable[..., Sandbox]) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    granted = [f"own.example:{port}", f"*.own.example:{port}"]
    hosts = ["own.example=127.0.0.1", "a.own.example=127.0.0.1"]
    box = open_sandbox(containment=Containment(backend=backend, network=granted, hosts=hosts))
    for host in ("own.example", "a.own.example"):
        result = box.run(["curl", "-sS", *DIRECT, f"http://{host}:{port}/"])
        assert (result.stdout, result.violations) == (b"reached", ()), result.stderr_text
    files = box.run(["cat", "/etc/hosts", "/etc/resolv.conf"]).stdout_text
    assert f"{address_of_number(1)} own.example\n" in files
    assert "nameserver 127.0.0.1\n" in files
    assert box.run(["sh", "-c", "echo x >> /etc/hosts"]).exit_code != 0


def test_other_sandboxes_listeners_are_out_of_reach(port: int, open_sandbox: Callable[..., Sandbox]) -> None:
    granted = Containment(network=[f"own.example:{port}"], hosts=["own.example=127.0.0.1"])
    serving, other = open_sandbox(containment=granted, timeout_seconds=None), open_sandbox(containment=granted)
    serve = (
        "import socket, time; s = socket.create_server(('127.64.0.9', 7777)); print('up', flush=True); time.sleep(999)"
    )
    reach = ["python3", "-c", "import socket; socket.create_connection(('127.64.0.9', 7777), 60)"]
    with serving.start(["python3", "-c", serve]):
        eventually(lambda: serving.run(reach).ok)
        assert "ConnectionRefusedError" in other.run(reach).stderr_text


# The responder, as functions.


def query(name: bytes, kind: int = A, flags: int = 0x0100) -> bytes:
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b"."))
    head = b"\x12\x34" + flags.to_bytes(2, "big") + b"\0\1\0\0\0\0\0\0"
    return head + labels + b"\0" + kind.to_bytes(2, "big") + b"\0\1"


def answered(name: bytes, kind: int = A) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Return the code and the record of an answer, and what was logged."""
    names = NameAddresses(("index.example:443", "*.example.org:443", "192.0.2.1:443", "localhost:80"))
    told: list[tuple[str, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        allot = lambda asked: names.assign(asked, names.next_number())  # noqa: E731
        responder = Responder(sock, names, allot, lambda target, detail: told.append((target, detail)), "Machine")
        asked = query(name, kind)
        made = responder.answer(asked)
    assert made[:2] == asked[:2]
    assert made[12 : len(asked)] == asked[12:]
    return made[3] & 15, made[len(asked) + 12 :], told


ANSWERS: dict[str, tuple[bytes, int, tuple[int, bytes, list[tuple[str, str]]]]] = {
    "a granted name": (b"index.example", A, (NO_ERROR, b"\x7f\x40\0\1", [])),
    "capitals": (b"INDEX.exAmple", A, (NO_ERROR, b"\x7f\x40\0\1", [])),
    "its other kind of address": (b"index.example", AAAA, (NO_ERROR, b"", [])),
    "its mail servers": (b"index.example", 15, (NO_ERROR, b"", [])),
    "a name below a wildcard": (b"files.example.org", A, (NO_ERROR, b"\x7f\x40\0\2", [])),
    "the name above it": (b"example.org", A, (NO_SUCH_NAME, b"", [("example.org", NAME_REFUSED)])),
    "another name": (b"evil.example", A, (NO_SUCH_NAME, b"", [("evil.example", NAME_REFUSED)])),
    "text records of another name": (b"evil.example", 16, (NO_SUCH_NAME, b"", [])),
    "the machine itself": (b"machine", A, (NO_SUCH_NAME, b"", [])),
    "a name of loopback": (b"localhost", A, (NO_ERROR, b"\x7f\0\0\1", [])),
    "a name below it": (b"a.localhost", AAAA, (NO_ERROR, bytes(15) + b"\1", [])),
    "an address": (b"192.0.2.1", A, (NO_SUCH_NAME, b"", [("192.0.2.1", NAME_REFUSED)])),
    "another spelling of an address": (b"0x7f.1", A, (NO_SUCH_NAME, b"", [])),
    "the name of an address": (b"1.0.64.127.in-addr.arpa", PTR, (NO_ERROR, b"\5index\7example\0", [])),
    "the name of another address": (b"9.0.64.127.in-addr.arpa", PTR, (NO_SUCH_NAME, b"", [])),
    "the name of loopback": (b"1.0.0.127.in-addr.arpa", PTR, (NO_ERROR, b"\x09localhost\0", [])),
    "a byte that is no ASCII": (b"inde\xd7.example", A, (NO_SUCH_NAME, b"", [])),
    "the root": (b"", A, (NO_SUCH_NAME, b"", [])),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_responder_answers_for_granted_names_only(kind: str) -> None:
    name, number, expected = ANSWERS[kind]
    if not name:
        assert parse_query(query(b"")[:12] + b"\0\0\1\0\1").name == ""
        return
    assert answered(name, number) == expected


def test_dot_inside_a_label_names_no_host() -> None:
    assert parse_query(query(b"x")[:12] + b"\x0dindex.example\0\0\1\0\1").name == ""


MALFORMED = {
    "too short": (b"\x12\x34", FORMAT_ERROR),
    "an answer": (query(b"index.example", flags=0x8000), NOT_IMPLEMENTED),
    "another operation": (query(b"index.example", flags=0x2800), NOT_IMPLEMENTED),
    "two questions": (query(b"index.example")[:5] + b"\2" + query(b"index.example")[6:], FORMAT_ERROR),
    "a compressed name": (query(b"index.example")[:12] + b"\xc0\x0c\0\1\0\1", FORMAT_ERROR),
    "a name without an end": (query(b"index.example")[:-5], FORMAT_ERROR),
    "another class": (query(b"index.example")[:-1] + b"\3", NOT_IMPLEMENTED),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_query_is_an_error(kind: str) -> None:
    data, number = MALFORMED[kind]
    with pytest.raises(QueryError) as raised:
        parse_query(data)
    assert raised.value.code == number


@given(st.binary(max_size=600))
def test_no_query_breaks_the_responder(data: bytes) -> None:
    names = NameAddresses(("index.example:443",))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for sent in (data, query(b"index.example")[:12] + data):
            answer = Responder(sock, names, lambda _: "", lambda *_: None).answer(sent)
            assert not answer or (answer[:2] == sent[:2] and answer[2] & 0x80)


def test_hosts_file_has_granted_names_and_this_machines_own() -> None:
    names = NameAddresses(("db.example:5432", "db.example:80", "*.example:80", "192.0.2.1:80", "b.example:1"))
    original = "127.0.0.1 localhost\n10.0.0.5 db.example other # x\n10.0.0.6 vm vm.corp\n::1 ip6-localhost\n127.0.1.1 DB.example me\n"
    assert names.hosts_file(original, ("vm",)).splitlines() == [
        "127.64.0.1 db.example",
        "127.64.0.2 b.example",
        "127.0.0.1 localhost",
        "10.0.0.6 vm vm.corp",
        "::1 ip6-localhost",
        "127.0.1.1 me",
    ]
    assert names.listeners() == (
        ("127.64.0.1", 80),
        ("127.64.0.1", 5432),
        ("127.64.0.2", 1),
        ("127.64.0.2", 80),
        ("192.0.2.1", 80),
    )

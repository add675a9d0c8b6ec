"""Attacks on the addresses and answers by which programs that know no proxy reach granted names."""

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from fleet import GRANTED, Fleet

from corral._lib.network.name_addresses import NameAddresses
from corral.containment.network.proxy.responder import NO_ADDRESS

DIRECT = ("--noproxy", "*")
WILD = ["index.example:80", *(f"*.example.org:{port}" for port in (80, 5432, 8181, 8282, 9999))]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    folder.chmod(0o755)
    made = Fleet(folder)
    (folder / "project").mkdir(exist_ok=True)
    shutil.copy(folder / "ca.pem", folder / "project")
    yield made
    made.close()


def code(text: str, *words: str) -> list[str]:
    return ["python3", "-c", textwrap.dedent(text), *words]


def outcomes(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(c["target"], c["outcome"]) for c in result["connections"]}


# Binds an address in a way, connects to the address or to a name, and prints who answered.
TAKE = """
    import socket, sys, threading
    family, address, port, options, asked = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(), sys.argv[5]
    server = socket.socket(socket.AF_INET6 if family == "6" else socket.AF_INET)
    for option in options:
        server.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
    if family == "6":
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        server.bind((address, port))
        server.listen()
    except OSError as error:
        print("not bound", end=" ")
    def serve():
        while True:
            server.accept()[0].sendall(b"taken")
    threading.Thread(target=serve, daemon=True).start()
    try:
        client = socket.create_connection((asked, port), 60)
        client.sendall(b"#real")
        print(client.makefile("rb").read(5).decode())
    except OSError as error:
        print("refused")
    """
PLACES = {
    "its address": ("4", "{address}", ""),
    "its address, shared": ("4", "{address}", "SO_REUSEADDR SO_REUSEPORT"),
    "every address": ("4", "0.0.0.0", "SO_REUSEADDR SO_REUSEPORT"),
    "every address of both families": ("6", "::", "SO_REUSEADDR SO_REUSEPORT"),
    "its address in IPv6 form": ("6", "::ffff:{address}", "SO_REUSEADDR SO_REUSEPORT"),
}


@pytest.mark.parametrize("place", PLACES)
def test_command_never_answers_for_a_name(place: str, fleet: Fleet) -> None:
    family, address, options = PLACES[place]
    # 127.64.0.1 is the address of the granted name, and 127.64.0.2 is the first for a name below the wildcard.
    for name, number in (("index.example", 1), ("files.example.org", 2)):
        words = (family, address.format(address=f"127.64.0.{number}"), "5432", options)
        fleet.ask(close=True)
        said = fleet.run(*code(TAKE, *words, name))["stdout"]
        assert said in ("not bound #real\n", "#real\n", "refused\n"), said
    assert fleet.bare(*code(TAKE, *words, "127.64.0.2"))["stdout"] == "taken\n"


def test_taken_addresses_stop_neither_the_proxy_nor_later_names(fleet: Fleet) -> None:
    # Each query makes the keeper try several addresses, of which the last port is taken.
    take = """
        import socket
        taken = [socket.socket() for _ in range(900)]
        for number, sock in enumerate(taken, 2):
            sock.bind((f"127.64.{number >> 8}.{number & 255}", 9999))
        refused = 0
        for number in range(20):
            try:
                socket.getaddrinfo(f"n{number}.example.org", 80)
            except socket.gaierror:
                refused += 1
        print(refused)
        """
    settings = {"network": WILD}
    result = fleet.run(*code(take), containment=settings)
    assert int(result["stdout"]) > 5, result
    assert NO_ADDRESS in {violation["detail"] for violation in result["violations"]}
    for name in ("index.example", "files.example.org"):
        reached = fleet.run("curl", "-sS", "-m", "60", *DIRECT, f"http://{name}/x", containment=settings)
        assert reached["stdout"] == "good /x", reached


def test_numbers_of_addresses_come_again() -> None:
    names = NameAddresses(("index.example:80", "*.example.org:80"))
    first = names.next_number()
    names.assign("a.example.org", first)
    later = [names.next_number() for _ in range(70_000)]
    assert {1, first} & set(later) == set()
    assert len(set(later)) == 0xFFFE - 2


OTHER_NAMES = {
    "punycode": "xn--ndex-5pa.example",
    "another alphabet": "índex.example",
    "an underscore": "_index.example",
    "a long name": ".".join(["a" * 60] * 3) + ".index.example.evil.example",
    "a blank in it": "index.example .evil.example",
}


@pytest.mark.parametrize("kind", OTHER_NAMES)
def test_similar_name_is_refused(kind: str, fleet: Fleet) -> None:
    ask = "import socket, sys; print(socket.getaddrinfo(sys.argv[1].encode('idna') if sys.argv[1].isidentifier() else sys.argv[1], 80))"
    result = fleet.run(*code(ask, OTHER_NAMES[kind]))
    assert "gaierror" in result["stderr"] or "UnicodeError" in result["stderr"], result
    assert "127.64." not in result["stdout"]


QUERIES = """
    import socket
    def name(text):
        return b"".join(bytes([len(part)]) + part.encode() for part in text.split(".")) + b"\\0"
    def query(question, count=1, more=b"", extra=0):
        return b"\\x12\\x34\\x01\\0" + bytes([0, count]) + b"\\0\\0\\0\\0" + bytes([0, extra]) + question + more
    INDEX = name("index.example")
    OPT = b"\\0\\0\\x29\\x10\\0\\0\\0\\0\\0\\0\\0"
    SENT = {
        "a name": query(INDEX + b"\\0\\1\\0\\1"),
        "with EDNS": query(INDEX + b"\\0\\1\\0\\1", more=OPT, extra=1),
        "all records": query(INDEX + b"\\0\\xff\\0\\1"),
        "a zone transfer": query(INDEX + b"\\0\\xfc\\0\\1"),
        "a loop": query(b"\\xc0\\x0c\\0\\1\\0\\1"),
        "a pointer ahead": query(b"\\xc0\\xff\\0\\1\\0\\1"),
        "a label that is too long": query(b"\\x40" + b"a" * 64 + b"\\0\\0\\1\\0\\1"),
        "a name that is too long": query((b"\\x3f" + b"a" * 63) * 5 + b"\\0\\0\\1\\0\\1"),
        "two questions": query((INDEX + b"\\0\\1\\0\\1") * 2, count=2),
        "no question": query(b"", count=0),
        "64 kB": query(INDEX + b"\\0\\1\\0\\1", more=bytes(60_000)),
        "the name of a foreign address": query(name("8.8.8.8.in-addr.arpa") + b"\\0\\x0c\\0\\1"),
        "the last": query(INDEX + b"\\0\\1\\0\\1"),
    }
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", 53))
    for what, data in SENT.items():
        sock.send(data)
        answer = sock.recv(4096)
        print(f"{what}: {answer[3] & 15} {answer[7]} {answer[-4:].hex() if answer[7] else ''}".strip())
    try:
        socket.create_connection(("127.0.0.1", 53), 60)
    except ConnectionRefusedError:
        print("TCP: refused")
    """
ANSWERED = """
    a name: 0 1 7f400001
    with EDNS: 0 1 7f400001
    all records: 0 0
    a zone transfer: 0 0
    a loop: 1 0
    a pointer ahead: 1 0
    a label that is too long: 1 0
    a name that is too long: 1 0
    two questions: 1 0
    no question: 1 0
    64 kB: 0 1 7f400001
    the name of a foreign address: 3 0
    the last: 0 1 7f400001
    TCP: refused
    """


def test_unusual_queries_are_answered_at_once(fleet: Fleet) -> None:
    result = fleet.run(*code(QUERIES))
    assert result["stdout"].splitlines() == textwrap.dedent(ANSWERED).split("\n")[1:-1], result["stderr"]


def test_granted_address_is_reached_without_a_proxy(fleet: Fleet) -> None:
    granted = {"network": ["93.184.216.10:5432", "[2606:4700::10]:5432", "10.9.9.9:80", "224.0.0.1:80"]}
    talk = """
        import socket
        for host in ("93.184.216.10", "2606:4700::10"):
            client = socket.create_connection((host, 5432), 60)
            client.sendall(b"#real")
            print(client.makefile("rb").read(5).decode())
        """
    result = fleet.run(*code(talk), containment=granted)
    assert result["stdout"] == "#real\n#real\n", result
    assert outcomes(result) == {("93.184.216.10:5432", "allowed"), ("[2606:4700::10]:5432", "allowed")}
    for host, port in (("93.184.216.10", 80), ("93.184.216.66", 5432), ("10.9.9.9", 5432)):
        refused = fleet.run("curl", "-sS", "-m", "60", *DIRECT, f"http://{host}:{port}/", containment=granted)
        assert (refused["exit_code"], refused["connections"]) == (7, [])
        (violation,) = refused["violations"]
        assert violation["grant"] == f'containment.network = ["{host}:{port}"]'


def test_other_port_of_a_granted_name_is_a_violation_with_its_grant(fleet: Fleet) -> None:
    for host in ("index.example", "files.example.org"):
        result = fleet.run("curl", "-sS", "-m", "60", *DIRECT, f"http://{host}:8080/")
        assert [(v["target"], v["grant"]) for v in result["violations"]] == [
            (f"{host}:8080", f'containment.network = ["{host}:8080"]')
        ], result


def test_own_machine_has_ports_that_no_grant_opens(fleet: Fleet) -> None:
    own = "93.184.216.1:2375"
    for url, granted in (
        (f"http://{own}/", {"network": [own]}),
        ("http://own.example:2375/", {"network": ["own.example:2375"], "hosts": ["own.example=93.184.216.1"]}),
        ("http://own.example:2375/", {"network": ["own.example:2375"], "hosts": ["own.example=0.0.0.0"]}),
    ):
        result = fleet.run("curl", "-sS", url, containment=granted)
        assert "VICTIM" not in result["stdout"]
        assert [outcome for _, outcome in outcomes(result)] == ["refused"]
    assert fleet.bare("curl", "-sS", f"http://{own}/")["stdout"] == "VICTIM"


@pytest.mark.parametrize("family", ["AF_INET", "AF_UNSPEC"])
def test_names_exist_for_programs_that_look_at_the_interfaces(family: str, fleet: Fleet) -> None:
    ask = (
        "import socket, sys; print(socket.getaddrinfo(sys.argv[1], 80, socket.{}, 0, 0, socket.AI_ADDRCONFIG)[0][4][0])"
    )
    for name, address in (("localhost", "127.0.0.1"), ("index.example", "127.64.0.1")):
        result = fleet.run(*code(ask.format(family), name), containment={"network": GRANTED[:1]})
        assert result["stdout"] in (f"{address}\n", "::1\n" if name == "localhost" else ""), result

"""Audit records are parsed, assigned to the warden of their Landlock domain, and received if this kernel allows it."""

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observe import eventually

from corral import Sandbox, SandboxConfig
from corral.containment.filesystem import view
from corral.containment.violations import kernel_audit
from corral.containment.violations.detect import ended_by_filter, from_audit_records
from corral.containment.violations.kernel_audit import (
    LANDLOCK_ACCESS,
    LANDLOCK_DOMAIN,
    SECCOMP,
    AuditListener,
    Denial,
    parse,
)
from corral.model.result import SandboxResult
from golden import check

AT = "1763197404.268"


def record(kind: int, text: str, serial: int = 30, at: str = AT) -> bytes:
    """Return a message as the kernel sends it."""
    body = f"audit({at}:{serial}): {text}".encode() + b"\0"
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        pytest.param(
            'domain=195ba459b blockers=fs.refer path="/usr/bin" dev="vda2" ino=351',
            {"domain": "195ba459b", "blockers": "fs.refer", "path": "/usr/bin", "dev": "vda2", "ino": "351"},
            id="a path in quotes",
        ),
        pytest.param(
            'domain=195ba459b blockers=fs.make_reg,fs.refer path="/usr/local/a b" dev="vda2" ino=365',
            {"domain": "195ba459b", "blockers": "fs.make_reg,fs.refer", "path": "/usr/local/a b", "dev": "vda2", "ino": "365"},
            id="a path with a blank",
        ),
        pytest.param(
            "domain=1 blockers=fs.read_file path=2F6574632F6122620A dev=00 ino=1",
            {"domain": "1", "blockers": "fs.read_file", "path": '/etc/a"b\n', "dev": "00", "ino": "1"},
            id="a path in hexadecimal",
        ),
        pytest.param(
            'domain=1a6fdc66f status=allocated mode=enforcing pid=300 uid=0 exe="/root/sandboxer" comm="sandboxer"',
            {"domain": "1a6fdc66f", "status": "allocated", "mode": "enforcing", "pid": "300", "uid": "0", "exe": "/root/sandboxer", "comm": "sandboxer"},
            id="a domain",
        ),
        pytest.param("", {}, id="nothing"),
        pytest.param("=x a= b", {"": "x", "a": ""}, id="words that are not fields"),
    ],
)  # fmt: skip
def test_record_has_a_time_and_fields(text: str, fields: dict[str, str]) -> None:
    assert parse(f"audit({AT}:30): {text}") == (float(AT), fields)


@pytest.mark.parametrize("text", ["", "audit", "audit(x:1): a=b", "login pid=1 uid=0"])
def test_other_text_is_not_a_record(text: str) -> None:
    assert parse(text) == (0.0, {})


class FakeListener(AuditListener):
    """A listener on a socket pair instead of the kernel."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        super().__init__(theirs)

    def close(self) -> None:
        super().close()
        self.ours.close()


@pytest.fixture
def listener() -> Iterator[FakeListener]:
    """A listener that the test sends records to."""
    made = FakeListener()
    yield made
    made.close()


DOMAIN = record(
    LANDLOCK_DOMAIN, 'domain=a1 status=allocated mode=enforcing pid=300 uid=0 exe="/usr/bin/python3" comm="python3"'
)


def test_denial_belongs_to_the_process_of_its_domain(listener: FakeListener) -> None:
    # The record that names the process follows the first denial.
    listener.ours.send(record(LANDLOCK_ACCESS, 'domain=a1 blockers=fs.write_file path="/etc/x" dev="vda" ino=3'))
    listener.ours.send(DOMAIN)
    listener.ours.send(record(LANDLOCK_ACCESS, 'domain=b2 blockers=fs.read_file path="/etc/other" dev="vda" ino=4', 31))
    listener.ours.send(record(1300, "arch=c000003e syscall=257 success=no exit=-13 pid=301"))
    assert listener.take(301, 0.0, expected=False) == ()
    assert listener.take(300, 0.0, expected=False) == (Denial(("fs.write_file",), "/etc/x", float(AT)),)
    assert listener.take(300, 0.0, expected=False) == ()
    listener.ours.send(record(LANDLOCK_ACCESS, 'domain=a1 blockers=fs.read_dir path="/root" dev="vda" ino=5', 32))
    assert listener.take(300, 0.0, expected=True) == (Denial(("fs.read_dir",), "/root", float(AT)),)


def test_late_record_is_not_reported_with_the_next_command(listener: FakeListener) -> None:
    listener.ours.send(record(LANDLOCK_ACCESS, 'domain=a1 blockers=fs.write_file path="/etc/x" dev="vda" ino=3'))
    listener.ours.send(DOMAIN)
    assert listener.take(300, float(AT) + 1, expected=False) == ()


def test_number_of_kept_records_is_limited(listener: FakeListener) -> None:
    for serial in range(2 * kernel_audit.MAX_WAITING):
        listener.handle(
            record(LANDLOCK_ACCESS, f'domain=a1 blockers=fs.write_file path="/etc/{serial}" dev="vda" ino=3', serial)
        )
        listener.handle(record(SECCOMP, f"pid={serial} sig=31 arch=40000003 syscall=20", serial))
    listener.handle(DOMAIN)
    assert len(listener.take(300, 0.0, expected=False)) == kernel_audit.MAX_WAITING
    assert len(listener.kills) <= kernel_audit.MAX_WAITING + 1
    listener.handle(record(LANDLOCK_DOMAIN, "domain=a1 status=deallocated denials=128"))
    assert listener.take(300, 0.0, expected=False) == ()


def test_seccomp_kill_is_reported_once(listener: FakeListener) -> None:
    listener.ours.send(
        record(
            SECCOMP,
            'auid=0 uid=0 gid=0 ses=1 pid=7 comm="x" exe="/p/x" sig=31 arch=40000003 syscall=20 compat=1 ip=0x1 code=0x80000000',
        )
    )
    fields = listener.take_kill(0.0)
    assert (fields["arch"], fields["syscall"], fields["exe"]) == ("40000003", "20", "/p/x")
    assert listener.take_kill(0.0) == {}
    violation = ended_by_filter(fields)
    assert (violation.kind, violation.target, violation.inferred) == ("call", "foreign ABI", True)
    check("violations", "killed by seccomp", violation.text)


@given(st.binary(max_size=200), st.sampled_from([SECCOMP, LANDLOCK_ACCESS, LANDLOCK_DOMAIN, 1300]))
def test_no_message_breaks_the_listener(body: bytes, kind: int) -> None:
    listener = FakeListener()
    try:
        listener.handle(body)
        listener.handle(struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body)
        listener.handle(record(kind, body.decode("latin-1")))
        listener.take(1, 0.0, expected=False)
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            'blockers=fs.write_file path="/etc/hosts"',
            ("write-outside", "/etc/hosts", "containment.write = ['/etc/hosts']"),
            id="a write",
        ),
        pytest.param(
            'blockers=fs.make_dir,fs.refer path="/opt"',
            ("write-outside", "/opt", "containment.write = ['/opt']"),
            id="a new directory",
        ),
        pytest.param(
            'blockers=fs.read_file path="/srv/data"', ("hidden", "/srv/data", "containment.read = ['/srv/data']"), id="a read"
        ),
        pytest.param('blockers=fs.read_file path="/root/.ssh/id_rsa"', ("hidden", "/root/.ssh/id_rsa", ""), id="a key"),
        pytest.param(
            "blockers=net.connect_tcp daddr=192.0.2.1 dest=443",
            ("network", "192.0.2.1:443", 'containment.network = ["192.0.2.1:443"]'),
            id="a connection",
        ),
        pytest.param("blockers=net.bind_tcp src=80", ("network", "80", "containment.network = 'on'"), id="a port"),
        pytest.param('blockers=scope.signal opid=1 ocomm="systemd"', ("call", "scope.signal", ""), id="a signal"),
        pytest.param('blockers=scope.abstract_unix_socket path=00746D70', ("call", "scope.abstract_unix_socket", ""), id="a socket"),
        pytest.param('blockers=fs.make_char path="/tmp"', ("call", "fs.make_char", ""), id="a device"),
    ],
)  # fmt: skip
def test_violation_from_audit_is_not_inferred(
    text: str, expected: tuple[str, str, str], listener: FakeListener, project: Path
) -> None:
    listener.handle(record(LANDLOCK_ACCESS, f"domain=a1 {text}"))
    listener.handle(DOMAIN)
    config = SandboxConfig(str(project))
    seen = view.build_view(config, {"HOME": "/root", "PATH": "/usr/bin"})
    (violation,) = from_audit_records(listener.take(300, 0.0, expected=False), seen, config)
    assert (violation.kind, violation.target, violation.grant) == expected
    assert not violation.inferred
    check("violations", f"audit record: {text}", violation.text)


def test_no_socket_is_open_while_audit_is_off(box: Sandbox) -> None:
    sock = kernel_audit.open_socket()
    on = sock is not None and kernel_audit.is_enabled(sock)
    if sock is not None:
        sock.close()
    listener = kernel_audit.open_listener()
    assert (listener is not None) == on
    if listener is not None:
        listener.close()
    box.run(["true"])
    assert box._holding._snapshot is not None
    assert (box._holding._snapshot.listener is not None) == on


FOREIGN = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""


def foreign(held: Sandbox, project: Path) -> SandboxResult:
    (project / "foreign.py").write_text(FOREIGN)
    return held.run([sys._base_executable, "-S", "foreign.py"])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86 has a second architecture of this kind")
def test_process_killed_by_seccomp_is_a_violation(held: Sandbox, project: Path) -> None:
    result = foreign(held, project)
    assert (result.signal, result.exit_code) == (31, 159)
    assert [(v.kind, v.target, v.inferred) for v in result.violations] == [("call", "foreign ABI", True)]
    # In a child process, only the shell's message reports it.
    result = held.run([*["bash", "-c"], f"{sys._base_executable} -S foreign.py; true"])
    assert [(v.kind, v.target) for v in result.violations] == [("call", "foreign ABI")]


@pytest.mark.skipif(
    os.geteuid() != 0 or os.uname().machine != "x86_64", reason="only root may read the kernel's records"
)
def test_kernel_record_of_a_kill_is_received(held: Sandbox, project: Path) -> None:
    # The kernel records seccomp kills even while audit is off, so the test does not switch it on.
    sock = kernel_audit.open_socket()
    if sock is None:
        pytest.skip("this root may not read the records, like in a container")
    listener = AuditListener(sock)
    heard: list[dict[str, str]] = []

    def has_come() -> bool:
        heard.append(listener.take_kill(0.0))
        return heard[-1].get("arch") == "40000003"

    try:
        assert foreign(held, project).signal == 31
        eventually(has_come)
    finally:
        listener.close()
    assert (heard[-1]["syscall"], heard[-1]["sig"], heard[-1]["exe"]) == (
        "20",
        "31",
        os.path.realpath(sys._base_executable),
    )


def test_ordinary_user_gets_no_listener(open_sandbox: Callable[..., Sandbox]) -> None:
    if os.geteuid() == 0:
        pid = os.fork()
        if pid == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os._exit(0 if kernel_audit.open_listener() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    else:
        assert kernel_audit.open_listener() is None

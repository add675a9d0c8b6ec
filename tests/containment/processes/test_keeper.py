"""Tests keeper and warden by their messages: which they answer, which they ignore, and that their memory is hidden."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import import_path
from observe import DEADLINE_SECONDS, alive, children, eventually, unique_seconds

import corral
from corral.containment import protocol
from corral.containment.plan import Plan
from corral.runtime.pool import Pool
from corral.runtime.processes import WardenClient

NONCE = b"n" * protocol.NONCE_BYTES
DRAIN_SECONDS = 0.1


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(lambda: Plan().pack())
    yield made
    made.close()


@pytest.fixture
def warden(pool: Pool) -> Iterator[WardenClient]:
    taken = pool.acquire()
    yield taken
    taken.close()


def ask(warden: WardenClient, *argv: str, seconds: float = 0.0, nonce: bytes = NONCE) -> None:
    """Send a request that discards the output. It has a deadline only if `seconds` is given."""
    deadline = time.monotonic() + seconds if seconds else 0.0
    block = b"PATH=/usr/bin:/bin"
    head = protocol.REQUEST.pack(protocol.RUN, nonce, deadline, DRAIN_SECONDS, 0, len(block), 0, 0)
    null = os.open("/dev/null", os.O_WRONLY)
    protocol.send(warden.sock, head + protocol.request_body(argv[0], "/", argv, block), (null, null))
    os.close(null)


def answer(warden: WardenClient) -> tuple[int, bytes, int, int, int, int]:
    """Return kind, nonce, flags, status, error and number of killed processes of the next message."""
    assert select.select([warden.descriptor], [], [], 20)[0]
    return protocol.OUTCOME.unpack(warden.sock.recv(1000))[:6]


def test_ready_warden_reports_its_containment(warden: WardenClient) -> None:
    assert (warden.backend, warden.enforcement, warden.missing_layers) == ("none", "none", ())


def test_command_has_one_answer(warden: WardenClient) -> None:
    ask(warden, "/bin/sh", "-c", "exit 3")
    assert answer(warden) == (protocol.ENDED, NONCE, 0, 3 << 8, 0, 0)
    assert select.select([warden.descriptor], [], [], 0)[0] == []


def test_exit_is_reported_before_children_end(warden: WardenClient) -> None:
    seconds = unique_seconds()
    ask(warden, "/bin/sh", "-c", f"sleep {seconds} & exit 3")
    assert answer(warden) == (protocol.EXITED, NONCE, 0, 3 << 8, 0, 0)
    assert answer(warden) == (protocol.ENDED, NONCE, 0, 3 << 8, 0, 1)
    assert alive(seconds) == []


def test_warden_keeps_the_deadline_itself(warden: WardenClient) -> None:
    ask(warden, "/bin/sleep", unique_seconds(), seconds=0.2)
    assert answer(warden) == (protocol.ENDED, NONCE, protocol.TIMED_OUT, 9, 0, 1)


def test_past_deadline_ends_the_command(warden: WardenClient) -> None:
    ask(warden, "/bin/sleep", unique_seconds(), seconds=-1)
    assert answer(warden) == (protocol.ENDED, NONCE, protocol.TIMED_OUT, 9, 0, 1)


def test_only_the_nonce_of_a_command_kills_it(warden: WardenClient) -> None:
    ask(warden, "/bin/sleep", "0.3")
    other = b"o" * protocol.NONCE_BYTES
    for message in (b"x", b"x" * 500):
        protocol.send(warden.sock, message, (0,))
    warden.say(protocol.KILL, other, 0)
    warden.say(protocol.SIGNAL, other, 9)
    assert answer(warden) == (protocol.ENDED, NONCE, 0, 0, 0, 0)
    ask(warden, "/bin/sleep", unique_seconds())
    warden.say(protocol.KILL, NONCE, 0)
    assert answer(warden) == (protocol.ENDED, NONCE, 0, 9, 0, 1)


def test_other_messages_are_ignored_while_idle(warden: WardenClient) -> None:
    for message in (protocol.CONTROL.pack(protocol.KILL, NONCE, 0), b"x", b"\0" * 100):
        protocol.send(warden.sock, message, (0, 0))
    ask(warden, "/bin/true")
    assert answer(warden) == (protocol.ENDED, NONCE, 0, 0, 0, 0)


def test_warden_keeps_no_descriptor_of_a_command(warden: WardenClient) -> None:
    # The pipe of the command ends only if no other process holds its write end.
    for _ in range(3):
        reading, writing = os.pipe()
        head = protocol.REQUEST.pack(protocol.RUN, NONCE, 0.0, DRAIN_SECONDS, 0, 0, 0, 0)
        protocol.send(warden.sock, head + protocol.request_body("/bin/true", "/", ("true",), b""), (writing, writing))
        os.close(writing)
        answer(warden)
        assert os.read(reading, 1) == b""
        os.close(reading)


def test_idle_warden_leaves_the_directory(warden: WardenClient, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("held")
    head = protocol.REQUEST.pack(protocol.RUN, NONCE, 0.0, DRAIN_SECONDS, 0, 0, 0, 0)
    null = os.open("/dev/null", os.O_WRONLY)
    protocol.send(warden.sock, head + protocol.request_body("/bin/true", str(folder), ("true",), b""), (null, null))
    os.close(null)
    answer(warden)
    (keeper,) = children(os.getpid())
    (pid,) = children(keeper)
    if os.geteuid() == 0:
        eventually(lambda: os.readlink(f"/proc/{pid}/cwd") == "/")


def test_keeper_and_warden_are_undumpable(warden: WardenClient) -> None:
    (keeper,) = children(os.getpid())
    (pid,) = children(keeper)
    for process in (keeper, pid):
        assert os.stat(f"/proc/{process}/mem").st_uid == 0
        code = f"import os\ntry:\n    print(open('/proc/{process}/environ', 'rb').read())\nexcept PermissionError:\n    print('closed')"
        command = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "python3", "-c", code]
        if os.geteuid() != 0:
            command = command[3:]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("closed\n", "")


def test_command_ends_when_the_host_hangs_up(pool: Pool) -> None:
    taken = pool.acquire()
    seconds = unique_seconds()
    ask(taken, "/bin/sh", "-c", f"setsid sleep {seconds} & sleep {seconds}")
    eventually(lambda: len(alive(seconds)) == 2)
    (keeper,) = children(os.getpid())
    taken.close()
    eventually(lambda: alive(seconds) == [] and children(keeper) == [])


STARTING_HOST = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import corral
box = corral.Sandbox(corral.SandboxConfig(project_root=sys.argv[2]))
print(flush=True)
box.run(["true"])
"""


def test_host_killed_during_start_leaves_no_directory(tmp_path: Path) -> None:
    project, room = tmp_path / "project", tmp_path / "room"
    project.mkdir()
    room.mkdir()
    command = [sys.executable, "-c", STARTING_HOST, import_path(), str(project)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(room)}) as host:
        assert host.stdout is not None
        host.stdout.readline()
        until = time.monotonic() + DEADLINE_SECONDS
        while not any(room.iterdir()):
            # Without a pause, since the keeper starts within milliseconds.
            assert time.monotonic() < until
        host.kill()
    eventually(lambda: not any(room.iterdir()))


def test_sweep_kills_orphans_and_spares_living_wardens(pool: Pool) -> None:
    first, second = pool.acquire(), pool.acquire()
    mine, other = unique_seconds(), unique_seconds()
    ask(first, "/bin/sh", "-c", f"setsid sleep {mine} & sleep {mine}; :")
    ask(second, "/bin/sleep", other)
    eventually(lambda: len(alive(mine)) == 2 and len(alive(other)) == 1)
    assert pool.sweep(first) == (3, 0)
    assert (alive(mine), len(alive(other))) == ([], 1)
    first.close()
    second.close()


def test_keeper_loads_neither_the_rules_nor_the_policy() -> None:
    # They would take a fifth of its start, and memory in each sandbox.
    code = "import sys; sys.path.append(sys.argv[1]); import corral.containment.processes.keeper; print(*sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", code, str(Path(corral.__file__).parents[1])]
    loaded = subprocess.run(words, capture_output=True, check=True, text=True).stdout.split()
    rooms = {name.split(".")[1] for name in loaded if name.startswith("corral.")}
    assert rooms == {"_lib", "containment", "guard"}
    assert {name for name in loaded if name.startswith("corral.guard.")} == {"corral.guard.toolchain_kinds"}

"""Tests that output arrives complete and in order, whether the warden holds it or hands it over, and that no other output does."""

import errno
import fcntl
import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from observe import descriptors, eventually

from corral import Containment, Output, Sandbox
from corral.containment import protocol
from corral.containment.processes.output_pipes import MUCH_BYTES, OutputPipes

NONCE = b"n" * protocol.NONCE_BYTES
SIZES = (
    0,
    1,
    protocol.MAX_PRINTED_BYTES - 1,
    protocol.MAX_PRINTED_BYTES,
    protocol.MAX_PRINTED_BYTES + 1,
    65_536,
    65_537,
    300_000,
)
PRINT = """
import hashlib, os, sys
out, err = int(sys.argv[1]), int(sys.argv[2])
data = [(bytes(range(251)) * (n // 251 + 1))[:n] for n in (out, err)]
while any(data):
    for stream in (0, 1):
        if data[stream]:
            data[stream] = data[stream][os.write(stream + 1, data[stream][:5000]):]
"""
# Sends its stdout and stderr to the process that listens on `taker`.
GIVE = """
import array, socket, sys
with socket.socket(socket.AF_UNIX) as to:
    to.connect("taker")
    to.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
    to.recv(1)
"""
TAKE = """
import array, os, signal, socket, time
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
listening = socket.socket(socket.AF_UNIX)
listening.bind("taker")
listening.listen()
open("ready", "w").close()
one, _ = listening.accept()
_, rights, _, _ = one.recvmsg(1, socket.CMSG_SPACE(8))
kept = array.array("i", rights[0][2])
os.write(kept[0], b"forged")
one.send(b"x")
wrote = open("wrote", "a", buffering=1)
while True:
    for end in kept:
        try:
            os.write(end, b"forged")
            wrote.write("once\\n")
        except OSError as error:
            wrote.write(error.__class__.__name__ + "\\n")
    time.sleep(0.0005)
"""


def pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.fixture
def pipes() -> Iterator[OutputPipes]:
    before = descriptors()
    made = OutputPipes()
    made.make()
    yield made
    made.clear()
    assert descriptors() == before


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_output_is_taken_once(pipes: OutputPipes) -> None:
    pipes.is_held = True
    assert pipes.take() == (b"", b"")
    os.write(pipes.theirs[0], b"out")
    os.write(pipes.theirs[1], b"err")
    assert pipes.take() == (b"out", b"err")
    assert pipes.take() == (b"", b"")


def test_large_output_is_left_in_the_pipe(pipes: OutputPipes, pair: tuple[socket.socket, socket.socket]) -> None:
    pipes.is_held = True
    os.write(pipes.theirs[0], b"x" * protocol.MAX_PRINTED_BYTES)
    assert pipes.is_filling()
    os.write(pipes.theirs[1], b"y")
    assert pipes.take() is None
    pipes.hand_over(pair[0], NONCE)
    said = protocol.CONTROL.pack(protocol.OUTPUT, NONCE, 0)
    assert protocol.receive(pair[1]) == (said, ())
    message, (stdout, stderr) = protocol.receive(pair[1])
    assert message == said
    # No other process has a write end, so this read returns end of file.
    assert os.read(stdout, 1 << 20) + os.read(stdout, 1) == b"x" * protocol.MAX_PRINTED_BYTES
    assert os.read(stderr, 10) + os.read(stderr, 1) == b"y"
    protocol.close_all((stdout, stderr))
    pipes.hand_over(pair[0], NONCE)
    pair[0].close()
    assert protocol.receive(pair[1]) == (b"", ())


def test_small_output_does_not_count_as_filling(pipes: OutputPipes) -> None:
    os.write(pipes.theirs[1], b"x" * MUCH_BYTES)
    assert not pipes.is_filling()
    os.write(pipes.theirs[0], b"x")
    assert pipes.is_filling()


def test_packet_mode_pipe_is_read_completely(pipes: OutputPipes) -> None:
    fcntl.fcntl(pipes.theirs[0], fcntl.F_SETFL, os.O_DIRECT)
    for size in (1, 4000, 2, 4096):
        os.write(pipes.theirs[0], b"x" * size)
    os.write(pipes.theirs[1], b"y")
    assert pipes.take() == (b"x" * 8099, b"y")


def test_output_read_by_another_process_is_not_awaited(pipes: OutputPipes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.containment.processes.output_pipes.waiting", lambda _: 100)
    os.write(pipes.theirs[0], b"x")
    assert pipes.take() == (b"x", b"")


def test_hand_over_is_repeated_after_etoomanyrefs(
    pipes: OutputPipes, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes.is_held = True

    def full(_: object, data: bytes, ends: Sequence[int] = ()) -> None:
        if ends:
            raise OSError(errno.ETOOMANYREFS, "too many")
        pair[0].send(data)

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "send", full)
        assert not pipes.hand_over(pair[0], NONCE)
        assert not pipes.hand_over(pair[0], NONCE)
    assert pipes.take() == (b"", b"")
    assert pipes.hand_over(pair[0], NONCE)
    said = protocol.CONTROL.pack(protocol.OUTPUT, NONCE, 0)
    assert protocol.receive(pair[1]) == (said, ())
    message, ends = protocol.receive(pair[1])
    assert (message, len(ends)) == (said, 2)
    protocol.close_all(ends)


def test_each_command_has_its_own_pipes(pipes: OutputPipes) -> None:
    kept = os.dup(pipes.theirs[0])
    pipes.renew()
    with pytest.raises(BrokenPipeError):
        os.write(kept, b"late")
    assert pipes.take() == (b"", b"")
    os.close(kept)


@pytest.mark.real
@pytest.mark.parametrize("backend", ["warden", "bubblewrap", "none"])
def test_output_of_any_size_arrives_complete(project: Path, open_sandbox: Callable[..., Sandbox], backend: str) -> None:
    (project / "print.py").write_text(PRINT)
    box = open_sandbox(containment=Containment(backend=backend), max_output_bytes=2_000_000)
    for out in SIZES:
        for err in (0, out):
            done = box.run(["python3", "print.py", str(out), str(err)])
            seen = [hashlib.sha256(data).hexdigest() for data in (done.stdout, done.stderr)]
            assert seen == [hashlib.sha256(pattern(size)).hexdigest() for size in (out, err)], (out, err)
            assert (done.stdout_bytes, done.stderr_bytes, done.exit_code) == (out, err, 0)


def test_hand_over_neither_loses_nor_repeats_output(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    for pause in (0.0005, 0.001, 0.002, 0.004, 0.005, 0.006):
        done = box.run(f"for i in 1 2 3 4 5 6; do echo $i; echo $i >&2; sleep {pause}; done", shell=True)
        assert (done.stdout, done.stderr) == (b"1\n2\n3\n4\n5\n6\n", b"1\n2\n3\n4\n5\n6\n"), pause


def test_output_of_a_child_after_its_parent_arrives(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(output=Output(drain_seconds=60))
    done = box.run("(sleep 0.05; echo late) & echo soon", shell=True)
    assert (done.stdout, done.killed) == (b"soon\nlate\n", 0)


def test_kept_pipe_end_reaches_no_later_command(project: Path, held: Sandbox) -> None:
    (project / "give.py").write_text(GIVE)
    (project / "take.py").write_text(TAKE)
    taker = held.start(["python3", "take.py"])
    eventually((project / "ready").exists)
    given = held.run(["python3", "give.py"])
    # The other process writes to the pipe while it is open.
    assert given.stdout.startswith(b"forged"), given.stderr_text
    wrote = project / "wrote"
    eventually(lambda: wrote.exists() and wrote.read_text())
    before = wrote.read_text()
    for _ in range(40):
        done = held.run("echo own; sleep 0.002; echo own >&2", shell=True)
        assert (done.stdout, done.stderr) == (b"own\n", b"own\n")
    after = wrote.read_text()
    assert len(after) > len(before)
    assert "BrokenPipeError" in after
    taker.close()


def test_subscriber_gets_output_before_the_end(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    heard: list[bytes] = []

    def hear(_: str, data: bytes) -> None:
        heard.append(data)
        (project / "heard").touch()

    waits = "echo begun; until [ -e heard ]; do sleep 0.001; done; echo ended"
    assert box.run(waits, shell=True, on_output=hear).stdout == b"begun\nended\n"
    assert b"".join(heard) == b"begun\nended\n"
    (project / "heard").unlink()
    chunks = []
    with box.start(waits, shell=True) as started:
        for _, data in started:
            chunks.append(data)
            (project / "heard").touch()
    assert b"".join(chunks) == b"begun\nended\n"


def test_thousand_runs_leak_no_descriptor(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    calls = [["true"], ["/no/such/program"], ["sh", "-c", "yes | head -c 40000"], ["sleep", "0.006"]]
    for call in (*calls, ["true"]):
        box.run(call)
    before = descriptors()
    for number in range(1000):
        # The last call is `true`, so that no descriptor is in flight at the end.
        box.run(calls[number % 40 % len(calls)] if number % 40 < 8 else ["true"])
    assert descriptors() == before


def test_silence_limit_ends_a_command_with_held_output(
    open_sandbox: Callable[..., Sandbox],
) -> None:
    box = open_sandbox(output=Output(silence_seconds=0.5))
    began = time.monotonic()
    done = box.run("for i in 1 2 3 4; do echo $i; sleep 0.3; done; sleep 60", shell=True)
    assert (done.stdout, done.timed_out) == (b"1\n2\n3\n4\n", True)
    assert time.monotonic() - began < 30

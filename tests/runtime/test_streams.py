"""The host's ends of a command's streams: reading, writing without blocking, closing."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from observe import descriptors

from corral.runtime.capture import STDERR, STDOUT, Capture
from corral.runtime.streams import FLOOD_BYTES, READ_BYTES, Streams, is_pty_master


@pytest.fixture
def streams() -> Iterator[Streams]:
    before = descriptors()
    made = Streams()
    yield made
    made.close()
    made.close()
    assert descriptors() == before


@pytest.fixture
def buffer() -> memoryview:
    return memoryview(bytearray(READ_BYTES))


def test_output_arrives_on_its_own_stream(streams: Streams, buffer: memoryview) -> None:
    streams.open_output()
    capture, chunks = Capture(100), []
    out, err = streams.reading
    assert streams.reading == {out: STDOUT, err: STDERR}
    os.write(streams.lent[0], b"to stdout")
    os.write(streams.lent[1], b"to stderr")
    assert streams.read(out, buffer, capture, chunks)
    assert streams.read(err, buffer, capture, None)
    streams.close_lent()
    assert not streams.read(out, buffer, capture, chunks)
    streams.close_reading(out)
    assert list(streams.reading) == [err]
    kept = capture.finish()
    assert (kept.stdout, kept.stderr, chunks) == (b"to stdout", b"to stderr", [("stdout", b"to stdout")])


def test_pipe_is_widened_only_after_it_was_full(streams: Streams, buffer: memoryview) -> None:
    streams.open_output()
    (out, _), capture = streams.reading, Capture(100)
    before = fcntl.fcntl(out, fcntl.F_GETPIPE_SZ)
    os.write(streams.lent[0], b"x" * (READ_BYTES - 1))
    streams.read(out, buffer, capture, None)
    assert fcntl.fcntl(out, fcntl.F_GETPIPE_SZ) == before
    os.write(streams.lent[0], b"x" * READ_BYTES)
    streams.read(out, buffer, capture, None)
    assert fcntl.fcntl(out, fcntl.F_GETPIPE_SZ) == FLOOD_BYTES
    os.write(streams.lent[0], b"x" * FLOOD_BYTES)
    streams.read(out, buffer, capture, None)
    assert capture.finish().stdout_bytes == 2 * READ_BYTES - 1 + FLOOD_BYTES


def test_input_is_queued_until_the_pipe_takes_it(streams: Streams) -> None:
    streams.open_input()
    assert streams.write(b"x" * 200_000)
    assert streams.wants_to_write
    streams.end_input()
    assert not streams.write(b"more")
    read = 0
    while data := os.read(streams.lent[0], 1 << 20):
        read += len(data)
        streams.flush()
    assert (read, streams.wants_to_write, streams.stdin) == (200_000, False, -1)


def test_input_for_a_closed_pipe_is_dropped(streams: Streams) -> None:
    streams.open_input()
    streams.close_lent()
    assert not streams.write(b"x")
    assert (streams.wants_to_write, streams.stdin, streams.write(b"y")) == (False, -1, False)


def test_given_input_is_sealed(streams: Streams) -> None:
    streams.give_input(b"given")
    with pytest.raises(PermissionError):
        os.write(streams.lent[0], b"x")
    assert os.read(streams.lent[0], 100) == b"given"


def test_lent_streams_are_copies_in_request_order(streams: Streams) -> None:
    streams.lend_own()
    same = [os.path.sameopenfile(lent, own) for lent, own in zip(streams.lent, (1, 2, 0), strict=True)]
    assert same == [True] * 3
    assert [os.get_inheritable(descriptor) for descriptor in streams.lent] == [False] * 3


def test_non_inheritable_descriptor_is_not_lent(project: Path) -> None:
    code = """
import os, sys
from corral.runtime.streams import Streams
keep = os.dup(1)
for number in (0, 1, 2):
    os.close(number)
taken = [os.open("/etc/hostname", os.O_RDONLY) for _ in range(3)]
streams = Streams()
streams.lend_own()
os.write(keep, repr((taken, [os.readlink(f"/proc/self/fd/{lent}") for lent in streams.lent])).encode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=project)
    assert (done.stdout, done.stderr) == (repr(([0, 1, 2], ["/dev/null"] * 3)), "")


def test_host_without_stdin_lends_dev_null(project: Path) -> None:
    code = """
import os
os.close(0)
from corral import Sandbox, SandboxConfig
with Sandbox(SandboxConfig(".")) as box:
    # A control socket may have this number now.
    box.run(["true"])
    result = box.start(["python3", "see.py"], inherit_stdin=True).wait()
    print(result.stdout_text, result.stderr_text)
"""
    (project / "see.py").write_text("import os\nprint(os.readlink('/proc/self/fd/0'), os.read(0, 10))\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=project)
    assert (done.stdout.strip(), done.stderr) == ("/dev/null b''", "")


def test_terminal_is_read_written_and_resized(streams: Streams, buffer: memoryview) -> None:
    outer, inner = os.openpty()
    streams.open_terminal(outer)
    capture = Capture(100)
    assert streams.write(b"typed\n")
    assert os.read(inner, 100) == b"typed\n"
    os.write(inner, b"said\n")
    while b"said" not in bytes(buffer[:100]):
        assert streams.read(outer, buffer, capture, None)
    streams.resize(33, 101)
    assert os.get_terminal_size(inner) == (101, 33)
    streams.end_input()
    assert os.read(inner, 100) == b""
    assert not streams.write(b"more")
    os.close(inner)
    # The other end is closed: the kernel reports EIO, which counts as EOF.
    assert not streams.read(outer, buffer, capture, None)


def test_is_pty_master_accepts_only_a_master() -> None:
    outer, inner = os.openpty()
    null = os.open("/dev/null", os.O_RDWR)
    pipe = os.pipe()
    assert [is_pty_master(descriptor) for descriptor in (outer, inner, null, *pipe)] == [True, *[False] * 4]
    for descriptor in (outer, inner, null, *pipe):
        os.close(descriptor)

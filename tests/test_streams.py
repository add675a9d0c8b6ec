"""The host's ends of a command's streams: read into a capture, written without blocking, closed once."""

import fcntl
import os
from collections.abc import Iterator

import pytest

from corral.capture import STDERR, STDOUT, Capture
from corral.streams import FLOOD_BYTES, READ_BYTES, Streams
from observe import descriptors


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


def test_what_is_printed_arrives_on_its_own_stream(streams: Streams, buffer: memoryview) -> None:
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
    streams.shut(out)
    assert list(streams.reading) == [err]
    kept = capture.finish()
    assert (kept.stdout, kept.stderr, chunks) == (b"to stdout", b"to stderr", [("stdout", b"to stdout")])


def test_a_pipe_is_widened_only_when_it_was_full(streams: Streams, buffer: memoryview) -> None:
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


def test_input_waits_in_memory_until_the_pipe_takes_it(streams: Streams) -> None:
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


def test_input_that_nobody_reads_is_dropped(streams: Streams) -> None:
    streams.open_input()
    streams.close_lent()
    assert not streams.write(b"x")
    assert (streams.wants_to_write, streams.stdin, streams.write(b"y")) == (False, -1, False)


def test_given_input_cannot_be_changed(streams: Streams) -> None:
    streams.give_input(b"given")
    with pytest.raises(PermissionError):
        os.write(streams.lent[0], b"x")
    assert os.read(streams.lent[0], 100) == b"given"


def test_own_streams_are_copies_in_the_order_of_a_request(streams: Streams) -> None:
    streams.lend_own()
    same = [os.path.sameopenfile(lent, own) for lent, own in zip(streams.lent, (1, 2, 0), strict=True)]
    assert same == [True] * 3
    assert [os.get_inheritable(descriptor) for descriptor in streams.lent] == [False] * 3

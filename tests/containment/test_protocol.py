"""Tests that messages arrive complete or not at all, with close-on-exec descriptors and sealed memory."""

import errno
import os
import struct
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket, socketpair
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.containment import protocol


@pytest.fixture
def pair() -> Iterator[tuple[socket, socket]]:
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_message_arrives_with_close_on_exec_descriptors(pair: tuple[socket, socket]) -> None:
    reading, writing = os.pipe()
    protocol.send(pair[0], b"hello", (writing,))
    data, (descriptor,) = protocol.receive(pair[1])
    assert (data, os.get_inheritable(descriptor)) == (b"hello", False)
    os.write(descriptor, b"x")
    assert os.read(reading, 1) == b"x"
    protocol.close_all((reading, writing, descriptor))


def test_end_of_file_is_an_empty_message(pair: tuple[socket, socket]) -> None:
    pair[0].close()
    assert protocol.receive(pair[1]) == (b"", ())


def test_truncated_message_is_an_error_and_leaks_nothing(pair: tuple[socket, socket]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    protocol.send(pair[0], b"x" * (protocol.RECEIVED[0] + 1), (0,))
    with pytest.raises(protocol.ProtocolError):
        protocol.receive(pair[1])
    pair[0].sendmsg([b"x"], [(SOL_SOCKET, SCM_RIGHTS, struct.pack("20i", *[0] * 20))])
    with pytest.raises(protocol.ProtocolError):
        protocol.receive(pair[1])
    assert set(os.listdir("/proc/self/fd")) == before


def test_sending_to_a_closed_socket_raises_no_signal(pair: tuple[socket, socket]) -> None:
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        protocol.send(pair[0], b"x")
    with pytest.raises(BrokenPipeError):
        protocol.send(pair[0], b"x", (0,))


def test_sealed_memfd_cannot_be_changed() -> None:
    descriptor = protocol.sealed("test", b"content")
    assert os.read(descriptor, 100) == protocol.read_body(descriptor) == b"content"
    for change in (
        lambda: os.write(descriptor, b"x"),
        lambda: os.ftruncate(descriptor, 1),
        lambda: os.ftruncate(descriptor, 99),
    ):
        with pytest.raises(PermissionError) as caught:
            change()
        assert caught.value.errno == errno.EPERM
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.write(again, b"x")
    protocol.close_all((descriptor, again))


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(WORDS, WORDS, st.lists(WORDS, min_size=1), st.dictionaries(WORDS.map(lambda w: "n" + w.replace("=", "")), WORDS))
def test_request_body_round_trips(executable: str, cwd: str, argv: list[str], env: dict[str, str]) -> None:
    block = protocol.environment_block(env)
    assert protocol.parse_body(protocol.request_body(executable, cwd, argv, block), len(block)) == (
        os.fsencode(executable),
        os.fsencode(cwd),
        [os.fsencode(word) for word in argv],
        block,
    )
    assert protocol.parse_environment(block) == [os.fsencode(f"{n}={v}") for n, v in env.items()]


def test_ready_message_round_trips() -> None:
    assert protocol.unpack_ready(protocol.pack_ready("warden", "partial", ("seccomp", "netns"))) == (
        "warden",
        "partial",
        ("seccomp", "netns"),
    )
    assert protocol.unpack_ready(protocol.pack_ready("none", "none", ())) == ("none", "none", ())


@pytest.mark.parametrize(
    "message", [b"", b"x", protocol.COUNT.pack(protocol.NEW, 3) + b"x", protocol.COUNT.pack(protocol.NEW, 3)]
)
def test_wrong_answer_is_an_error(message: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.unpack_count(message, protocol.SWEEP)
    with pytest.raises(protocol.ProtocolError):
        protocol.unpack_ready(message)


@pytest.mark.parametrize(
    "text",
    ["", "warden", "warden\0", "warden\0total", "warden\0full\0mount", "warden\0partial\0", "warden\0FULL"],
    ids=["nothing", "no enforcement", "an empty one", "an unknown one", "a layer is missing", "an empty layer", "case"],
)
def test_ready_message_with_a_wrong_claim_is_refused(text: str) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.unpack_ready(bytes((protocol.READY,)) + text.encode())

"""Capture keeps head and tail, counts every byte, and its memory does not grow."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.runtime.capture import MARKER, STDERR, STDOUT, Capture, Captured


def captured(*parts: bytes, max_bytes: int = 8, keep: str = "both") -> Captured:
    capture = Capture(max_bytes, keep)
    for part in parts:
        capture.feed(STDOUT, part)
    return capture.finish()


def cut(head: bytes, omitted: int, tail: bytes) -> bytes:
    return head + (MARKER % omitted).encode() + tail


@pytest.mark.parametrize(
    ("parts", "keep"),
    [
        pytest.param((), "both", id="nothing"),
        pytest.param((b"abcdefgh",), "both", id="exactly the bound"),
        pytest.param((b"abc", b"", b"defgh"), "both", id="in parts, one of them empty"),
        pytest.param((b"a",) * 8, "both", id="byte by byte"),
        pytest.param((b"abcdefgh",), "head", id="head only, exactly the bound"),
        pytest.param((b"abcd", b"efgh"), "tail", id="tail only, exactly the bound"),
        pytest.param((bytes((0xC3, 0xA9)) * 4,), "both", id="two-byte characters"),
    ],
)
def test_short_output_is_kept_unchanged(parts: tuple[bytes, ...], keep: str) -> None:
    text = b"".join(parts)
    assert captured(*parts, keep=keep) == Captured(text, b"", False, len(text), 0)


@pytest.mark.parametrize(
    ("parts", "keep", "kept"),
    [
        pytest.param((b"abcdefghi",), "both", cut(b"abcd", 1, b"fghi"), id="one byte too many"),
        pytest.param((b"abcdefghi",), "head", cut(b"abcdefgh", 1, b""), id="head only"),
        pytest.param((b"abcdefghi",), "tail", cut(b"", 1, b"bcdefghi"), id="tail only"),
        pytest.param(tuple(bytes((c,)) for c in b"abcdefghijkl"), "both", cut(b"abcd", 4, b"ijkl"), id="byte by byte"),
        pytest.param((b"abcdef", b"ghi", b"jkl"), "both", cut(b"abcd", 4, b"ijkl"), id="the ring wraps in the middle"),
        pytest.param(
            (b"ab", b"x" * 1000, b"yz"), "both", cut(b"abxx", 996, b"xxyz"), id="a chunk larger than the limit"
        ),
        pytest.param((b"abcdefgh", b"ijkl" * 100), "both", cut(b"abcd", 400, b"ijkl"), id="a chunk replaces the tail"),
    ],
)
def test_long_output_is_cut_and_counted(parts: tuple[bytes, ...], keep: str, kept: bytes) -> None:
    assert captured(*parts, keep=keep) == Captured(kept, b"", True, len(b"".join(parts)), 0)


def test_zero_limit_keeps_only_the_count() -> None:
    assert captured(b"abc", max_bytes=0) == Captured(cut(b"", 3, b""), b"", True, 3, 0)


def test_truncation_marker_is_a_separate_line() -> None:
    assert cut(b"a", 5, b"b").decode().split("\n") == ["a", "[corral: truncated, 5 bytes omitted]", "b"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("abcé" + "x" * 9, cut(b"abc", 7, b"xxxx"), id="a character across the end of the head"),
        pytest.param(
            "abcd" + "x" * 9 + "éfgh", cut(b"abcd", 11, b"fgh"), id="a character across the start of the tail"
        ),
        pytest.param("a🂡" + "x" * 9, cut(b"a", 9, b"xxxx"), id="four bytes of which three are kept"),
        pytest.param("🂡" + "x" * 9, cut("🂡".encode(), 5, b"xxxx"), id="four bytes that just fit"),
    ],
)
def test_utf8_character_is_not_split(text: str, kept: bytes) -> None:
    assert captured(text.encode()) == Captured(kept, b"", True, len(text.encode()), 0)


def test_invalid_utf8_is_kept_unchanged() -> None:
    assert captured(b"\x80" * 9).stdout == cut(b"\x80" * 4, 1, b"\x80" * 4)


def test_both_streams_are_bounded_separately() -> None:
    capture = Capture(4)
    capture.feed(STDOUT, b"abcdef")
    capture.feed(STDERR, b"xy")
    assert capture.finish() == Captured(cut(b"ab", 2, b"ef"), b"xy", True, 6, 2)


def test_capture_copies_the_callers_buffer() -> None:
    capture = Capture(8)
    buffer = bytearray(b"abcdefgh")
    view = memoryview(buffer)
    capture.feed(STDOUT, view[:4])
    buffer[:] = b"--------"
    capture.feed(STDOUT, view[:2])
    buffer[:] = b"????????"
    assert capture.finish().stdout == b"abcd--"


@given(
    st.lists(st.binary(max_size=40), max_size=30),
    st.integers(0, 60),
    st.sampled_from(["both", "head", "tail"]),
)
def test_every_dropped_byte_is_counted(parts: list[bytes], max_bytes: int, keep: str) -> None:
    everything = b"".join(parts)
    kept = captured(*parts, max_bytes=max_bytes, keep=keep)
    assert kept.stdout_bytes == len(everything)
    if not kept.truncated:
        assert kept.stdout == everything
        return
    head_size = {"both": max_bytes // 2, "head": max_bytes, "tail": 0}[keep]
    possible = set()
    # At most three bytes on each side of the cut belong to a split character.
    for head in range(max(0, head_size - 3), head_size + 1):
        for tail in range(max(0, max_bytes - head_size - 3), max_bytes - head_size + 1):
            omitted = len(everything) - head - tail
            possible.add(cut(everything[:head], omitted, everything[len(everything) - tail :]))
    assert kept.stdout in possible


@given(st.text(), st.integers(0, 40), st.integers(1, 7))
def test_cut_text_is_still_valid_utf8(text: str, max_bytes: int, step: int) -> None:
    raw = text.encode()
    kept = captured(*(raw[i : i + step] for i in range(0, len(raw), step)), max_bytes=max_bytes)
    kept.stdout.decode()


def test_memory_does_not_grow_with_the_output() -> None:
    capture = Capture(1 << 16)
    block = b"x" * 100_000
    sizes = []
    for _ in range(50):
        capture.feed(STDOUT, block)
        stream = capture.streams[STDOUT]
        sizes.append(sys.getsizeof(stream._head) + sys.getsizeof(stream._tail))
    assert max(sizes) == sizes[0] < 2 * (1 << 16)

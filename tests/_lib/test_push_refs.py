"""Tests the reader of a push: which refs pass, and that nothing passes before all of them are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._lib.network.push_refs import MAX_BYTES, PushError, PushGrant, PushReader, parse_push_grant

ZERO, ONE, TWO = b"0" * 40, b"1" * 40, b"2" * 40
PACK = b"PACK and more"


def line(text: bytes) -> bytes:
    return b"%04x" % (4 + len(text)) + text


CREATE = line(ZERO + b" " + ONE + b" refs/heads/work\0 report-status side-band-64k agent=git/2.39.5")
UPDATE = line(ONE + b" " + TWO + b" refs/heads/old\n")
DELETE = line(ONE + b" " + ZERO + b" refs/heads/old\n")
NAMED = parse_push_grant(["work", "old"])


@given(st.lists(st.integers(1, 60), max_size=20))
def test_nothing_passes_before_the_last_ref_is_known(cuts: list[int]) -> None:
    stream = CREATE + UPDATE + b"0000" + PACK
    reader, passed, at = PushReader(NAMED), b"", 0
    for size in [*cuts, len(stream)]:
        passed += reader.feed(stream[at : at + size])
        at += size
        assert passed == (stream[:at] if at >= len(stream) - len(PACK) else b"")
    assert reader.end() == b""


@given(st.binary(max_size=300))
def test_reader_refuses_or_holds_any_bytes(data: bytes) -> None:
    reader = PushReader(PushGrant())
    try:
        passed = reader.feed(data)
    except PushError:
        return
    # A grant of nothing lets only an empty list pass.
    assert passed == (data if data.startswith(b"0000") else b"")


REFUSED = {
    "deletion of a granted branch": DELETE,
    "second line not granted": CREATE + line(ZERO + b" " + ONE + b" refs/heads/other\n"),
    "certificate": line(b"push-cert\0 report-status"),
    "shallow": line(b"shallow " + ONE),
    "push options": line(ZERO + b" " + ONE + b" refs/heads/work\0 push-options"),
    "unknown capability": line(ZERO + b" " + ONE + b" refs/heads/work\0 new-thing"),
    "capabilities twice": CREATE + line(ZERO + b" " + ONE + b" refs/heads/old\0 atomic"),
    "length 1": b"0001",
    "length 2": b"0002",
    "length 3": b"0003",
    "length 4": b"0004",
    "length not hexadecimal": b"00g0",
    "signed length": b"+010",
    "short name of an object": line(b"0" * 39 + b" " + ONE + b" refs/heads/work"),
    "names of two lengths": line(b"0" * 64 + b" " + ONE + b" refs/heads/work"),
    "neither old nor new": line(ZERO + b" " + ZERO + b" refs/heads/work"),
    "two blanks": line(ZERO + b"  " + ONE + b" refs/heads/work"),
    "step up": line(ZERO + b" " + ONE + b" refs/heads/../heads/work"),
    "line feed in the name": line(ZERO + b" " + ONE + b" refs/heads/work\nrefs/heads/main"),
    "HEAD": line(ZERO + b" " + ONE + b" HEAD"),
    "not UTF-8": line(ZERO + b" " + ONE + b" refs/heads/\xff"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_push_is_refused(what: str) -> None:
    reader = PushReader(NAMED)
    with pytest.raises(PushError):
        reader.feed(REFUSED[what] + b"0000")


def test_end_within_the_list_is_refused() -> None:
    reader = PushReader(NAMED)
    assert reader.feed(CREATE[:50]) == b""
    with pytest.raises(PushError):
        reader.end()


def test_list_is_bounded() -> None:
    reader = PushReader(parse_push_grant([]).replace(default="refs/heads/main"))
    lines = b"".join(line(ZERO + b" " + ONE + b" refs/heads/%d" % number) for number in range(4097))
    with pytest.raises(PushError):
        reader.feed(lines)


def test_line_that_never_ends_is_bounded() -> None:
    reader = PushReader(NAMED)
    long = line(ZERO + b" " + ONE + b" refs/heads/work\0" + b" atomic" * 9000)
    assert reader.feed(long[:-1]) == b""
    with pytest.raises(PushError):
        reader.feed(b"x" * (MAX_BYTES + 1))


GRANTS = {
    ("work", "refs/heads/work", "create"): True,
    ("refs/heads/work", "refs/heads/work", "update"): True,
    ("work", "refs/heads/work", "delete"): False,
    ("-work", "refs/heads/work", "delete"): True,
    ("-work", "refs/heads/work", "update"): False,
    ("work", "refs/tags/work", "create"): False,
    ("refs/tags/work", "refs/tags/work", "create"): True,
}


@pytest.mark.parametrize(("words", "ref", "kind"), GRANTS)
def test_grant_names_what_may_change(words: str, ref: str, kind: str) -> None:
    old, new = {"create": (ZERO, ONE), "update": (ONE, TWO), "delete": (ONE, ZERO)}[kind]
    reader = PushReader(parse_push_grant([words]))
    stream = line(old + b" " + new + b" " + ref.encode()) + b"0000"
    if GRANTS[words, ref, kind]:
        assert reader.feed(stream) == stream
    else:
        with pytest.raises(PushError):
            reader.feed(stream)


@pytest.mark.parametrize("word", ["", "-", "--work", "a b", "refs/", "a..b", "a*", "refs/heads/.x", "x.lock"])
def test_word_that_is_no_ref_is_refused(word: str) -> None:
    with pytest.raises(PushError):
        parse_push_grant([word])

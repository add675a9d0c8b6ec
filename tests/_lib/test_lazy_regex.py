"""A lazy pattern behaves as the compiled one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._lib.lazy_regex import Following, pattern


@pytest.mark.parametrize("method", ["search", "match", "fullmatch"])
def test_methods_match_those_of_re(method: str) -> None:
    for text in ("a1b", "1", "", "xx22"):
        for _ in range(2):
            ours, theirs = getattr(pattern(r"\d+"), method)(text), getattr(re.compile(r"\d+"), method)(text)
            assert (ours and ours.span()) == (theirs and theirs.span())


def test_split_sub_and_bytes() -> None:
    digits = pattern(rb"(?s)\d.")
    assert digits.sub(b"-", b"1\n2x3") == b"--3"
    assert digits.split(b"a1xb") == [b"a", b"b"]
    assert [match.group() for match in digits.finditer(b"1a2b")] == [b"1a", b"2b"]


def test_unknown_attribute_raises() -> None:
    with pytest.raises(AttributeError):
        pattern("a").flags  # noqa: B018


FOLLOWING = {
    r"\w\[[^\n]*?(?:\$\((?!\()|`|@P)": Following(r"\w\[", r"\$\((?!\()|`|@P", "\n"),
    r"\[[^']*?(?:\$\(|`)": Following(r"\[", r"\$\(|`", "'"),
    r"(?i)\bvacuum\b[^;]*\binto\b": Following(r"(?i)\bvacuum\b", r"(?i)\binto\b", ";"),
}
pieces = st.sampled_from(
    ["a", "a[", "[", "]", "$(", "(", "@P", "`", "\\", "'", '"', "\n", " ", ";", "vacuum", "INTO", "$"]
)


@pytest.mark.parametrize("whole", FOLLOWING)
@given(texts=st.lists(pieces, max_size=8))
def test_following_finds_what_one_pattern_finds(whole: str, texts: list[str]) -> None:
    text = "".join(texts)
    assert FOLLOWING[whole].search(text) is (re.search(whole, text) is not None)

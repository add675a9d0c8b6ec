"""Tests that long globs match as short ones do, and take no longer than their length allows."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.guard import globs

parts = st.sampled_from(["a", "b", "*", "?", "[a]", "[!a]", "[ab]", "[", "]", "[]", "[!]", "[]a]", "**", ".env"])


@given(st.text("ab].[!", max_size=6), st.lists(parts, max_size=8).map("".join))
def test_length_rules_out_no_match(name: str, glob: str) -> None:
    if fnmatchcase(name, glob):
        assert globs._may_match_length(glob, len(name))


@pytest.mark.parametrize("unit", ["[", "[[", "[a]", "[!", "a", "?"])
def test_long_glob_matches_no_short_name(unit: str) -> None:
    assert not globs.glob_matches(".env", unit * 40_000)


@pytest.mark.parametrize("glob", ["*" * 1000 + ".env", ".e[" + "n" * 1000 + "]v", "*" * 300 + "[.]env"])
def test_long_glob_matches_a_short_name(glob: str) -> None:
    assert globs.glob_matches(".env", glob)

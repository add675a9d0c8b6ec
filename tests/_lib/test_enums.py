"""FastIntEnum behaves as enum.IntEnum in every way that corral uses."""

import copy
import enum
import pickle

import pytest

from corral._lib.enums import FastIntEnum


class Size(FastIntEnum):
    """A choice with a text of its own."""

    SMALL = 0
    LARGE = 5

    def __str__(self) -> str:
        return self.name.lower()


class Model(enum.IntEnum):
    """The model to compare with."""

    SMALL = 0
    LARGE = 5

    def __str__(self) -> str:
        return self.name.lower()


def test_members_are_found_by_name_and_value() -> None:
    assert [Size["LARGE"], Size(5), Size(Size.LARGE)] == [Size.LARGE] * 3
    assert all(found is Size.LARGE for found in (Size["LARGE"], Size(5), Size(Size.LARGE)))


@pytest.mark.parametrize("ask", [lambda kind: kind(3), lambda kind: kind("SMALL"), lambda kind: kind["small"]])
def test_unknown_member_raises_like_an_enum(ask) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises((ValueError, KeyError)) as refused:
        ask(Size)
    with pytest.raises(type(refused.value)):
        ask(Model)


def test_printing_sorting_and_counting_match_an_enum() -> None:
    for show in (
        list,
        len,
        lambda kind: list(kind.__members__),
        lambda kind: [str(member) for member in kind],
        lambda kind: [f"{member} {member!s:>6}" for member in kind],
        lambda kind: [(member.name, member.value, int(member), hash(member)) for member in kind],
        lambda kind: [max(kind), min(kind), kind.LARGE > kind.SMALL, kind.LARGE == 5, bool(kind.SMALL)],
        lambda kind: repr(kind.LARGE).replace(kind.__name__, ""),
    ):
        assert show(Size) == show(Model)


def test_copies_and_pickles_are_the_same_member() -> None:
    assert pickle.loads(pickle.dumps(Size.LARGE)) is Size.LARGE
    assert copy.deepcopy([Size.LARGE])[0] is Size.LARGE
    assert copy.copy(Size.LARGE) is Size.LARGE


def test_member_cannot_be_reassigned() -> None:
    with pytest.raises(AttributeError):
        Size.LARGE = 3  # type: ignore[misc,assignment]

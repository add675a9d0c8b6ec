"""Frozen records: construction, equality, immutability, pickling."""

import copy
import pickle

import pytest

from corral._lib.records import Record, frozen


@frozen
class Point(Record):
    """A record of two fields, one with a default."""

    x: int
    y: int = 2


@frozen
class Even(Record):
    """A record that checks itself."""

    n: int

    def _validate(self) -> None:
        if self.n % 2:
            raise ValueError("odd")

    @property
    def half(self) -> int:
        """Half of it."""
        return self.n // 2


@frozen
class Twin(Record):
    """Has the fields of Point and is not one."""

    x: int
    y: int = 2


def test_fields_are_set_by_position_or_name() -> None:
    assert Point(1, 3) == Point(y=3, x=1)


def test_missing_field_takes_its_default() -> None:
    assert Point(1) == Point(1, 2)


@pytest.mark.parametrize("arguments", [(), (1, 2, 3)], ids=["too few", "too many"])
def test_wrong_number_of_fields_is_a_type_error(arguments: tuple[int, ...]) -> None:
    with pytest.raises(TypeError):
        Point(*arguments)


def test_unknown_field_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="z"):
        Point(1, z=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("made", [0, 3, 10], ids=["the first", "the last by the general way", "by its own constructor"])
def test_generic_and_compiled_constructors_agree(made: int) -> None:
    @frozen
    class Fresh(Record):
        x: int
        y: int = 2

    for _ in range(made):
        Fresh(1)
    for arguments, named in (((1, 2), {"x": 1}), ((), {"z": 1}), ((1,), {"x": 2}), ((), {}), ((1, 2, 3), {})):
        with pytest.raises(TypeError):
            Fresh(*arguments, **named)
    assert (Fresh(1), Fresh(x=4, y=None)) == (Fresh(1, 2), Fresh(4, y=None))  # type: ignore[arg-type]


def test_fields_cannot_be_set_deleted_or_added() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match=r"Point is frozen: x cannot be set; use replace\(x=...\)"):
        point.x = 5  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Point is frozen: x cannot be deleted"):
        del point.x
    with pytest.raises(AttributeError, match="frozen"):
        point.other = 1  # type: ignore[attr-defined]
    assert point == Point(1)


def test_record_has_slots_and_no_dict() -> None:
    assert not hasattr(Point(1), "__dict__")


def test_replace_returns_a_changed_copy() -> None:
    point = Point(1)
    assert (point.replace(y=9), point) == (Point(1, 9), Point(1, 2))


def test_records_are_equal_by_value_and_type() -> None:
    assert Point(1) != Point(2)
    assert Point(1) != Twin(1)
    assert Point(1) != (1, 2)


def test_equal_records_have_equal_hashes() -> None:
    assert {Point(1), Point(1), Twin(1)} == {Point(1), Twin(1)}
    assert len({Point(1), Point(1), Twin(1)}) == 2


def test_repr_evaluates_to_the_record() -> None:
    assert repr(Point(1)) == "Point(x=1, y=2)"


def test_pickle_and_copy_give_an_equal_record() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    assert copy.deepcopy(Point(1)) == Point(1)


def test_validation_runs_at_construction_replace_and_unpickling() -> None:
    assert Even(4).half == 2
    with pytest.raises(ValueError, match="odd"):
        Even(3)
    with pytest.raises(ValueError, match="odd"):
        Even(4).replace(n=5)

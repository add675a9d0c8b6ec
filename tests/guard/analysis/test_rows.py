"""Slots of rows: named, read-only fields over the tuples of the compiled rules."""

from __future__ import annotations

import pytest

from corral.guard.analysis.rows import slots_of

RAW = ("reads", "path", "*", "why", ("-n",), ("-i",))


def test_slot_names_the_fields_of_a_compiled_slot() -> None:
    (slot,) = slots_of([RAW])
    assert (slot.effect, slot.kind, slot.many, slot.label, slot.unless, slot.when) == RAW


def test_slot_is_frozen() -> None:
    (slot,) = slots_of([RAW])
    with pytest.raises(AttributeError):
        slot.effect = "writes"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        slot.other = ""  # type: ignore[attr-defined]

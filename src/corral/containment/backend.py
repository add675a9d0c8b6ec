"""Compares the two backends that start wardens: corral's own, and bubblewrap.

A backend must enforce every layer that it claims. tests/containment/test_backend.py checks both with the same attacks.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


class UnusableError(Exception):
    """A backend cannot be used here. The user sees the text, which says why and what to do."""


def holds_more(other: Collection[str], own: Collection[str], wanted: Collection[str]) -> bool:
    """Return whether another backend enforces more of the wanted layers than corral's own. A tie is not enough."""
    return len({*other} & {*wanted}) > len({*own} & {*wanted})

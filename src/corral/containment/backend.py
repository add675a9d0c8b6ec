"""What a backend is to a keeper, and the choice between two: it finds out which layers will hold, and starts wardens.

A warden says on its socket what holds it and then serves, by the messages of `wire`, whoever started it. Who claims a layer
must enforce it: tests/containment/test_backend.py asks the same of each.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable, Collection
    from typing import Any

    from corral.containment.kernel.cgroups import Group
    from corral.containment.kernel.limit_monitor import LimitMonitor

    # Starts a warden that speaks on a socket, in its group, by a plan; returns its pid, a pidfd, and the keeper's child that it is or is below.
    Start = Callable[[socket, LimitMonitor, Group | None, dict[str, Any]], tuple[int, int, int]]


class UnusableError(Exception):
    """A backend cannot be used here. The text says why and what to do, and the owner reads it as it is."""


def holds_more(other: Collection[str], own: Collection[str], wanted: Collection[str]) -> bool:
    """Say whether another backend's layers are worth leaving the warden for: more of what is wanted, never a tie."""
    return len({*other} & {*wanted}) > len({*own} & {*wanted})

"""What stands between a keeper and its wardens: two functions, and the choice between those who have them.

Who claims a layer must enforce it: tests/containment/test_contract.py asks the same of each.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Collection
    from typing import Any, Protocol

    class Backend(Protocol):
        """Makes wardens that are held."""

        def probe(self, plan: dict[str, Any], available: Collection[str]) -> set[str]:
            """Return the layers that will hold, of what the kernel gives this process; UnusableError for none."""

        def start(self, ours: socket) -> tuple[int, int, int]:
            """Start a warden that speaks on a socket; return its pid, its pidfd, and the child of this process above it."""


class UnusableError(Exception):
    """A backend cannot be used here. The text says why and what to do, and the owner reads it as it is."""


def holds_more(other: Collection[str], own: Collection[str], wanted: Collection[str]) -> bool:
    """Say whether another backend's layers are worth leaving the warden for: more of what is wanted, never a tie."""
    return len({*other} & {*wanted}) > len({*own} & {*wanted})

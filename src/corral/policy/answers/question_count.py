"""Counts the questions about openings of the last day. A user who is asked often reads less, so a question says so."""

from __future__ import annotations

import os

from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DAY_SECONDS = 86400.0
MAX_COUNTED = 999
MANY = 4  # from this question of a day on, the question says how many there were


def count_question(environ: Mapping[str, str], root: str) -> int:
    """Count one more question, and return how many there were in the last day."""
    store = Store("state", "questions", environ, root)
    store.create()
    with store.lock():
        store.remove_expired(DAY_SECONDS)
        store.remove_oldest(MAX_COUNTED - 1)
        store.write(os.urandom(8).hex(), b"")
        return len([name for name in store.names() if not name.startswith(".")])

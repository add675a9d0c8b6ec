"""Tells whether a `corral allow --watch` runs that would show a question at once. Its lock ends with its process."""

from __future__ import annotations

import os

from corral.model.errors import PolicyError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK = "lock"


class Watcher:
    """This process as a watcher. Of several, the first holds the lock, and the next one takes it over."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        store = Store("state", "watchers", environ)
        store.create()
        self._descriptor = os.open(f"{store.path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def announce(self) -> None:
        """Take the lock if no other watcher has it."""
        from fcntl import LOCK_EX, LOCK_NB, flock  # noqa: PLC0415  a hook loads this package

        try:
            flock(self._descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Stop being a watcher."""
        os.close(self._descriptor)


def is_watched(environ: Mapping[str, str]) -> bool:
    """Return whether a watcher runs."""
    from fcntl import LOCK_NB, LOCK_SH, flock  # noqa: PLC0415  a hook loads this package

    try:
        store = Store("state", "watchers", environ)
        if not store.exists():
            return False
        descriptor = os.open(f"{store.path}/{LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, PolicyError):
        return False
    try:
        # Shared, so that two runs which look at the same time do not take each other for a watcher.
        flock(descriptor, LOCK_SH | LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False

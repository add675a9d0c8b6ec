"""Gives the service the environment of the client whose call it handles: the policy, the log and commands depend on it."""

from __future__ import annotations

import os
from _thread import RLock

_lock = RLock()  # held while this process has a client's environment


class client_environment:  # noqa: N801  a context manager
    """A context in which this process has an environment. One thread at a time is in it."""

    def __init__(self, environ: dict[bytes, bytes]) -> None:
        self._environ = environ

    def __enter__(self) -> None:
        _lock.acquire()
        _set(self._environ)

    def __exit__(self, *_: object) -> None:
        _lock.release()


def current_environment() -> dict[bytes, bytes]:
    """Return a copy of this process's environment."""
    return dict(os.environb)


def _set(environ: dict[bytes, bytes]) -> None:
    now = os.environb
    if dict(now) == environ:
        return
    for name in [name for name in now if name not in environ]:
        del now[name]
    for name, value in environ.items():
        if now.get(name) != value:
            now[name] = value

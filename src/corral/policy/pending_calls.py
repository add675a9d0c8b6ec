"""Keeps calls that wait for the user's answer in a host's own prompt. Each is exact, expires, and is taken once."""

from __future__ import annotations

import marshal
import os
from time import time

from corral._lib.records import Record, frozen
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PENDING_SECONDS = 3600.0  # the user may be away for a while; later the call is asked about again
MAX_FILE_BYTES = 64 * 1024 * 1024
_FORMAT = 1
_ID_BYTES = 16


@frozen
class PendingCall(Record):
    """A call that a host's own prompt asks about, or whose text is too long for an argument."""

    text: str
    root: str
    cwd: str
    asked: frozenset[str]  # ids of the rules that the prompt names: running the call means that the user accepted them


def save_pending_call(text: str, root: str, cwd: str, environ: Mapping[str, str], *, asked: frozenset[str]) -> str:
    """Save a call for `corral run` to take once. Return its id."""
    store = _store(environ, root)
    store.remove_expired(PENDING_SECONDS)
    name = os.urandom(_ID_BYTES).hex()
    store.write(name, marshal.dumps((_FORMAT, time() + PENDING_SECONDS, asked, root, cwd, text)))
    return name


def take_pending_call(name: str, root: str, cwd: str, environ: Mapping[str, str]) -> PendingCall | None:
    """Return and remove a call that was saved for exactly this project and directory, or return None."""
    if len(name) != 2 * _ID_BYTES or not set(name) <= set("0123456789abcdef"):
        return None
    data = _store(environ, root).take(name, MAX_FILE_BYTES)
    if data is None:
        return None
    try:
        version, expires, asked, for_root, for_cwd, text = marshal.loads(data)  # noqa: S302  only the user can write the store
    except (ValueError, EOFError, TypeError):
        return None
    if version != _FORMAT or not 0 <= expires - time() <= PENDING_SECONDS or (for_root, for_cwd) != (root, cwd):
        return None
    return PendingCall(text, root, cwd, asked)


def pending_directory(environ: Mapping[str, str], root: str) -> str:
    """Return the directory of pending calls. Raise PolicyError where a command or another user could write there."""
    return _store(environ, root).path


def _store(environ: Mapping[str, str], root: str) -> Store:
    store = Store("state", "pending", environ, root)
    store.create()
    return store

"""Keeps the calls that a hook rewrote, until the host runs them: `corral go ID`. Each is exact, expires, and is taken once.

The line that the host shows has only the id and the call's text. The file under the id has the rest.
"""

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
MAX_ANCESTORS = 64
_FORMAT = 4
_ID_DIGITS, _MAX_ID_DIGITS = 4, 32
_HEX = frozenset("0123456789abcdef")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HOOK_ANCESTORS = 4  # a host may start its hooks through two shells


@frozen
class PendingCall(Record):
    """A call of a host that may run once."""

    text: str
    root: str
    cwd: str
    asked: frozenset[str] = (
        frozenset()
    )  # ids of the rules that the host's prompt names: a run means that the user accepted them
    grants: frozenset[tuple[str, str]] = frozenset()  # kind and target of the openings that the prompt names, likewise
    log_id: str = ""  # of the hook's entry in the log
    keeps: str = ""  # the state that the host's shell keeps: "", "directory" or "exports"
    in_transaction: bool = False
    directories: tuple[str, ...] = ()  # options with the user's directories, as the installed hook has them
    session: frozenset[tuple[int, int]] = frozenset()  # the host's processes, one of which must be above the run's
    service: str = ""  # the socket of the session that runs it, which the client finds at the end of the record


def save_pending_call(call: PendingCall, environ: Mapping[str, str]) -> str:
    """Save a call for `corral go` to take once. Return its id."""
    store = Store("state", "pending", environ, call.root)
    store.create()
    store.remove_expired(PENDING_SECONDS)
    data = marshal.dumps((_FORMAT, time() + PENDING_SECONDS, *[getattr(call, name) for name in PendingCall._fields]))
    # Random, so that an agent cannot prepare a line for a later call. As short as possible, because the user reads it.
    digits = os.urandom(_MAX_ID_DIGITS // 2).hex()
    for size in range(_ID_DIGITS, _MAX_ID_DIGITS + 1):
        try:
            # O_EXCL: of two hooks that run at once, only one gets the id.
            descriptor = os.open(f"{store.path}/{digits[:size]}", _NEW_FILE, 0o600)
        except FileExistsError:
            continue
        with open(descriptor, "wb") as file:
            file.write(data)
        return digits[:size]
    raise FileExistsError(f"{store.path} has a file of every id")


def take_pending_call(name: str, environ: Mapping[str, str]) -> PendingCall | None:
    """Return and remove the call that was saved under an id, or return None."""
    store = Store("state", "pending", environ)
    if not is_id(name) or not store.exists():
        return None
    return _parsed(store.take(name, MAX_FILE_BYTES))


def read_pending_call(name: str, environ: Mapping[str, str]) -> PendingCall | None:
    """Return the call that was saved under an id and leave it there, or return None."""
    store = Store("state", "pending", environ)
    return _parsed(store.read(name, MAX_FILE_BYTES)) if is_id(name) and store.exists() else None


def _parsed(data: bytes | None) -> PendingCall | None:
    if data is None:
        return None
    try:
        version, expires, *fields = marshal.loads(data)  # noqa: S302  only the user can write the store
    except (ValueError, EOFError, TypeError):
        return None
    if version != _FORMAT or not 0 <= expires - time() <= PENDING_SECONDS or len(fields) != len(PendingCall._fields):
        return None
    return PendingCall(*fields)


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return _ID_DIGITS <= len(text) <= _MAX_ID_DIGITS and _HEX.issuperset(text)


def host_session(process: int = 0) -> frozenset[tuple[int, int]]:
    """Return the processes above a hook, among them its host. `process` started the hook, if that is not this process."""
    return frozenset(_ancestors(_HOOK_ANCESTORS, process or os.getppid()))


def is_of_session(call: PendingCall) -> bool:
    """Return whether this process runs below the host that the call is from."""
    return host_above(call, os.getppid()) is not None


def host_above(call: PendingCall, process: int) -> tuple[int, int] | None:
    """Return pid and start time of the nearest process, from `process` upwards, that was above the hook of a call too."""
    return next((one for one in _ancestors(MAX_ANCESTORS, process) if one in call.session), None)


def _ancestors(levels: int, process: int) -> list[tuple[int, int]]:
    """Return pid and start time of a process and of those above it, the nearest first."""
    found: list[tuple[int, int]] = []
    while process and len(found) < levels:
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            break  # it has ended, or belongs to another user
        found.append((process, int(fields[19])))
        process = int(fields[1])
    return found


def pending_directory(environ: Mapping[str, str], root: str) -> str:
    """Return the directory of pending calls. Raise PolicyError where a command or another user could write there."""
    store = Store("state", "pending", environ, root)
    store.create()
    return store.path

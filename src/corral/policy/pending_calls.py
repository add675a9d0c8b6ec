"""What a person was asked about a call, and may say yes to. Exact, expiring, and kept only where no command can write."""

from __future__ import annotations

import marshal
import os
from time import time

from corral._lib.records import Record, frozen
from corral.model.errors import PolicyError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PENDING_SECONDS = 3600.0  # a person may be away for a while; later the call is asked about again
MAX_SWEPT = 256  # entries looked at for what is left over, against a directory that somebody has filled
_PENDING = "pending"
_FORMAT = 1
_ID_BYTES = 16


@frozen
class PendingCall(Record):
    """A call that a host's own prompt asks about, or whose text is too long for an argument."""

    text: str
    root: str
    cwd: str
    asked: frozenset[str]  # the rules that a person was told of: running it means that they have said yes to these


def save_pending_call(text: str, root: str, cwd: str, environ: Mapping[str, str], *, asked: frozenset[str]) -> str:
    """Leave a call for `corral run` to take, once; return the id by which it is known."""
    place = pending_directory(environ, root)
    _sweep(place)
    name = os.urandom(_ID_BYTES).hex()
    data = marshal.dumps((_FORMAT, time() + PENDING_SECONDS, asked, root, cwd, text))
    descriptor = os.open(f"{place}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    return name


def take_pending_call(name: str, root: str, cwd: str, environ: Mapping[str, str]) -> PendingCall | None:
    """Return a call that was left for exactly this project and directory, and forget it; None where there is none."""
    if len(name) != 2 * _ID_BYTES or not set(name) <= set("0123456789abcdef"):
        return None
    place = pending_directory(environ, root)
    taken = f"{place}/{name}.{os.getpid()}"
    try:
        # Renamed first: of two who come with the same id one gets it.
        os.rename(f"{place}/{name}", taken)
    except FileNotFoundError:
        return None
    try:
        user_dirs.refuse_writable_by_others(taken)
        with open(taken, "rb") as file:
            data = file.read()
    finally:
        os.unlink(taken)
    try:
        kind, expires, asked, for_root, for_cwd, text = marshal.loads(data)  # noqa: S302  written above, where only the owner can
    except (ValueError, EOFError, TypeError):
        return None
    if kind != _FORMAT or not 0 <= expires - time() <= PENDING_SECONDS or (for_root, for_cwd) != (root, cwd):
        return None
    return PendingCall(text, root, cwd, asked)


def pending_directory(environ: Mapping[str, str], root: str) -> str:
    """Return where calls wait; PolicyError where a command or another user could write there."""
    place = f"{user_dirs.private_directory('state', environ, root)}/{_PENDING}"
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        user_dirs.refuse_writable_by_others(place)
    except OSError as error:
        raise PolicyError(f"{place} cannot be made: {error.strerror}") from None
    return place


def _sweep(place: str) -> None:
    """Remove what nobody came for."""
    now = time()
    for name in os.listdir(place)[:MAX_SWEPT]:
        path = f"{place}/{name}"
        try:
            if not -PENDING_SECONDS <= now - os.lstat(path).st_mtime <= PENDING_SECONDS:
                os.unlink(path)
        except OSError:
            # Another one has just done it.
            continue

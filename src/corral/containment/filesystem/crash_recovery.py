"""What was protected in a project when a sandbox began, kept until it ends: one that is killed cannot look for what was planted, the next does.

It lies beside the scratch that lasts, which no command sees.
"""

from __future__ import annotations

import marshal
import os
from fcntl import LOCK_EX, LOCK_NB, flock

from corral.containment.filesystem import persistent_scratch
from corral.containment.filesystem.protected import Protected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class SandboxMarker:
    """The mark of a sandbox that has begun. Its lock goes with the process, however that ends."""

    def __init__(self, place: str, found: Protected) -> None:
        self._held = persistent_scratch.acquire(place)
        name = os.urandom(8).hex()
        self._path = f"{place}/{persistent_scratch.MARKER_PREFIX}{name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{place}/{name}", flags, 0o600), "wb", closefd=False) as file:
            self._descriptor = file.fileno()
            flock(self._descriptor, LOCK_EX)
            file.write(marshal.dumps([getattr(found, field) for field in found._fields]))
        # Whole and locked before anybody takes it for one that was left.
        os.rename(f"{place}/{name}", self._path)

    def end(self) -> None:
        """Forget it: all was looked for."""
        try:
            os.unlink(self._path)
        except OSError:
            # A cache that the owner has removed meanwhile.
            return
        finally:
            os.close(self._descriptor)
            _remove_if_empty(os.path.dirname(self._path), self._held)
            os.close(self._held)


def _remove_if_empty(place: str, held: int) -> None:
    try:
        flock(held, LOCK_EX | LOCK_NB)
        os.rmdir(place)
    except OSError:
        # Scratch lasts there, or another sandbox uses it.
        return


def abandoned_markers(place: str) -> Iterator[Protected]:
    """Yield what the killed had found, and forget each once the caller has dealt with it."""
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(persistent_scratch.MARKER_PREFIX):
            yield from _left(f"{place}/{name}")


def _left(path: str) -> Iterator[Protected]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as file:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            # It lives, and will look itself.
            return
        try:
            found = Protected(*marshal.loads(file.read()))  # noqa: S302  written above, where no command can
        except (ValueError, EOFError, TypeError):
            # By another version, or cut by a full disk: what was there before is not known.
            os.unlink(path)
            return
        yield found
        if os.path.lexists(path):
            os.unlink(path)

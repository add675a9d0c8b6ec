"""Records the protected paths of a project while a sandbox runs.

A sandbox that is killed cannot search for planted files. The next sandbox of the project finds the record and does it. Records lie
beside the persistent scratch directories, which no command sees.
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
    """The record of a running sandbox. The kernel releases its lock when the process ends, in whatever way."""

    def __init__(self, place: str, found: Protected) -> None:
        self._scratch = persistent_scratch.acquire(place)
        name = os.urandom(8).hex()
        self._path = f"{place}/{persistent_scratch.MARKER_PREFIX}{name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{place}/{name}", flags, 0o600), "wb", closefd=False) as file:
            self._descriptor = file.fileno()
            flock(self._descriptor, LOCK_EX)
            file.write(marshal.dumps([getattr(found, field) for field in found._fields]))
        # Complete and locked before it has a name that other sandboxes look for.
        os.rename(f"{place}/{name}", self._path)

    def end(self) -> None:
        """Remove the record, after the sandbox has searched for planted files itself."""
        try:
            os.unlink(self._path)
        except OSError:
            # The user has removed the cache.
            return
        finally:
            os.close(self._descriptor)
            self._remove_directory_if_unused()
            os.close(self._scratch)

    def _remove_directory_if_unused(self) -> None:
        try:
            flock(self._scratch, LOCK_EX | LOCK_NB)
            os.rmdir(os.path.dirname(self._path))
        except OSError:
            # It holds scratch, or another sandbox uses it.
            return


def abandoned_markers(place: str) -> Iterator[Protected]:
    """Yield the records of killed sandboxes. Each record is removed when the caller asks for the next one."""
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(persistent_scratch.MARKER_PREFIX):
            yield from _abandoned(f"{place}/{name}")


def _abandoned(path: str) -> Iterator[Protected]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as file:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            # Its sandbox is running, and searches itself.
            return
        try:
            found = Protected(*marshal.loads(file.read()))  # noqa: S302  written above, where no command can
        except (ValueError, EOFError, TypeError):
            # Written by another version, or cut off by a full disk: it does not tell what existed before.
            os.unlink(path)
            return
        yield found
        if os.path.lexists(path):
            os.unlink(path)

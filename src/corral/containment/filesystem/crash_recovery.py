"""Records the protected paths of a project while a sandbox runs.

A sandbox that is killed cannot search for planted files. The next sandbox of the project finds the record and does it. A sandbox that
could not move a planted file away leaves its record too: no other sandbox starts a command until its search has succeeded. Records
lie beside the persistent scratch directories, which no command sees.
"""

from __future__ import annotations

import marshal
import os
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

from corral.containment.filesystem import persistent_scratch
from corral.containment.filesystem.protected import Protected
from corral.containment.filesystem.running_sandboxes import MARKER_PREFIX, is_held, marker_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class SandboxMarker:
    """The record of a running sandbox. The kernel releases its lock when the process ends, in whatever way."""

    def __init__(self, place: str, found: Protected) -> None:
        self._scratch = persistent_scratch.acquire(place)
        name = os.urandom(8).hex()
        self._path = f"{place}/{MARKER_PREFIX}{name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{place}/{name}", flags, 0o600), "wb", closefd=False) as file:
            self._descriptor = file.fileno()
            flock(self._descriptor, LOCK_EX)
            file.write(marshal.dumps([getattr(found, field) for field in found._fields]))
        # Complete and locked before it has a name that other sandboxes look for.
        os.rename(f"{place}/{name}", self._path)

    def has_others(self) -> bool:
        """Return whether another sandbox has a record beside this one."""
        place, own = os.path.split(self._path)
        try:
            return any(name.startswith(MARKER_PREFIX) and name != own for name in os.listdir(place))
        except OSError:
            return True

    def leave(self) -> None:
        """Let the next sandbox of the project search again, also one of another process while this one runs."""
        flock(self._descriptor, LOCK_UN)

    def end(self) -> None:
        """Remove the record, after the sandbox has searched for planted files itself."""
        try:
            os.unlink(self._path)
        except OSError:
            # The user has removed the cache, or another sandbox has searched.
            return
        finally:
            self.close()

    def close(self) -> None:
        """Release the scratch directory, and leave the record if it was not removed."""
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
    """Yield the records of killed sandboxes, and of those that left theirs. Each is removed when the caller asks for the next one."""
    for path in marker_paths(place):
        yield from _abandoned(path)


def _abandoned(path: str) -> Iterator[Protected]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as file:
        if is_held(descriptor):
            # Its sandbox is running, and searches itself.
            return
        flock(descriptor, LOCK_EX)
        try:
            found = Protected(*marshal.loads(file.read()))  # noqa: S302  written above, where no command can
        except (ValueError, EOFError, TypeError):
            # Written by another version, or cut off by a full disk: it does not tell what existed before.
            os.unlink(path)
            return
        yield found
        if os.path.lexists(path):
            os.unlink(path)

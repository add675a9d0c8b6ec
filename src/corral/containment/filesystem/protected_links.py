"""Keeps protected links where no mount can: looked at after each command, and put back before the result returns."""

from __future__ import annotations

import os

from corral._lib.fork_lock import ForkSafeLock
from corral.containment.filesystem.quarantine import INSTEAD, move_to_quarantine, open_directory_nofollow
from corral.model.call import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class ProtectedLinks:
    """The protected links of one sandbox, with what they said before the first command."""

    def __init__(self, paths: Iterable[str], root: str) -> None:
        self._texts = {path: os.readlink(path) for path in paths if os.path.islink(path)}
        self._root = root
        self._lock = ForkSafeLock()

    def look(self) -> tuple[Violation, ...]:
        """Put back what was changed, and return a violation for each."""
        with self._lock:
            changed = [path for path, text in self._texts.items() if _text(path) != text]
            return tuple(self._put_back(path) for path in changed)

    def _put_back(self, path: str) -> Violation:
        directory, _, name = path.rpartition("/")
        moved = ""
        if os.path.lexists(path):
            violation = move_to_quarantine(path, self._root)
            if os.path.lexists(path):
                return violation
            moved = f"; {violation.detail}"
        try:
            above = open_directory_nofollow(directory)
            try:
                os.symlink(self._texts[path], name, dir_fd=above)
            finally:
                os.close(above)
        except OSError as error:
            return Violation("planted", path, f"the link is gone: {error.strerror}{moved}", INSTEAD)
        return Violation("planted", path, f"the link that was there is back{moved}", INSTEAD)


def _text(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None

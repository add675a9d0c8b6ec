"""What is mounted over itself, as it was then. Who replaces or removes it outside, as an editor does, takes the mount away."""

from __future__ import annotations

import os

from corral.containment.directories import NEVER, settled, time_of
from corral.containment.kernel import handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def identity(path: str) -> tuple[int, int]:
    """Return what a thing is known by while it is there. Of the thing itself: a link in its place is another."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


class Kept:
    """The project and what is protected in it, and what was there. In a directory that is kept and has not changed, nothing was replaced."""

    def __init__(self, root: str, paths: Iterable[str] = ()) -> None:
        self._root = root
        # What lies in a directory comes after it.
        known = {path: identity(path) for path in sorted((root, *paths)) if os.path.lexists(path)}
        self._known = [(path, os.path.dirname(path), *one) for path, one in known.items()]
        self._parents = {parent for _, parent, _, _ in self._known if parent in known}
        self._handles = {path: handle(path) for path in known}
        # When each had last changed as it, and what is kept in it, was looked at: at all, and long enough ago that a change
        # after the look would have had another time.
        self._seen = dict.fromkeys(known, NEVER)
        self._settled = dict.fromkeys(known, NEVER)

    def replaced(self) -> str:
        """Return one that is another by now, or gone; or nothing."""
        unchanged: set[str] = set()
        quiet: list[tuple[str, int]] = []
        for path, parent, device, number in self._known:
            # One that keeps others is asked for their sake.
            if parent in unchanged and path not in self._parents:
                continue
            try:
                found = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return path
            except OSError:
                if path == self._root:
                    return path
                # In a directory that was shut: nobody sees what is there, and the mount stays.
                continue
            if found.st_ino != number or found.st_dev != device:
                return path
            at = found.st_ctime_ns
            if self._settled[path] == at:
                if path in self._parents:
                    unchanged.add(path)
                continue
            # Nothing is made anew in a directory that has not changed.
            if (
                parent not in unchanged
                and not self._is_unchanged(parent, quiet)
                and handle(path) != self._handles[path]
            ):
                return path
            if self._seen[path] == at:
                quiet.append((path, at))
            self._seen[path] = at
        # Only now that all in them was found to be the same.
        for path, at in quiet:
            self._settled[path] = settled(at)
        return ""

    def _is_unchanged(self, directory: str, quiet: list[tuple[str, int]]) -> bool:
        at = time_of(directory)
        if at and self._settled.get(directory) == at:
            return True
        if at and self._seen.get(directory) == at:
            quiet.append((directory, at))
        self._seen[directory] = at
        return False

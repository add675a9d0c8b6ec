"""What is mounted over itself, as it was then. Who replaces or removes it outside, as an editor does, takes the mount away."""

from __future__ import annotations

import os
from stat import S_ISDIR

from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime, ctime_of
from corral.containment.kernel.syscalls import handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def file_identity(path: str) -> tuple[int, int]:
    """Return what a thing is known by while it is there. Of the thing itself: a link in its place is another."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _has_names(found: os.stat_result) -> bool:
    """Say whether something is the same elsewhere too, by a hard link: to remove it here takes the mount away, not the thing."""
    return found.st_nlink > 1 and not S_ISDIR(found.st_mode)


class MountedPaths:
    """The project and what is protected in it, and what was there. In a directory that is kept and has not changed, nothing was replaced."""

    def __init__(self, root: str, paths: Iterable[str] = ()) -> None:
        self._root = root
        found = {path: os.lstat(path) for path in (root, *paths) if os.path.lexists(path)}
        # A file of several names is the same in another directory that takes the place of its own.
        above = [os.path.dirname(path) for path, one in found.items() if _has_names(one)]
        found |= {path: os.lstat(path) for path in above if path not in found}
        # When each that is no directory had changed: a name that goes or comes changes that too.
        self._named = {path: one.st_ctime_ns for path, one in found.items() if not S_ISDIR(one.st_mode)}
        # The project first; what lies in a directory comes after it.
        known = {path: (found[path].st_dev, found[path].st_ino) for path in (root, *sorted(found)) if path in found}
        self._known = [(path, os.path.dirname(path), *one) for path, one in known.items()]
        self._parents = {parent for _, parent, _, _ in self._known if parent in known}
        self._handles = {path: handle(path) for path in known}
        # When each had last changed as it, and what is kept in it, was looked at: at all, and long enough ago that a change
        # after the look would have had another time.
        self._seen = dict.fromkeys(known, NO_CTIME)
        self._settled = dict.fromkeys(known, NO_CTIME)

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
            if _has_names(found) and parent not in self._handles:
                return path
            # Nothing is made anew in a directory that has not changed, nor has another name there.
            if parent not in unchanged and not self._is_unchanged(parent, quiet):
                if handle(path) != self._handles[path] or self._named.get(path, at) != at:
                    return path
            elif path in self._named:
                self._named[path] = at
            if self._seen[path] == at:
                quiet.append((path, at))
            self._seen[path] = at
        # Only now that all in them was found to be the same.
        for path, at in quiet:
            self._settled[path] = comparable_ctime(at)
        return ""

    def _is_unchanged(self, directory: str, quiet: list[tuple[str, int]]) -> bool:
        at = ctime_of(directory)
        if at and self._settled.get(directory) == at:
            return True
        if at and self._seen.get(directory) == at:
            quiet.append((directory, at))
        self._seen[directory] = at
        return False

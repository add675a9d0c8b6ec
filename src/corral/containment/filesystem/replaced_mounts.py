"""Detects protected paths that were replaced on the host after the sandbox bind-mounted them.

Editors save by writing a new file and renaming it over the old one. The rename drops our read-only bind mount without any error,
so before each command every protected path is compared with a snapshot from the time of the mount.
"""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISREG

from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime, ctime_of
from corral.containment.kernel.syscalls import handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


def _is_hard_linked(found: os.stat_result) -> bool:
    # Removing one name of a hard-linked file drops the mount, while the inode lives on.
    return found.st_nlink > 1 and not S_ISDIR(found.st_mode)


class MountedPaths:
    """Snapshot of the project root and its protected paths, taken when the sandbox was mounted.

    `first_replaced` is called before every command, so it is cheap: a directory whose ctime has not changed cannot have had an entry
    replaced.
    """

    def __init__(self, root: str, paths: Iterable[str] = ()) -> None:
        self._root = root
        found = {path: os.lstat(path) for path in (root, *paths) if os.path.lexists(path)}
        # A hard-linked file keeps its inode when its directory is swapped, so the directory is compared as well.
        above = [os.path.dirname(path) for path, one in found.items() if _is_hard_linked(one)]
        found |= {path: os.lstat(path) for path in above if path not in found}
        # The ctime of a file changes when a link to it is added or removed.
        self._file_ctimes = {path: one.st_ctime_ns for path, one in found.items() if not S_ISDIR(one.st_mode)}
        # The root first, and each directory before its entries.
        known = {path: (found[path].st_dev, found[path].st_ino) for path in (root, *sorted(found)) if path in found}
        self._known = [(path, os.path.dirname(path), *one) for path, one in known.items()]
        self._parents = {parent for _, parent, _, _ in self._known if parent in known}
        self._handles = {path: handle(path) for path in known}
        # The ctime of each path when it and the paths in it were last compared; and the same once it was comparable.
        self._seen = dict.fromkeys(known, NO_CTIME)
        self._settled = dict.fromkeys(known, NO_CTIME)

    def repair(self, readonly: Collection[str], remount: Callable[[list[str]], bool]) -> bool:
        """Have all replaced paths mounted again, and compare them with what they are now. Returns false if that is not possible."""
        before = self._known, self._file_ctimes, self._handles, self._seen, self._settled
        self._file_ctimes, self._handles = dict(self._file_ctimes), dict(self._handles)
        self._seen, self._settled = dict(self._seen), dict(self._settled)
        paths: list[str] = []
        while path := self.first_replaced():
            # The snapshot comes before the mount: a path that is replaced between them is found again.
            if path in paths or path not in readonly or not self._look_again(path):
                break
            paths.append(path)
        if not path and remount(paths):
            return True
        self._known, self._file_ctimes, self._handles, self._seen, self._settled = before
        return False

    def _look_again(self, path: str) -> bool:
        try:
            found, its_handle = os.lstat(path), handle(path)
        except OSError:
            return False  # it was removed, so there is nothing to mount
        if not (S_ISREG(found.st_mode) or S_ISDIR(found.st_mode)) or _is_hard_linked(found) or path in self._parents:
            return False
        self._known = [
            (path, above, found.st_dev, found.st_ino) if known == path else (known, above, device, inode)
            for known, above, device, inode in self._known
        ]
        self._handles[path] = its_handle
        if not S_ISDIR(found.st_mode):
            self._file_ctimes[path] = found.st_ctime_ns
        self._seen[path] = self._settled[path] = NO_CTIME
        return True

    def first_replaced(self) -> str:
        """Return the first path that was replaced or removed since the mount, or ""."""
        unchanged: set[str] = set()
        quiet: list[tuple[str, int]] = []
        for path, parent, device, inode in self._known:
            # A directory is compared even so, because of its entries.
            if parent in unchanged and path not in self._parents:
                continue
            try:
                found = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return path
            except OSError:
                if path == self._root:
                    return path
                # It lies in a directory without search permission: it cannot be reached, and the mount stays.
                continue
            if found.st_ino != inode or found.st_dev != device:
                return path
            ctime = found.st_ctime_ns
            if self._settled[path] == ctime:
                if path in self._parents:
                    unchanged.add(path)
                continue
            if _is_hard_linked(found) and parent not in self._handles:
                return path
            # An inode number is reused, a file handle is not. In an unchanged directory neither can have happened.
            if parent not in unchanged and not self._is_unchanged(parent, quiet):
                if handle(path) != self._handles[path] or self._file_ctimes.get(path, ctime) != ctime:
                    return path
            elif path in self._file_ctimes:
                self._file_ctimes[path] = ctime
            if self._seen[path] == ctime:
                quiet.append((path, ctime))
            self._seen[path] = ctime
        # Only now, when all entries were found to be the same.
        for path, ctime in quiet:
            self._settled[path] = comparable_ctime(ctime)
        return ""

    def _is_unchanged(self, directory: str, quiet: list[tuple[str, int]]) -> bool:
        ctime = ctime_of(directory)
        if ctime and self._settled.get(directory) == ctime:
            return True
        if ctime and self._seen.get(directory) == ctime:
            quiet.append((directory, ctime))
        self._seen[directory] = ctime
        return False

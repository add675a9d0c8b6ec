"""Tells which of the directories that a sandbox watches have changed: by comparing each ctime, or from inotify events."""

from __future__ import annotations

import os
from time import time_ns

from corral.containment.kernel.inotify import InotifyWatches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Known = tuple[str, str, int, int]  # path, role, inode, ctime

MAX_COMPARED = 1  # directories to compare by ctime; above it, inotify is used from the third command on
MAX_NAMES = 8  # new names in a directory to look at one by one; with more the directory is listed
MAX_WATCHED = 16_384  # directories; a larger project is compared by ctime, which takes about 2 ms per thousand
# Most processes of the command line run one command: comparing costs them less than setting up inotify.
COMPARED_SCANS = 2
# A ctime has the resolution of the kernel's clock tick: a later change within this time may get the same ctime.
SETTLED_NS = 50_000_000
COARSE_NS = 2_100_000_000
NO_CTIME = -1  # equals the ctime of no file
_NEVER_INOTIFY = -(1 << 62)  # a number of scans from which COMPARED_SCANS is never reached


def ctime_of(path: str) -> int:
    """Return the ctime of a path in nanoseconds, or 0 if it does not exist."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0


def comparable_ctime(ctime: int) -> int:
    """Return a ctime to compare with later, or NO_CTIME if it is so recent that another change may get the same one."""
    # Some file systems store whole seconds, or two.
    recent = SETTLED_NS if ctime % 1_000_000_000 else COARSE_NS
    return ctime if ctime < time_ns() - recent else NO_CTIME


class DirectoryTracker:
    """The directories to watch, by path, with the role of each."""

    def __init__(self, known: Iterable[Known]) -> None:
        self.roles: dict[str, str] = {}
        self._inodes: dict[str, int] = {}
        self._ctimes: dict[str, int] = {}
        for path, role, inode, ctime in known:
            self.roles[path], self._inodes[path], self._ctimes[path] = role, inode, ctime
        self._inotify: InotifyWatches | None = None
        self._unwatchable: set[str] = set()  # directories that inotify cannot watch; listed after every command
        self._scans = 0
        self._others: tuple[str, ...] = ()  # watched for `other_changes`
        self._are_others_watched = False

    def changed(self, is_ignorable: Callable[[str, str], bool]) -> list[str]:
        """Return the directories in which a name may have appeared. `is_ignorable(directory, name)` filters single names."""
        events = None
        if self._inotify is not None:
            events = self._inotify.changed()
            if events is None:
                self._watch_all()
        else:
            self._scans += 1
            if self._scans > COMPARED_SCANS and MAX_COMPARED < len(self.roles) <= MAX_WATCHED:
                self._watch_all()
        if events is None:
            # Also right after inotify was set up: it does not report earlier changes.
            return [path for path, ctime in self._ctimes.items() if ctime_of(path) != ctime]
        appeared, gone = events
        if not (appeared or gone or self._unwatchable):
            return []
        for path in gone:
            self.forget(path)
        found = [
            path
            for path, names in appeared.items()
            if len(names) > MAX_NAMES or not all(is_ignorable(path, os.fsdecode(name)) for name in names)
        ]
        return [path for path in (*found, *self._unwatchable) if path in self.roles]

    def other_changes(self, paths: tuple[str, ...]) -> int | None:
        """Return a number that grows when something happens to one of these other paths, or None if that is not known."""
        if self._inotify is None:
            return None
        if paths is not self._others or not self._are_others_watched:
            self._others = paths
            self._are_others_watched = self._watch_others(self._inotify)
        return self._inotify.count() if self._are_others_watched else None

    def _watch_others(self, inotify: InotifyWatches) -> bool:
        try:
            for path in self._others:
                inotify.add_counted(path)
        except OSError:
            # One may be gone already. The next call tries again.
            return False
        return True

    def holds(self, path: str, inode: int) -> bool:
        """Say whether this very directory is tracked, and not an earlier one of the same name."""
        return self._inodes.get(path) == inode

    def is_unchanged(self, path: str, ctime: int) -> bool:
        """Say whether a directory still has the ctime that was noted for it."""
        return self._ctimes.get(path) == ctime

    def enter(self, path: str, role: str, inode: int) -> None:
        """Track a directory from now on."""
        self.roles[path], self._inodes[path], self._ctimes[path] = role, inode, NO_CTIME
        if self._inotify is not None:
            self._watch(self._inotify, path)

    def listed(self, path: str, ctime: int) -> None:
        """Note that a directory was listed completely. `ctime` was read before that."""
        self._ctimes[path] = comparable_ctime(ctime)
        if path in self._unwatchable and self._inotify is not None:
            self._unwatchable.discard(path)
            self._watch(self._inotify, path)

    def set_unwatchable(self, path: str) -> None:
        """Try a directory that cannot be listed again after each command: inotify does not report when it becomes readable."""
        self._unwatchable.add(path)

    def forget(self, path: str) -> None:
        """Stop tracking a directory."""
        for table in (self.roles, self._ctimes, self._inodes):
            table.pop(path, None)
        self._unwatchable.discard(path)

    def forget_below(self, path: str) -> None:
        """Stop tracking everything below a directory, so that the next listing finds it as new."""
        for inner in [inner for inner in self.roles if inner.startswith(f"{path}/")]:
            self.forget(inner)

    def close(self) -> None:
        """Close the inotify descriptor. A fork calls this too: the events are its parent's."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
            self._are_others_watched = False

    def end(self) -> None:
        """Close for good: a scan after a late command must not open inotify again, which would never be closed."""
        self._scans = _NEVER_INOTIFY
        self.close()

    def _watch_all(self) -> None:
        try:
            if self._inotify is None:
                self._inotify = InotifyWatches()
        except OSError:
            # The user's limit of inotify instances is reached. Comparing ctimes is slower and finds the same.
            self._scans = _NEVER_INOTIFY
            return
        # A directory that was moved has another path now, and whatever took its place is watched under the old one.
        self._inotify.forget()
        gone = "\0"
        for path in sorted(self.roles, key=lambda path: path.replace("/", "\0")):
            if path.startswith(gone):
                # A directory above it was replaced, perhaps by a link: this path would watch a directory elsewhere.
                self.forget(path)
            elif self._inotify is not None:
                self._watch(self._inotify, path)
                gone = gone if path in self.roles else f"{path}/"

    def _watch(self, inotify: InotifyWatches, path: str) -> None:
        try:
            inotify.add(path)
        except (FileNotFoundError, NotADirectoryError):
            self.forget(path)
        except PermissionError:
            self._unwatchable.add(path)
        except OSError:
            self.end()

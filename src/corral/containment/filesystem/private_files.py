"""Finds the files in /etc, /opt and /usr/local/etc that other users may not read. The sandbox of root hides them.

Root owns most of them, so file modes do not keep its commands out: keys of services, passwords of databases, tokens of agents.
"""

from __future__ import annotations

import os
import stat
from collections import deque

from corral._lib.fork_lock import ForkSafeLock, ProcessOwner
from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import MAX_LINKS
from corral.containment.kernel.inotify import InotifyWatches
from corral.guard.path_zones import inside
from corral.guard.toolchains import SYSTEM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ROOTS = ("/etc", "/usr/local/etc", "/opt")
MAX_ENTRIES = 10_000  # in each of them, about 40 ms; /opt may hold millions. A directory beyond it is hidden
MAX_TRUSTED_ENTRIES = 4_000  # in an installation on PATH, or behind a link to /usr; a directory beyond it stays
MAX_IN_DIRECTORY = 50  # hidden files in one directory; with more the directory is hidden
MAX_BYTES = 24_000  # of all paths, against a packet that is too large

_Identity = tuple[str, int, int, int]  # path, device, inode, ctime


@frozen
class Scan(Record):
    """The paths to hide, what each of them is now, and the directories in which others can appear."""

    paths: tuple[str, ...] = ()
    identities: frozenset[_Identity] = frozenset()
    directories: tuple[str, ...] = ()


NOTHING = Scan()


class PrivateFiles:
    """Searches for files that other users may not read, outside the paths that are `named`: by a grant or by PATH."""

    def __init__(
        self, named: Iterable[str] = (), installations: Iterable[str] = (), roots: Iterable[str] = ROOTS
    ) -> None:
        # Commands do not see the target of /opt where it is a link.
        self._roots = [root for root in roots if os.path.isdir(root) and os.path.realpath(root) == root]
        self._named = {path for path in named if any(inside(path, root) for root in self._roots)}
        self._installations = [path for path in installations if any(inside(path, root) for root in self._roots)]
        self._leading = {above for path in (*self._named, *self._installations) for above in _above(path)}

    def recall(self) -> Scan:
        """Return the result of a search: of an earlier one in this process, if the kernel has reported no change since."""
        key = (*sorted(self._named), "", *self._installations, "", *self._roots)
        with _SCANS_LOCK:
            known = _SCANS.get(key)
            if known is not None and known[1] >= 0 and WATCH.count() == known[1] and _are_there(known[0]):
                return known[0]
            if known is None:
                # Most processes make one sandbox, and watching takes longer than a part of the search.
                _SCANS[key] = scan, _ = self.scan(), -1
                return scan
            watched: set[str] = set()
            scan = known[0]
            # Before the search: what changes after that is reported. New directories are searched once more.
            while new := set(scan.directories) - watched:
                if not WATCH.add(new):
                    _SCANS[key] = scan, _ = self.scan(), -1
                    return scan
                watched |= new
                count = WATCH.count()
                scan = self.scan()
            _SCANS[key] = scan, count
            return scan

    def scan(self) -> Scan:
        """Search once."""
        search = _Search({*self._named, *self._installations}, self._leading)
        for root in self._roots:
            search.judge(root, os.lstat(root))
            search.walk(MAX_ENTRIES, hides_unread=True)
        # An installation that root made for itself, with no right for others, is used all the same: it is on PATH.
        search.pending.extend(path for path in self._installations if _may_enter(path))
        search.walk(MAX_TRUSTED_ENTRIES, hides_unread=False)
        for link in tuple(search.links):
            search.follow(link, self._roots)
        search.walk(MAX_TRUSTED_ENTRIES, hides_unread=False)
        return search.result()


class _Search:
    """The state of one search, breadth first: what programs are configured with is rarely deep."""

    def __init__(self, skipped: set[str], leading: set[str]) -> None:
        self.skipped, self.leading = skipped, leading
        self.pending: deque[str] = deque()
        self.links: list[str] = []
        self._found: dict[str, _Identity] = {}
        self._seen: dict[str, None] = {}
        self._targets: dict[tuple[str, str], str] = {}  # by the directory of a link and that of its text
        self._steps: dict[str, tuple[str, os.stat_result] | None] = {}  # the target of each name on the way of a link

    def judge(self, path: str, status: os.stat_result) -> None:
        """Hide a path that other users may not read. Search in a directory that they may enter."""
        if path in self.skipped:
            return
        if not stat.S_ISDIR(status.st_mode):
            if not status.st_mode & stat.S_IROTH:
                self.hide(path, status)
        elif status.st_mode & stat.S_IXOTH or path in self.leading:
            self.pending.append(path)
        else:
            self.hide(path, status)

    def hide(self, path: str, status: os.stat_result) -> None:
        # With the ctime: a new file may get the inode of a deleted one, and the mask of that is gone.
        self._found[path] = (path, status.st_dev, status.st_ino, status.st_ctime_ns)

    def walk(self, left: int, *, hides_unread: bool) -> None:
        """Judge what is below the pending directories, at most `left` entries."""
        while self.pending:
            directory = self.pending.popleft()
            if directory in self._seen:
                continue
            if left <= 0 and directory not in self.leading:
                if hides_unread:
                    self.hide_unread(directory)
                continue
            self._seen[directory] = None
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        left -= 1
                        self.judge_entry(entry)
            except FileNotFoundError:
                continue
            except OSError:
                # Root reads every directory of a local file system. What cannot be searched is not shown.
                if directory not in self.leading:
                    self.hide_unread(directory)

    def judge_entry(self, entry: os.DirEntry[str]) -> None:
        """Judge an entry of a directory, and remember a link for later."""
        if entry.is_symlink():
            self.links.append(entry.path)
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        self.judge(entry.path, status)

    def hide_unread(self, directory: str) -> None:
        """Hide a directory that was not searched, unless it was removed meanwhile."""
        try:
            self.hide(directory, os.lstat(directory))
        except FileNotFoundError:
            return

    def follow(self, link: str, roots: list[str]) -> None:
        """Judge the target of a link that leads out of the searched directories, such as /etc/app to /usr/share/app."""
        directory = link.rpartition("/")[0]
        try:
            above, slash, name = os.readlink(link).rstrip("/").rpartition("/")
        except OSError:
            return
        # Hundreds of links in /etc lead to a few directories.
        if (directory, above) not in self._targets:
            found = self.resolve(directory, above, MAX_LINKS)
            is_outside = (
                found is not None and self.may_pass(*found) and not any(inside(found[0], root) for root in roots)
            )
            self._targets[directory, above] = found[0] if found is not None and is_outside else ""
        # In the searched directories it is judged by itself.
        base = self._targets[directory, above]
        target = self.step(base, name, MAX_LINKS) if slash and base and name not in ("", ".", "..") else None
        if target is not None and not any(inside(target[0], root) for root in roots):
            self.judge(*target)

    def step(self, directory: str, name: str, links: int) -> tuple[str, os.stat_result] | None:
        """Resolve a name in a real directory. Return None if commands do not see the target or now do not: a closed directory is hidden."""
        path = f"{directory}/{name}"
        if path not in self._steps:
            self._steps[path] = None  # for a loop of links
            try:
                status = os.lstat(path)
                is_link = stat.S_ISLNK(status.st_mode)
                self._steps[path] = self.resolve(directory, os.readlink(path), links - 1) if is_link else (path, status)
            except OSError:
                # It leads nowhere, or was removed meanwhile.
                return None
        return self._steps[path]

    def resolve(self, at: str, text: str, links: int) -> tuple[str, os.stat_result] | None:
        """Resolve the text of a link in a real directory, one name after the other."""
        found: tuple[str, os.stat_result] | None = None
        at = "" if text.startswith("/") else at
        for name in text.split("/") if links else ():
            if name == "..":
                at = at.rpartition("/")[0]
            elif name not in ("", "."):
                if found is not None and not self.may_pass(*found):
                    return None
                found = self.step(at, name, links)
                if found is None or not any(inside(found[0], shown) for shown in SYSTEM):
                    return None
                at = found[0]
        return found

    def may_pass(self, directory: str, status: os.stat_result) -> bool:
        """Say whether other users may enter a directory. If they may not, hide it."""
        if status.st_mode & stat.S_IXOTH or directory in self.leading:
            return True
        self.hide(directory, status)
        return False

    def result(self) -> Scan:
        """Return what was found. Where too many files are hidden, their directory is hidden instead."""
        paths = set(self._found)
        counts: dict[str, int] = {}
        for path in paths:
            counts[os.path.dirname(path)] = counts.get(os.path.dirname(path), 0) + 1
        full = {above for above, count in counts.items() if count > MAX_IN_DIRECTORY and self.may_hide(above)}
        paths = {os.path.dirname(path) if os.path.dirname(path) in full else path for path in paths}
        while sum(map(len, paths)) > MAX_BYTES:
            deepest = max((path.count("/") for path in paths if self.may_hide(os.path.dirname(path))), default=0)
            if not deepest:
                break
            paths = {
                above if path.count("/") == deepest and self.may_hide(above := os.path.dirname(path)) else path
                for path in paths
            }
        paths = {path for path in paths if not any(above in paths for above in _above(path))}
        return Scan(tuple(sorted(paths)), frozenset(self._found.values()), tuple(self._seen))

    def may_hide(self, directory: str) -> bool:
        """Say whether a whole directory may be hidden for what is in it: not a root, and nothing that is named."""
        return directory.count("/") > 1 and directory not in ROOTS and directory not in self.leading


def _are_there(scan: Scan) -> bool:
    """Return whether every file that was found is still there. The kernel reports what appears and changes, not what goes."""
    for path, device, inode, ctime in scan.identities:
        try:
            status = os.lstat(path)
        except OSError:
            return False
        if (status.st_dev, status.st_ino, status.st_ctime_ns) != (device, inode, ctime):
            return False
    return True


def _may_enter(path: str) -> bool:
    return os.path.isdir(path) and bool(os.stat(path).st_mode & stat.S_IXOTH)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


class SystemWatch:
    """Counts the changes in watched directories of the machine. All sandboxes of a process share one inotify instance."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._owner = ProcessOwner(is_claimed=False)
        self._events: InotifyWatches | None = None
        self._count = 0

    def add(self, directories: Iterable[str]) -> bool:
        """Watch directories. Return whether the kernel watches all of them."""
        with self._lock:
            try:
                if self._events is None or not self._owner.is_current:
                    # A fork shares the events of its parent: what one of them reads, the other misses.
                    self._events = InotifyWatches()
                    self._owner.claim()
                for directory in directories:
                    self._add_one(self._events, directory)
            except OSError:
                return False
            return True

    @staticmethod
    def _add_one(events: InotifyWatches, directory: str) -> None:
        try:
            events.add(directory, attributes=True)
        except (FileNotFoundError, NotADirectoryError):
            # Removed meanwhile: the directory above it reports that.
            return

    def count(self) -> int:
        """Return a number that increases when a name or a mode changes in a watched directory. -1 if nothing is watched."""
        events = self._events
        if events is None or not self._owner.is_current:
            return -1
        if events.has_events():
            with self._lock:
                # Before the events are read: a thread that finds none sees this number.
                self._count += 1
                events.changed()
        return self._count


WATCH = SystemWatch()
_SCANS: dict[
    tuple[str, ...], tuple[Scan, int]
] = {}  # the last result of each search, and WATCH's count before it, or -1
_SCANS_LOCK = ForkSafeLock()

"""Protects a project where commands have no mounts: watches over the protected files that Landlock leaves writable.

Landlock keeps whole directories, such as those of git (see `landlock_tree`). A protected file elsewhere is compared after each command,
and restored. Until then a program outside can run the changed file.
"""

from __future__ import annotations

import os
import stat

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.nofollow import DIRECTORY, NEW_FILE, make_directory
from corral._lib.records import Record, frozen
from corral.containment.filesystem.directory_tracker import comparable_ctime, ctime_of
from corral.containment.filesystem.quarantine import INSTEAD, Copies, move_to_quarantine
from corral.containment.kernel.landlock_tree import closed_paths
from corral.model.call import Violation
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral.containment.filesystem.view import View
    from corral.containment.filesystem.watcher import ProtectedNameWatcher

# Of the copies that corral keeps in memory. A project with more is not opened, since the rest could not be restored.
MAX_FILES = 5_000
MAX_BYTES = 32 << 20


@frozen
class _Copy(Record):
    """A protected file as the user left it."""

    data: bytes
    mode: int
    ctime: int  # comparable, or NO_CTIME
    inode: int


class SupervisedProject:
    """The protected files of one sandbox's project that only supervision protects."""

    def __init__(self, view: View, root: str) -> None:
        closed = closed_paths(view.steps, view.rules_without_mounts)
        self._root = root
        self._roots = frozenset(path for path, right in view.rules_without_mounts if right == "write")
        pointers = [path for path, _ in view.protected.pointers]
        self._copies = _read_all((*closed.supervised, *pointers))
        self._split = {path: ctime_of(path) for path in (*closed.split, *closed.above_unreadable)}
        self._changes = 0
        self._lock = ForkSafeLock()

    def is_changed(self) -> bool:
        """Return whether a file has another content than at the start. While no command runs, the user changed it."""
        return any(self._changed())

    def _changed(self) -> Iterator[str]:
        """Yield the files that have another content or mode, or that a link in the place of a directory leads to."""
        real: dict[str, bool] = {}
        for path, copy in self._copies.items():
            above = os.path.dirname(path)
            if above not in real:
                real[above] = os.path.realpath(above) == above
            if not real[above] or _is_changed(path, copy):
                yield path

    def changes(self) -> int:
        """Return a number that grows when a name appears in a split directory: running wardens have no rule for it."""
        found = {path: ctime_of(path) for path in self._split}
        if found != self._split:
            with self._lock:
                self._changes += found != self._split
                self._split = found
        return self._changes

    def look(self, watcher: ProtectedNameWatcher) -> tuple[Violation, ...]:
        """Restore changed files, and move new protected names and git directories to quarantine."""
        with self._lock:
            copies = Copies()
            found = [self._restore(path, self._copies[path], copies) for path in list(self._changed())]
        found += watcher.look()
        made, pointers = watcher.take_made()
        for path in (*made, *(path for path in pointers if path not in self._copies)):
            # A root cannot be moved away. Without this file it is no git directory.
            planted = f"{path}/HEAD" if path in self._roots else path
            if os.path.lexists(planted):
                found.append(move_to_quarantine(planted, self._root, copies))
        return tuple(found)

    def _restore(self, path: str, copy: _Copy, copies: Copies) -> Violation:
        moved = ""
        obstacle = _obstacle(path)
        if obstacle:
            violation = move_to_quarantine(obstacle, self._root, copies)
            if os.path.lexists(obstacle):
                return violation
            moved = f"; {violation.detail}"
        try:
            inode = _write(path, copy)
        except OSError as error:
            return Violation("planted", path, f"the file could not be restored: {error.strerror}{moved}", INSTEAD)
        self._copies[path] = copy.replace(ctime=comparable_ctime(ctime_of(path)), inode=inode)
        return Violation("planted", path, f"a command changed it, and it was restored{moved}", INSTEAD)


def _read_all(paths: Iterable[str]) -> dict[str, _Copy]:
    found: dict[str, _Copy] = {}
    left = MAX_BYTES
    for path in paths:
        copy = _read(path, left)
        if copy is not None:
            found[path] = copy
            left -= len(copy.data)
        elif os.path.isfile(path) and not os.path.islink(path):
            raise ContainmentError(f"this machine has no mounts, and {path} cannot be read to watch over it")
        if left < 0 or len(found) > MAX_FILES:
            raise ContainmentError(
                f"this machine has no mounts, and the protected files of the project are too many or too large to watch: {path}"
            )
    return found


def _read(path: str, most: int) -> _Copy | None:
    """Return a copy of a file, or None if it is not a regular file: links are watched elsewhere."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # It cannot be read, or it is gone or a link.
        return None
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        data = file.read(most + 1)
    return _Copy(data, before.st_mode, comparable_ctime(before.st_ctime_ns), before.st_ino)


def _obstacle(path: str) -> str:
    """Return what is at a path, or what a command has put in the place of a directory above it, or ""."""
    at = ""
    for part in path.strip("/").split("/"):
        at = f"{at}/{part}"
        if at == path or os.path.islink(at) or (os.path.lexists(at) and not os.path.isdir(at)):
            return at if os.path.lexists(at) else ""
    return ""


def _is_changed(path: str, copy: _Copy) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return True
    if (found.st_ctime_ns, found.st_ino) == (copy.ctime, copy.inode):
        return False
    now = _read(path, len(copy.data))
    return now is None or (now.data, now.mode) != (copy.data, copy.mode)


def _write(path: str, copy: _Copy) -> int:
    """Make a file again, and the directories above it that are gone. Return its inode."""
    *above, name = path.strip("/").split("/")
    at = os.open("/", DIRECTORY)
    try:
        for part in above:
            try:
                inner = os.open(part, DIRECTORY, dir_fd=at)
            except FileNotFoundError:
                make_directory(part, at)
                inner = os.open(part, DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        with open(os.open(name, NEW_FILE, 0o600, dir_fd=at), "wb") as file:
            file.write(copy.data)
            os.fchmod(file.fileno(), stat.S_IMODE(copy.mode))
            return os.fstat(file.fileno()).st_ino
    finally:
        os.close(at)

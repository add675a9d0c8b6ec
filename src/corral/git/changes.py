"""Notices that a git directory has changed, in some microseconds."""

from __future__ import annotations

import os
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.git.safe_files import SafeTree

_NEVER = [0]  # no directory has this ctime
_WRITTEN_IN_PLACE = ("config", "HEAD", "info/exclude", "info/attributes")
HAS_FINE_TIMES = tuple(map(int, (os.uname().release + ".0").replace("-", ".").split(".")[:2])) >= (6, 13)


class WatchedDirectory:
    """A git directory as it was when it was last compared.

    Git replaces files by renaming others over them, which gives their directory another ctime. `git status` does so too, because
    it makes and removes index.lock. So the names of the git directory are looked at before it counts as changed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.watched: list[str] = []  # the directory, and what is watched in it
        self._ctimes = _NEVER
        self._names: list[tuple[str | int, ...]] = []

    def remember(self, tree: SafeTree) -> None:
        """Note how the directory is now."""
        self.watched = _watched(self._path, tree)
        self._names = _names(self._path)
        self._ctimes = _ctimes(self.watched)

    def forget(self) -> None:
        """Have it count as changed."""
        self._ctimes = _NEVER

    def is_changed(self) -> bool:
        """Say whether it may have changed since it was noted."""
        ctimes = _ctimes(self.watched)
        if ctimes == self._ctimes:
            return False
        if self._ctimes is _NEVER or ctimes[1:] != self._ctimes[1:] or _names(self._path) != self._names:
            return True
        if HAS_FINE_TIMES:
            # Else another change in this tick of the kernel's clock would have the same ctime.
            self._ctimes = ctimes
        return False


def _names(path: str) -> list[tuple[str | int, ...]]:
    found: list[tuple[str | int, ...]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                one = entry.stat(follow_symlinks=False)
                is_directory = entry.is_dir(follow_symlinks=False)
                found.append(
                    (entry.name, one.st_ino, *(() if is_directory else (one.st_ctime_ns, one.st_mtime_ns, one.st_size)))
                )
    except OSError:
        # One is gone, so this is a change.
        return [(monotonic_ns(),)]
    return sorted(found)


def _watched(path: str, tree: SafeTree) -> list[str]:
    """Return the directories in which git replaces a file when it changes anything that matters here. The first is the path.

    A program other than git may write to a file in place. For the files in which people do that, the file itself is watched too.
    """
    found = [path]
    for name in ("refs", "worktrees"):
        found += [f"{path}/{inner}" for inner in tree.directories(name)]
    # One that appears later changes the directory above it.
    inner = [f"{path}/{name}" for name in ("info", "rebase-merge", "rebase-apply", "sequencer")]
    files = [f"{path}/{name}" for name in _WRITTEN_IN_PLACE]
    return found + [each for each in inner if os.path.isdir(each)] + [each for each in files if os.path.lexists(each)]


def _ctimes(paths: list[str]) -> list[int]:
    stat_of = os.lstat
    try:
        return [stat_of(path).st_ctime_ns for path in paths]
    except OSError:
        # One is gone, so this is a change.
        return [0, monotonic_ns()]

"""Finds the machine's credential files in the directories that commands see, including files that appear later.

A package manager's lock file comes and goes, and a rotated key is a new file: the mount that hid the old one does not hide it.
"""

from __future__ import annotations

import os

from corral._lib.fork_lock import ForkSafeLock
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime, ctime_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def matching_paths(pattern: str) -> list[str]:
    """Return the existing paths that a pattern names. A pattern is a path, or the start of one followed by `*`."""
    if not pattern.endswith("*"):
        return [pattern] if os.path.lexists(pattern) else []
    above, _, head = pattern[:-1].rpartition("/")
    try:
        return [f"{above}/{name}" for name in os.listdir(above) if name.startswith(head)]
    except OSError:
        return []


class CredentialMasks:
    """Detects files that match the patterns and appeared after a warden started."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._ctimes = dict.fromkeys((os.path.dirname(pattern) for pattern in self._patterns), NO_CTIME)
        self._known = self._found()
        self._generation = 0
        self._lock = ForkSafeLock()

    def generation(self) -> int:
        """Return a generation number. It increases when a credential appears that running wardens do not mask."""
        # Every run asks, so first without the lock: `_scan` publishes the ctimes last, so equal ones mean a current generation.
        if self._read_ctimes() != self._ctimes:
            with self._lock:
                self._scan()
        return self._generation

    def _scan(self) -> None:
        # Read again under the lock: another thread may have published newer values.
        ctimes = self._read_ctimes()
        if ctimes == self._ctimes:
            return
        # Before the files are listed: a change after that has another ctime.
        published = {path: comparable_ctime(ctime) for path, ctime in ctimes.items()}
        found = self._found()
        if not found <= self._known:
            self._generation += 1
        self._known = found
        self._ctimes = published

    def _read_ctimes(self) -> dict[str, int]:
        return {path: ctime_of(path) for path in self._ctimes}

    def _found(self) -> set[tuple[str, int, int, int]]:
        found = set()
        for path in [path for pattern in self._patterns for path in matching_paths(pattern)]:
            try:
                status = os.lstat(path)
            except OSError:
                continue
            # With the ctime: a new file may get the inode of a deleted one.
            found.add((path, status.st_dev, status.st_ino, status.st_ctime_ns))
        return found

"""Finds the machine's credentials in what commands see, and notices those that appear while a sandbox lives.

A package manager's lock comes and goes, and a rotated key is another file: the mount that hid the old one is gone with it.
"""

from __future__ import annotations

import os

from corral._lib.fork_lock import ForkSafeLock
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime, ctime_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def matching_paths(pattern: str) -> list[str]:
    """Return what is there of a path, or of all paths that begin as one that ends in `*`."""
    if not pattern.endswith("*"):
        return [pattern] if os.path.lexists(pattern) else []
    above, _, head = pattern[:-1].rpartition("/")
    try:
        return [f"{above}/{name}" for name in os.listdir(above) if name.startswith(head)]
    except OSError:
        return []


class CredentialMasks:
    """Watches for files that match the patterns and appeared after a warden started."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._times = dict.fromkeys((os.path.dirname(pattern) for pattern in self._patterns), NO_CTIME)
        self._known = self._found()
        self._generation = 0
        self._looking = ForkSafeLock()

    def generation(self) -> int:
        """Return a generation number. It increases when a credential appears that running wardens do not mask."""
        # Without the lock, since every run asks: `_look` publishes the times last, so equal times mean a current generation.
        if self._read_times() != self._times:
            with self._looking:
                self._look()
        return self._generation

    def _look(self) -> None:
        # Read under the lock: times from before it may be older than those that another thread has published.
        times = self._read_times()
        if times == self._times:
            return
        # Settled before the files are listed: a change after that has another time.
        published = {path: comparable_ctime(at) for path, at in times.items()}
        found = self._found()
        if not found <= self._known:
            self._generation += 1
        self._known = found
        self._times = published

    def _read_times(self) -> dict[str, int]:
        return {path: ctime_of(path) for path in self._times}

    def _found(self) -> set[tuple[str, int, int, int]]:
        found = set()
        for path in [path for pattern in self._patterns for path in matching_paths(pattern)]:
            try:
                one = os.lstat(path)
            except OSError:
                continue
            # With the time: a file that is made anew may get the inode of the one before.
            found.add((path, one.st_dev, one.st_ino, one.st_ctime_ns))
        return found

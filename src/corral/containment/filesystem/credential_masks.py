"""Finds the machine's credential files in the directories that commands see, including files that appear later.

A package manager's lock file comes and goes, and a rotated key is a new file: the mount that hid the old one does not hide it.
"""

from __future__ import annotations

import os
from itertools import islice

from corral._lib.fork_lock import ForkSafeLock, ProcessOwner
from corral._lib.symlink_chain import matching_paths
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime, ctime_of
from corral.containment.filesystem.private_files import NOTHING, WATCH
from corral.guard.path_zones import is_credential_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.containment.filesystem.private_files import PrivateFiles, Scan

FIRST_ASKS = 2  # of the first command: for a warden that waits, and for a new one
MAX_NAMED_DEPTH = 2  # directories below a path that commands see, to search for credentials by name
MAX_NAMED_ENTRIES = 20_000  # names in all of them, about 20 ms; a read grant may hold millions of files
# Directories of packages. A measured pyenv with nine versions has 16 such files in them, all of them tests, examples and code.
_PACKAGES = (
    "python",
    "site-packages",
    "dist-packages",
    "node_modules",
    "toolchains",
    "__pycache__",
    "gems",
    "pkg",
    "store",
    "registry",
    "test",
)
_CODE = (".py", ".pyc", ".pyi", ".pyx", ".js", ".mjs", ".cjs", ".ts", ".map", ".go", ".rs", ".rb", ".c", ".h", ".cpp", ".hpp", ".java", ".class", ".kt",
         ".cs", ".php", ".lua", ".so", ".a", ".gz", ".html", ".md", ".rst", ".hs", ".hi", ".ex", ".erl", ".swift", ".pub")  # fmt: skip


def credential_files(roots: Iterable[str], explicit: tuple[str, ...]) -> list[str]:
    """Return files below the roots that have the name of a credential, such as `.env` or `server.key`.

    Near the roots only: deeper, a toolchain has thousands of packages, whose files of such names are examples and code. A directory
    in `explicit` other than a root is the user's choice, and is not searched.
    """
    found: list[str] = []
    pending = [(root, 0) for root in roots]
    left = MAX_NAMED_ENTRIES
    for directory, depth in pending:
        try:
            with os.scandir(directory) as listing:
                entries = list(islice(listing, left))
        except OSError:
            continue
        left -= len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_NAMED_DEPTH and entry.path not in explicit and not entry.name.startswith(_PACKAGES):
                    pending.append((entry.path, depth + 1))
            elif is_credential_file(entry.name) and not entry.name.endswith(_CODE) and entry.path not in explicit:
                # A program may be called gen-key.
                found += [] if os.access(entry.path, os.X_OK) else [entry.path]
    return found


class CredentialMasks:
    """Detects credentials that appeared after a warden started: files that match the patterns, and private files of root."""

    def __init__(self, patterns: Iterable[str], private: PrivateFiles | None = None, scan: Scan = NOTHING) -> None:
        self._patterns = tuple(patterns)
        self._ctimes = dict.fromkeys((os.path.dirname(pattern) for pattern in self._patterns), NO_CTIME)
        self._known = self._found()
        self._generation = 0
        self._lock = ForkSafeLock()
        self._private, self._scan_result, self._planned = private, scan, frozenset(scan.paths)
        self._asked = 0
        self._watcher = ProcessOwner(is_claimed=False)  # the process that watches for private files
        self._is_watched = False
        self._changes = -1

    def generation(self) -> int:
        """Return a generation number. It increases when a credential appears that running wardens do not mask."""
        # Every run asks, so first without the lock: `_scan` publishes the ctimes last, so equal ones mean a current generation.
        if self._read_ctimes() != self._ctimes:
            with self._lock:
                self._scan()
        if self._private is not None and self._may_have_changed():
            with self._lock:
                self._scan_private(self._private)
        return self._generation

    def added(self) -> list[str]:
        """Return the private files that are known now and were not when the plan was made."""
        return [path for path in self._scan_result.paths if path not in self._planned]

    def _may_have_changed(self) -> bool:
        if self._watcher.is_current:
            return not self._is_watched or WATCH.count() != self._changes
        self._asked += 1
        # Most processes of the command line run one command, and the plan was made just before.
        return self._asked > FIRST_ASKS

    def _scan_private(self, private: PrivateFiles) -> None:
        if self._watcher.claim():
            self._is_watched = WATCH.add(self._scan_result.directories)
        changes = WATCH.count()
        if self._is_watched and changes == self._changes:
            # Another thread has published it.
            return
        watched = set(self._scan_result.directories)
        while True:
            scan = private.scan()
            new = set(scan.directories) - watched
            if not new or not self._is_watched:
                break
            # Search again: a file may have appeared in a new directory before it was watched.
            self._is_watched = WATCH.add(new)
            watched |= new
        if not scan.identities <= self._scan_result.identities:
            self._generation += 1
        self._scan_result = scan
        self._changes = changes

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

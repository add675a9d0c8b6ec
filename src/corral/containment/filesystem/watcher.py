"""Finds protected names that a command created, and moves them to quarantine before the result returns.

The watcher tracks every directory of the project and lists each that changed. It follows no links. It does not look into git
directories: those that commands see are copies, and those that commands make are taken over as a whole.
"""

from __future__ import annotations

import os
import stat
from errno import ENAMETOOLONG

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.nofollow import open_directory
from corral.containment.filesystem.command_files import is_link_to_command_files
from corral.containment.filesystem.directory_tracker import DirectoryTracker, ctime_of
from corral.containment.filesystem.git_repos import GIT, is_repository
from corral.containment.filesystem.protected import ROLES, first_line
from corral.containment.filesystem.quarantine import INSTEAD, Copies, move_to_quarantine
from corral.model.call import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.containment.filesystem.protected import Protected

MAX_VIOLATIONS = 20  # reported one by one, against an archive full of settings


class ProtectedNameWatcher:
    """Searches one sandbox's project for new protected names."""

    def __init__(self, found: Protected, root: str) -> None:
        self._root = root
        self._mounted = frozenset((*found.readonly, *found.pinned))
        self._expected = frozenset(found.expected)
        self._absent = found.absent
        self._repositories = frozenset(found.repositories)
        self._directories = DirectoryTracker(found.directories)
        self._made: list[str] = []  # git directories that commands made
        self._pointers: list[str] = []  # `.git` files that commands made or changed
        # A killed sandbox has left the texts of the `.git` files: one that is another now was changed by its command.
        self._known_pointers = {
            path: ctime_of(path) if first_line(path) == text else 0 for path, text in found.pointers
        }
        self._names: list[str] = []  # other protected names that commands made
        self._found: list[Violation] = []
        self._lock = ForkSafeLock()
        self._used_in = os.getpid()

    def look(self) -> tuple[Violation, ...]:
        """Quarantine protected names that appeared, and return a violation for each."""
        with self._lock:
            self._search_changed()
            names, self._names = self._names, []
            found, self._found = self._found, []
            copies = Copies()
            found += [move_to_quarantine(path, self._root, copies) for path in names if os.path.lexists(path)]
        if len(found) <= MAX_VIOLATIONS:
            return tuple(found)
        # Those that are still there come first: the user has to remove them.
        found.sort(key=lambda violation: not violation.remains)
        more, last = len(found) - MAX_VIOLATIONS, found[MAX_VIOLATIONS]
        detail = f"{more} more could not be moved away" if last.remains else f"{more} more were moved to quarantine"
        summary = Violation("planted", self._root, detail, INSTEAD, remains=last.remains)
        return (*found[:MAX_VIOLATIONS], summary)

    def has_news(self) -> bool:
        """Say whether protected names or git directories appeared. `look` still finds them."""
        with self._lock:
            self._search_changed()
            return bool(self._names or self._made or self._pointers)

    def _search_changed(self) -> None:
        if self._used_in != os.getpid():
            self._used_in = os.getpid()
            self._directories.close()
        pending = self._directories.changed(self._is_ignorable)
        while pending:
            pending += self._search(pending.pop())
        self._names += [path for path in self._absent if _is_not_empty(path)]
        for path, known in self._known_pointers.items():
            ctime = ctime_of(path)
            if ctime not in (known, 0):
                self._known_pointers[path] = ctime
                self._pointers.append(path)

    def take_made(self) -> tuple[list[str], list[str]]:
        """Return the git directories and the `.git` files that `look` has found, once."""
        if not self._made and not self._pointers:
            return [], []
        with self._lock:
            found, self._made, self._pointers = (self._made, self._pointers), [], []
        return found

    def other_changes(self, paths: tuple[str, ...]) -> int | None:
        """Return a number that grows when something happens to one of these other paths, or None if that is not known."""
        with self._lock:
            return self._directories.other_changes(paths) if self._used_in == os.getpid() else None

    def settle(self, pointers: Mapping[str, str]) -> None:
        """Take these `.git` files for the host's own, if they have the texts that it wrote."""
        with self._lock:
            for path, text in pointers.items():
                ctime = ctime_of(path)
                is_same = first_line(path) == text and ctime_of(path) == ctime
                self._known_pointers[path] = ctime if is_same else 0

    def close(self) -> None:
        """Close the inotify descriptor."""
        if self._used_in == os.getpid():
            with self._lock:
                self._directories.end()

    def _search(self, path: str) -> list[str]:
        """Quarantine protected entries of a directory, and return its new subdirectories."""
        role = self._directories.roles.get(path)
        if role is None:
            return []
        ctime = ctime_of(path)
        if os.path.islink(path):
            self._directories.forget(path)
            self._directories.forget_below(path)
            return []
        try:
            listed = _list(path, is_users=self._directories.is_unchanged(path, ctime))
        except PermissionError:
            # No process can reach a file in it as long as this lasts.
            self._directories.set_unwatchable(path)
            return []
        except OSError as error:
            self._directories.forget(path)
            if error.errno == ENAMETOOLONG:
                # It cannot be searched.
                moved = move_to_quarantine(path, self._root, Copies())
                self._found.append(moved.replace(target=f"{path[:200]}…"))
            return []
        if is_repository(path, listed) and path not in self._repositories:
            # It is searched again after the next command: only a part of its entries may be moved away.
            self._made.append(path)
        found = [inner for entry in listed if (inner := self._check_entry(path, role, entry))]
        self._directories.listed(path, ctime)
        return found

    def _is_ignorable(self, directory: str, name: str) -> bool:
        """Say whether a new name is gone again."""
        try:
            os.lstat(f"{directory}/{name}")
        except FileNotFoundError:
            return True
        except OSError:
            # A command has closed the directory.
            return False
        return False

    def _check_entry(self, directory: str, role_name: str, entry: os.DirEntry[str]) -> str:
        """Quarantine an entry that is protected. Return its path if it is a new directory to search, else ""."""
        path = entry.path
        is_directory = entry.is_dir(follow_symlinks=False)
        if path in self._mounted and not (is_directory and path in self._directories.roles):
            return ""
        role = ROLES[role_name]
        inner: str | None = None
        name = role.known(entry.name, directory)
        if name == GIT and entry.is_file(follow_symlinks=False):
            if path not in self._known_pointers:
                self._known_pointers[path] = 0
        elif name == GIT and is_directory and path not in self._expected:
            if path not in self._repositories:
                self._made.append(path)
        elif (
            role.protects(name, entry)
            or path in self._expected
            or (entry.is_symlink() and _leads_to_command_files(path))
        ):
            self._names.append(path)
        elif is_directory:
            inner = role.special.get(name, "" if role.walked else None)
        if inner is None or self._directories.holds(path, entry.inode()):
            return ""
        self._directories.enter(path, inner, entry.inode())
        return path


def _leads_to_command_files(link: str) -> bool:
    try:
        return is_link_to_command_files(os.readlink(link), os.path.dirname(link), os.environ)
    except OSError:
        return False


def _is_not_empty(path: str) -> bool:
    # Agents create empty directories for settings that their user may add. Those run nothing.
    try:
        return not stat.S_ISDIR(os.lstat(path).st_mode) or bool(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _list(path: str, *, is_users: bool) -> list[os.DirEntry[str]]:
    """Return the entries of a directory. `is_users` says that no command has changed it, also not its permissions."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except PermissionError:
        if is_users and not os.access(path, os.X_OK):
            raise
        _make_listable(path)
    with os.scandir(path) as entries:
        return list(entries)


def _make_listable(path: str) -> None:
    """Restore the permissions of a directory, which a command removed to hide its entries."""
    try:
        descriptor = open_directory(path, os.O_PATH)
    except OSError:
        return
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_mode & 0o7777 | 0o500)
    except OSError:
        # It belongs to another user, so no command can write in it.
        return
    finally:
        os.close(descriptor)

"""Finds protected names that a command created, and moves them to quarantine before the result returns.

The watcher tracks every directory of the project and lists each that changed. It follows no links. A repository that a command
makes may keep what git itself writes; anything else in it that could make git run a program is moved away.
"""

from __future__ import annotations

import os
import stat
from errno import ENAMETOOLONG

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.nofollow import open_directory
from corral.containment.filesystem import git_repos
from corral.containment.filesystem.directory_tracker import NO_CTIME, DirectoryTracker, comparable_ctime, ctime_of
from corral.containment.filesystem.git_repos import BARE, GIT, LOGS, MODULES, SampleHooks, gitdir_target
from corral.containment.filesystem.protected import ROLES
from corral.containment.filesystem.quarantine import move_to_quarantine
from corral.model.call import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from corral.containment.filesystem.protected import Protected

MAX_VIOLATIONS = 20  # reported one by one, against an archive full of settings
_HOOKS = ".git/hooks"  # role of the hooks directory in a repository that a command made
_JUDGED_FILES = ("config", "config.worktree", "commondir")  # in such a repository; they can change without a new name


class ProtectedNameWatcher:
    """Searches one sandbox's project for new protected names."""

    def __init__(self, found: Protected, root: str, programs: Collection[str] = ()) -> None:
        self._root = root
        self._mounted = frozenset((*found.readonly, *found.pinned))
        self._expected = frozenset(found.expected)
        self._absent = found.absent
        self._user_repositories = frozenset(found.repositories)
        self._repositories = set(found.repositories)
        self._directories = DirectoryTracker(found.directories)
        self._user_links = frozenset(_links_written_by_git(found))
        self._judged: dict[str, int] = {}  # ctime of each judged file in the repositories that commands made
        self._pointers: list[str] = []
        self._samples = SampleHooks(programs)
        self._found: list[Violation] = []
        self._lock = ForkSafeLock()
        self._used_in = os.getpid()

    def look(self) -> tuple[Violation, ...]:
        """Quarantine protected names that appeared, and return a violation for each."""
        if self._used_in != os.getpid():
            self._used_in = os.getpid()
            self._directories.close()
        with self._lock:
            pending = self._directories.changed(self._is_ignorable)
            while pending:
                pending += self._search(pending.pop())
            if self._judged or self._pointers:
                self._judge_changed_files()
            for path in self._absent:
                if _is_not_empty(path):
                    self._quarantine(path)
            found, self._found = self._found, []
        if len(found) <= MAX_VIOLATIONS:
            return tuple(found)
        more = f"{len(found) - MAX_VIOLATIONS} more were moved to quarantine"
        return (*found[:MAX_VIOLATIONS], Violation("planted", self._root, more, found[0].instead))

    def close(self) -> None:
        """Close the inotify descriptor."""
        if self._used_in == os.getpid():
            with self._lock:
                self._directories.end()

    def _quarantine(self, path: str) -> None:
        self._found.append(move_to_quarantine(path, self._root))

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
            listed = _list(path)
        except PermissionError:
            # No process can reach a file in it as long as this lasts.
            self._directories.set_unwatchable(path)
            return []
        except OSError as error:
            self._directories.forget(path)
            if error.errno == ENAMETOOLONG:
                detail = "its path is too long to be searched"
                self._found.append(Violation("planted", f"{path[:200]}…", detail, "Remove it."))
            return []
        if role == "" and git_repos.is_repository(path, listed):
            role = self._change_role(path, BARE)
        elif role == MODULES and any(entry.name == "HEAD" for entry in listed):
            role = self._change_role(path, GIT)
        if role == _HOOKS:
            self._judge(os.path.dirname(path))
        elif role in (GIT, BARE) and path not in self._user_repositories:
            self._repositories.add(path)
            self._judge(path)
        found = [inner for entry in listed if (inner := self._check_entry(path, role, entry))]
        self._directories.listed(path, ctime)
        return found

    def _change_role(self, path: str, role: str) -> str:
        # Its entries have other roles now, so they are met as new ones.
        self._directories.roles[path] = role
        self._directories.forget_below(path)
        return role

    def _is_ignorable(self, directory: str, name: str) -> bool:
        """Say whether a new name is gone again, or is a file that git itself writes in a repository of the user's."""
        path = f"{directory}/{name}"
        try:
            is_file = stat.S_ISREG(os.lstat(path).st_mode)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        is_users = self._directories.roles.get(directory) == GIT and directory in self._user_repositories
        return is_file and is_users and name.lower() not in ROLES[GIT].noted and path not in self._expected

    def _check_entry(self, directory: str, role_name: str, entry: os.DirEntry[str]) -> str:
        """Quarantine an entry that is protected. Return its path if it is a new directory to search, else ""."""
        path = entry.path
        is_directory = entry.is_dir(follow_symlinks=False)
        if path in self._mounted and not (is_directory and path in self._directories.roles):
            return ""
        role = ROLES.get(role_name)
        inner: str | None = None
        if entry.is_symlink() and git_repos.is_written_by_git(role_name, entry.name) and path not in self._user_links:
            # The user's next commit would write through it to any file of theirs. `_judge` may have moved it already.
            if os.path.lexists(path):
                self._quarantine(path)
        elif entry.is_symlink() and role is not None and role.walked and self._leads_into_repository(entry):
            self._quarantine(path)
        elif role is not None:
            name = role.known(entry.name, directory)
            is_made = role_name in (GIT, BARE) and directory not in self._user_repositories
            if is_made and (name in ROLES[GIT].names or (name in ROLES[GIT].special and not is_directory)):
                # `_judge` has judged the repository. Only a hook can be added later without a change in this directory.
                inner = _HOOKS if name == "hooks" and is_directory else None
            elif name == GIT and not is_directory and role.walked:
                self._pointers.append(path)
            elif name in role.names or (name in role.special and not is_directory) or path in self._expected:
                self._quarantine(path)
            elif is_directory:
                inner = _role_below(path, role_name, role.special.get(name, "" if role.walked else None))
        if inner is None or self._directories.holds(path, entry.inode()):
            return ""
        self._directories.enter(path, inner, entry.inode())
        return path

    def _leads_into_repository(self, entry: os.DirEntry[str]) -> bool:
        """Say whether a link leads to a directory inside a repository, which is not searched for protected names."""
        try:
            if not entry.is_dir():
                return False
            target = os.path.realpath(entry.path)
        except OSError:
            # Another command changes the link now. That changes the directory, which is searched again.
            return False
        return any(target.startswith(f"{repository}/") for repository in self._repositories)

    def _judge(self, directory: str) -> None:
        """Quarantine the entries that could make git run a program, in a repository that a command made."""
        try:
            found = git_repos.risky_entries(directory, self._repositories, self._samples)
        except FileNotFoundError:
            return
        except OSError:
            # It cannot be read, so nothing in it is known to be harmless.
            self._quarantine(directory)
            return
        for name in found:
            self._quarantine(f"{directory}/{name}")
        for name in _JUDGED_FILES:
            self._note(f"{directory}/{name}")

    def _note(self, path: str) -> None:
        ctime = ctime_of(path)
        if ctime:
            self._judged[path] = comparable_ctime(ctime)
        else:
            self._judged.pop(path, None)

    def _judge_changed_files(self) -> None:
        """Judge files that changed without a new name. Pointers come last, when all repositories are known."""
        for path in [path for path, ctime in self._judged.items() if ctime_of(path) != ctime]:
            if os.path.basename(path) == GIT:
                self._pointers.append(path)
            else:
                self._judge(os.path.dirname(path))
        pointers, self._pointers = self._pointers, []
        for path in pointers:
            if os.path.lexists(path) and gitdir_target(path) not in self._repositories:
                self._quarantine(path)
            self._note(path)


def _role_below(path: str, above: str, role: str | None) -> str | None:
    if above == MODULES and os.path.lexists(f"{path}/HEAD"):
        return GIT
    return role or above if above in (LOGS, MODULES) else role


def _links_written_by_git(found: Protected) -> Iterator[str]:
    """Yield the user's own links among the names that git writes."""
    for path, role, _, ctime in found.directories:
        # A link in a directory that changed since the search may be a command's.
        if role not in (GIT, BARE, LOGS) or ctime not in (NO_CTIME, ctime_of(path)):
            continue
        try:
            with os.scandir(path) as entries:
                yield from (entry.path for entry in entries if entry.is_symlink())
        except OSError:
            continue


def _is_not_empty(path: str) -> bool:
    # Agents create empty directories for settings that their user may add. Those run nothing.
    try:
        return not stat.S_ISDIR(os.lstat(path).st_mode) or bool(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _list(path: str) -> list[os.DirEntry[str]]:
    for _ in range(2):
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except PermissionError:
            if not os.access(path, os.X_OK):
                raise
            _make_listable(path)
    raise PermissionError(13, "it can be entered but not listed", path)


def _make_listable(path: str) -> None:
    """Restore the read permission of a directory, which a command removed to hide its entries."""
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

"""Looks after each command for protected names that were not there before, and moves them out of the way before the result returns.

Every directory of the project is looked at, and listed only when it has changed. Links are never followed. A repository that a
command makes may stay with what git puts there; what could make git run something is moved away.
"""

from __future__ import annotations

import os
import stat
from errno import ENAMETOOLONG

from corral._lib.fork_lock import ForkSafeLock
from corral.containment.filesystem.directory_tracker import NO_CTIME, DirectoryTracker, comparable_ctime, ctime_of
from corral.containment.filesystem.git_repos import (
    BARE,
    GIT,
    LOGS,
    MODULES,
    SampleHooks,
    gitdir_target,
    is_repository,
    is_written_by_git,
    risky_entries,
)
from corral.containment.filesystem.protected import ROLES
from corral.containment.filesystem.quarantine import move_to_quarantine, open_directory_nofollow
from corral.model.call import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from corral.containment.filesystem.protected import Protected

MAX_VIOLATIONS = 20  # told one by one, against an archive full of settings
_HOOKS = ".git/hooks"  # the role of the hooks in a repository that a command made
_JUDGED = ("config", "config.worktree", "commondir")  # files of such a repository that may be changed later
_TOO_DEEP = "it lies too deep to be looked through"
_REMOVE = "Remove it."


class ProtectedNameWatcher:
    """The protected names that may appear in one sandbox."""

    def __init__(self, found: Protected, root: str, programs: Collection[str] = ()) -> None:
        self._root = root
        self._kept = frozenset((*found.readonly, *found.pinned))
        self._expected = frozenset(found.expected)
        self._absent = found.absent
        self._owners = frozenset(found.repositories)
        self._repositories = set(found.repositories)
        self._directories = DirectoryTracker(found.directories)
        self._links = frozenset(_links_of(found))
        self._judged: dict[str, int] = {}  # files of repositories that commands made, and when each was last changed
        self._pointers: list[str] = []
        self._samples = SampleHooks(programs)
        self._found: list[Violation] = []
        self._lock = ForkSafeLock()
        self._used_in = os.getpid()

    def look(self) -> tuple[Violation, ...]:
        """Quarantine what has appeared, and return a violation for each."""
        if self._used_in != os.getpid():
            self._used_in = os.getpid()
            self._directories.forked()
        with self._lock:
            pending = self._directories.changed(self._is_nothing)
            while pending:
                pending += self._search(pending.pop())
            if self._judged or self._pointers:
                self._judge_again()
            for path in self._absent:
                if _holds_something(path):
                    self._quarantine(path)
            return self._told() if self._found else ()

    def close(self) -> None:
        """Let go of what the kernel holds."""
        if self._used_in == os.getpid():
            with self._lock:
                self._directories.end()

    def _told(self) -> tuple[Violation, ...]:
        found, self._found = self._found, []
        if len(found) <= MAX_VIOLATIONS:
            return tuple(found)
        more = Violation("planted", self._root, f"{len(found) - MAX_VIOLATIONS} more were moved away", found[0].instead)
        return (*found[:MAX_VIOLATIONS], more)

    def _quarantine(self, path: str) -> None:
        self._found.append(move_to_quarantine(path, self._root))

    def _search(self, path: str) -> list[str]:
        """Look through a directory, and return those in it that are new."""
        role = self._directories.roles.get(path)
        if role is None:
            return []
        changed = ctime_of(path)
        if os.path.islink(path):
            self._directories.forget(path)
            self._directories.forget_below(path)
            return []
        try:
            listed = _list(path)
        except OSError as error:
            self._unlisted(path, error)
            return []
        if role == "" and is_repository(path, listed):
            role = self._becomes(path, BARE)
        elif role == MODULES and any(entry.name == "HEAD" for entry in listed):
            role = self._becomes(path, GIT)
        if role == _HOOKS:
            self._judge(os.path.dirname(path))
        elif role in (GIT, BARE) and path not in self._owners:
            self._repositories.add(path)
            self._judge(path)
        found = [inner for entry in listed if (inner := self._meet(path, role, entry))]
        self._directories.listed(path, changed)
        return found

    def _becomes(self, path: str, role: str) -> str:
        """Take a directory for a repository from now on, and what lies in it for a repository's."""
        self._directories.roles[path] = role
        self._directories.forget_below(path)
        return role

    def _is_nothing(self, directory: str, name: str) -> bool:
        """Say whether a name that has appeared is gone again, or is what git itself writes in a repository of the owner's."""
        path = f"{directory}/{name}"
        try:
            is_file = stat.S_ISREG(os.lstat(path).st_mode)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        is_owners = self._directories.roles.get(directory) == GIT and directory in self._owners
        return is_file and is_owners and name.lower() not in ROLES[GIT].noted and path not in self._expected

    def _unlisted(self, path: str, error: OSError) -> None:
        if isinstance(error, PermissionError):
            # What nobody can enter harms nobody.
            self._directories.shut(path)
            return
        self._directories.forget(path)
        if error.errno == ENAMETOOLONG:
            self._found.append(Violation("planted", f"{path[:200]}…", _TOO_DEEP, _REMOVE))

    def _meet(self, directory: str, role_name: str, entry: os.DirEntry[str]) -> str:
        """Quarantine an entry that is protected; return its path if it is a directory to look through that was not known."""
        path = entry.path
        is_directory = entry.is_dir(follow_symlinks=False)
        if path in self._kept and not (is_directory and path in self._directories.roles):
            return ""
        role = ROLES.get(role_name)
        inner: str | None = None
        if entry.is_symlink() and is_written_by_git(role_name, entry.name) and path not in self._links:
            # The owner's next commit would go through it, to any file of theirs. Hooks were judged, and moved, by now.
            if os.path.lexists(path):
                self._quarantine(path)
        elif entry.is_symlink() and role is not None and role.walked and self._hides(entry):
            self._quarantine(path)
        elif role is not None:
            name = role.known(entry.name, directory)
            made = role_name in (GIT, BARE) and directory not in self._owners
            if made and (name in ROLES[GIT].names or (name in ROLES[GIT].special and not is_directory)):
                # Judged as a whole by now; hooks alone can come without a change here.
                inner = _HOOKS if name == "hooks" and is_directory else None
            elif name == GIT and not is_directory and role.walked:
                self._pointers.append(path)
            elif name in role.names or (name in role.special and not is_directory) or path in self._expected:
                self._quarantine(path)
            elif is_directory:
                inner = self._role_of(path, role_name, role.special.get(name, "" if role.walked else None))
        if inner is None or self._directories.holds(path, entry.inode()):
            return ""
        self._directories.enter(path, inner, entry.inode())
        return path

    def _hides(self, entry: os.DirEntry[str]) -> bool:
        """Say whether a link leads to a directory inside a repository, where nobody looks for what is protected."""
        try:
            if not entry.is_dir():
                return False
            target = os.path.realpath(entry.path)
        except OSError:
            # Another command changes it at this moment, and so the directory, which is looked at again.
            return False
        return any(target.startswith(f"{repository}/") for repository in self._repositories)

    def _role_of(self, path: str, above: str, role: str | None) -> str | None:
        if above == MODULES and os.path.lexists(f"{path}/HEAD"):
            return GIT
        return role or above if above in (LOGS, MODULES) else role

    def _judge(self, directory: str) -> None:
        """Move away what could make git run something in a repository that a command made."""
        try:
            found = risky_entries(directory, self._repositories, self._samples)
        except FileNotFoundError:
            return
        except OSError:
            # It cannot be read, so nothing in it is known to be harmless.
            self._quarantine(directory)
            return
        for name in found:
            self._quarantine(f"{directory}/{name}")
        for name in _JUDGED:
            self._note(f"{directory}/{name}")

    def _note(self, path: str) -> None:
        changed = ctime_of(path)
        if changed:
            self._judged[path] = comparable_ctime(changed)
        else:
            self._judged.pop(path, None)

    def _judge_again(self) -> None:
        """Judge what has changed without a name appearing; pointers last, when all repositories are known."""
        again = [path for path, known in self._judged.items() if ctime_of(path) != known]
        for path in again:
            if os.path.basename(path) == GIT:
                self._pointers.append(path)
            else:
                self._judge(os.path.dirname(path))
        pointers, self._pointers = self._pointers, []
        for path in pointers:
            if os.path.lexists(path) and gitdir_target(path) not in self._repositories:
                self._quarantine(path)
            self._note(path)


def _links_of(found: Protected) -> Iterator[str]:
    """Yield the owner's own links among what git writes. In a directory that has changed since nobody can tell whose they are."""
    for path, role, _, changed in found.directories:
        if role not in (GIT, BARE, LOGS) or changed not in (NO_CTIME, ctime_of(path)):
            continue
        try:
            with os.scandir(path) as entries:
                yield from (entry.path for entry in entries if entry.is_symlink())
        except OSError:
            continue


def _holds_something(path: str) -> bool:
    # Agents make directories for what their owner may put there; an empty one runs nothing.
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
    raise PermissionError(13, "it can be entered and not be listed", path)


def _make_listable(path: str) -> None:
    """Give the owner of a directory the right to list it, which a command has taken away to hide what lies there."""
    try:
        descriptor = open_directory_nofollow(path, os.O_PATH)
    except OSError:
        return
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_mode & 0o7777 | 0o500)
    except OSError:
        # Somebody else's, in which no command of this user can write.
        return
    finally:
        os.close(descriptor)

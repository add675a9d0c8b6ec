"""Finds the hooks, settings and start-up files in a project that run later outside the sandbox. Reads the disk, changes nothing.

The names come from the table of places, which the guard uses too.
"""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime
from corral.containment.filesystem.git_repos import BARE, GIT, LOGS, MODULES, configured_paths, is_repository
from corral.guard.path_zones import inside
from corral.guard.rules.loader import places
from corral.policy.user_dirs import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

MAX_TEXT_BYTES = 1 << 16  # against a large file in the place of a pointer or a configuration


class DirectoryRole:
    """The meaning of a directory: its protected names, the roles of its subdirectories, and whether all of those are walked."""

    __slots__ = ("names", "noted", "special", "walked")

    def __init__(self, names: Iterable[str], special: Mapping[str, str], *, walked: bool) -> None:
        self.names = frozenset(names)
        self.special = special
        self.walked = walked
        # In lower case, because some file systems ignore case. Entries whose names are not among these need no second look.
        self.noted = frozenset(name.lower() for name in (*names, *special, "HEAD"))

    def known(self, name: str, directory: str) -> str:
        """Return the protected name by which an entry can be opened, if the file system ignores case; else its own name."""
        if name in self.names or name in self.special or name.lower() not in self.noted:
            return name
        for other in (*self.names, *self.special):
            if other.lower() == name.lower() and _is_same(f"{directory}/{other}", f"{directory}/{name}"):
                return other
        return name


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def _roles() -> dict[str, DirectoryRole]:
    """Return the roles by name. The empty name is the role of an ordinary directory, the others are directories of patterns."""
    names: dict[str, set[str]] = {"": set()}
    special: dict[str, dict[str, str]] = {"": {}}
    for pattern in places()["protected"]:
        *above, last = pattern.removesuffix("/**").split("/")
        at = ""
        for name in above:
            inner = f"{at}/{name}" if at else name
            special[at][name] = inner
            names.setdefault(inner, set())
            special.setdefault(inner, {})
            at = inner
        if (at, last) not in (("", GIT), (GIT, "modules")):
            names[at].add(last)
    special[GIT] |= {"modules": MODULES, "worktrees": MODULES, "logs": LOGS}
    # A directory that only looks like a repository may hold anything in these.
    roles = {name: DirectoryRole(names[""], special[""], walked=True) for name in (MODULES, LOGS)}
    for at, own in names.items():
        if at == GIT:
            roles[at] = DirectoryRole(own, special[at], walked=False)
        else:
            roles[at] = DirectoryRole(names[""] | own, special[""] | special[at], walked=True)
    roles[BARE] = DirectoryRole(names[""] | names[GIT], special[""] | special[GIT], walked=True)
    return roles


ROLES = _roles()


@frozen
class Protected(Record):
    """The protected paths of a project, found before the first command."""

    pinned: tuple[str, ...] = ()  # directories that must not be renamed
    readonly: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    directories: tuple[tuple[str, str, int, int], ...] = ()  # walked: path, role, inode, ctime
    expected: tuple[str, ...] = ()  # missing paths that a link or a git configuration refers to
    absent: tuple[str, ...] = ()  # missing paths in an agent's settings that it would run


class _Finder:
    def __init__(self, root: str) -> None:
        self.root = root
        self.pinned: list[str] = []
        self.readonly: list[str] = []
        self.repositories: list[str] = []
        self.directories: list[tuple[str, str, int, int]] = []
        self.expected: list[str] = []

    def walk(self, directory: str, role: str) -> None:
        """Collect the protected paths in a directory and below."""
        pending = [(directory, role, 0)]
        while pending:
            path, role, inode = pending.pop()
            if role == GIT:
                self._add_repository(path)
            try:
                # Before the listing: an entry that appears during it counts as a later change.
                ctime = comparable_ctime(os.lstat(path).st_ctime_ns)
                with os.scandir(path) as entries:
                    listed = list(entries)
            except OSError:
                # The watcher tries it again after each command.
                self.directories.append((path, role, inode, NO_CTIME))
                continue
            if role == "" and is_repository(path, listed):
                role = BARE
                self._add_repository(path)
            self.directories.append((path, role, inode, ctime))
            meaning = ROLES[role]
            noted, walked = meaning.noted, meaning.walked
            for entry in listed:
                if entry.name.lower() in noted or role in (MODULES, LOGS):
                    inner = self._add_entry(path, entry, meaning)
                elif walked and entry.is_dir(follow_symlinks=False):
                    inner = ""
                else:
                    continue
                if inner is not None:
                    pending.append((entry.path, inner, entry.inode()))

    def _add_entry(self, directory: str, entry: os.DirEntry[str], role: DirectoryRole) -> str | None:
        """Protect an entry if its name demands it. Return the role by which to walk into it, or None."""
        name = role.known(entry.name, directory)
        is_directory = entry.is_dir(follow_symlinks=False)
        if name in role.names or (name in role.special and not is_directory):
            self._protect(entry.path)
            return None
        if not is_directory:
            return None
        inner = role.special.get(name, "" if role.walked else None)
        if role is ROLES[MODULES]:
            return GIT if os.path.lexists(f"{entry.path}/HEAD") else inner or MODULES
        return inner or LOGS if role is ROLES[LOGS] else inner

    def _add_repository(self, directory: str) -> None:
        self.pinned.append(directory)
        self.repositories.append(directory)
        if os.path.lexists(f"{directory}/gitdir"):
            self._protect(f"{directory}/gitdir")
        for path in configured_paths(directory):
            self._protect_target(path)

    def _protect(self, path: str) -> None:
        self.readonly.append(path)
        if os.path.islink(path):
            self._protect_target(path)

    def _protect_target(self, path: str) -> None:
        """Protect the target of a path and every link on the way, as far as they lie in the project."""
        links, final = resolve_links(path)
        found = [*links, final] if os.path.lexists(final) else links
        if inside(final, self.root) and final not in found:
            while not os.path.lexists(os.path.dirname(final)):
                final = os.path.dirname(final)
            self.expected.append(final)
            if inside(os.path.dirname(final), self.root) and os.path.dirname(final) != self.root:
                # Otherwise a link could take the directory's place, and the watcher follows no links.
                self.pinned.append(os.path.dirname(final))
        # A link to a directory above the project would make the whole project read-only.
        self.readonly += [each for each in found if inside(each, self.root) and not inside(self.root, each)]


def find(root: str, common: Iterable[str] = (), granted: Iterable[str] = ()) -> Protected:
    """Return the protected paths in a project, in its write grants, and in the git directories that belong to it."""
    finders = [_Finder(top) for top in (root, *granted, *common)]
    for finder in finders:
        finder.walk(finder.root, GIT if finder.root in common else "")

    return Protected(
        _merged(finder.pinned for finder in finders),
        _merged(finder.readonly for finder in finders),
        _merged(finder.repositories for finder in finders),
        _merged(finder.directories for finder in finders),
        _merged(finder.expected for finder in finders),
    )


def _merged(found: Iterable[list[T]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(each for some in found for each in some))


def common_directory(root: str) -> str | None:
    """Return the git directory outside a linked worktree or submodule, if that names this project in turn.

    Without this check, a `.git` file in the project could name any directory of the user's.
    """
    word, _, target = _first_line(f"{root}/.git").strip().partition(": ")
    if word != "gitdir":
        return None
    directory = os.path.realpath(os.path.join(root, target))
    if _first_line(f"{directory}/gitdir") == f"{root}/.git":
        common = os.path.realpath(os.path.join(directory, _first_line(f"{directory}/commondir") or "."))
        return common if directory.startswith(f"{common}/worktrees/") else None
    for line in read_lines(f"{directory}/config"):
        name, _, value = line.strip().partition(" = ")
        if name == "worktree" and os.path.realpath(os.path.join(directory, value)) == root:
            return directory
    return None


def read_lines(path: str) -> list[str]:
    """Return the lines at the start of a regular file, or none if there is no such file."""
    try:
        data, _ = read_regular_file(path, MAX_TEXT_BYTES - 1, follows=True)
    except (OSError, ValueError):
        return []
    return data.decode("utf-8", "surrogateescape").splitlines()


def _first_line(path: str) -> str:
    return next(iter(read_lines(path)), "")

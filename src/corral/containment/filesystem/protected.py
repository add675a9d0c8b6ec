"""Finds what in a project runs later outside the sandbox when somebody writes it: hooks, settings, start-up files.

Reads the disk, changes nothing. The names come from the table of places, which the guard judges by too.
"""

from __future__ import annotations

import os
import stat

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime
from corral.containment.filesystem.git_repos import BARE, GIT, LOGS, MODULES, configured_paths, is_repository
from corral.guard.path_zones import inside
from corral.guard.rules.loader import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

MAX_TEXT_BYTES = 1 << 16  # against a file that is no pointer and no configuration


class DirectoryRole:
    """What a directory means: which names in it are protected, which of its directories mean more, and whether all are walked."""

    __slots__ = ("names", "noted", "special", "walked")

    def __init__(self, names: Iterable[str], special: Mapping[str, str], *, walked: bool) -> None:
        self.names = frozenset(names)
        self.special = special
        self.walked = walked
        # In small letters, as some file systems compare; what is not among these needs no second look.
        self.noted = frozenset(name.lower() for name in (*names, *special, "HEAD"))

    def known(self, name: str, directory: str) -> str:
        """Return the name that an entry has for those who look it up; another than its own where case does not count."""
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
    """Return the roles by name: the empty one is any directory's, the others are a pattern's directories."""
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
    """What is there: paths to pin and to make read-only, the repositories among them, and what was looked through.

    `directories` are a path, its role, inode and time of change; `expected` are paths that something there refers to and that are missing;
    `absent` are those in an agent's settings that would be run, and are not there.
    """

    pinned: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    directories: tuple[tuple[str, str, int, int], ...] = ()
    expected: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class _Finder:
    def __init__(self, root: str) -> None:
        self.root = root
        self.pinned: list[str] = []
        self.readonly: list[str] = []
        self.repositories: list[str] = []
        self.directories: list[tuple[str, str, int, int]] = []
        self.expected: list[str] = []

    def walk(self, directory: str, role: str) -> None:
        """Note what is protected in a directory and below."""
        pending = [(directory, role, 0)]
        while pending:
            path, role, number = pending.pop()
            if role == GIT:
                self.repository(path)
            try:
                # Before it is listed: what comes while it is being listed counts as a change.
                changed = comparable_ctime(os.lstat(path).st_ctime_ns)
                with os.scandir(path) as entries:
                    listed = list(entries)
            except OSError:
                # It is tried again after each command.
                self.directories.append((path, role, number, NO_CTIME))
                continue
            if role == "" and is_repository(path, listed):
                role = BARE
                self.repository(path)
            self.directories.append((path, role, number, changed))
            meaning = ROLES[role]
            noted, walked = meaning.noted, meaning.walked
            for entry in listed:
                if entry.name.lower() in noted or role in (MODULES, LOGS):
                    inner = self.meets(path, entry, meaning)
                elif walked and entry.is_dir(follow_symlinks=False):
                    inner = ""
                else:
                    continue
                if inner is not None:
                    pending.append((entry.path, inner, entry.inode()))

    def meets(self, directory: str, entry: os.DirEntry[str], role: DirectoryRole) -> str | None:
        """Note what an entry protects, and return the role to walk into it by."""
        name = role.known(entry.name, directory)
        is_directory = entry.is_dir(follow_symlinks=False)
        if name in role.names or (name in role.special and not is_directory):
            self.keep(entry.path)
            return None
        if not is_directory:
            return None
        inner = role.special.get(name, "" if role.walked else None)
        if role is ROLES[MODULES]:
            return GIT if os.path.lexists(f"{entry.path}/HEAD") else inner or MODULES
        return inner or LOGS if role is ROLES[LOGS] else inner

    def repository(self, directory: str) -> None:
        """Note a git directory, and what its configuration refers to."""
        self.pinned.append(directory)
        self.repositories.append(directory)
        if os.path.lexists(f"{directory}/gitdir"):
            self.keep(f"{directory}/gitdir")
        for path in configured_paths(directory):
            self.refer(path)

    def keep(self, path: str) -> None:
        """Note a path that is there; if it is a link, what it leads to as well."""
        self.readonly.append(path)
        if os.path.islink(path):
            self.refer(path)

    def refer(self, path: str) -> None:
        """Note what a path leads to, with every link on the way, as far as it lies in the project."""
        links, final = resolve_links(path)
        found = [*links, final] if os.path.lexists(final) else links
        if inside(final, self.root) and final not in found:
            while not os.path.lexists(os.path.dirname(final)):
                final = os.path.dirname(final)
            self.expected.append(final)
            if inside(os.path.dirname(final), self.root) and os.path.dirname(final) != self.root:
                # So that no link takes its place, behind which nobody looks.
                self.pinned.append(os.path.dirname(final))
        # A link to what holds the project would close all of it.
        self.readonly += [each for each in found if inside(each, self.root) and not inside(self.root, each)]


def find(root: str, common: Iterable[str] = (), granted: Iterable[str] = ()) -> Protected:
    """Return what is protected in a project, in what is granted besides, and in the git directories that belong to it."""
    finders = [_Finder(top) for top in (root, *granted, *common)]
    for finder in finders:
        finder.walk(finder.root, GIT if finder.root in common else "")

    return Protected(
        _all(finder.pinned for finder in finders),
        _all(finder.readonly for finder in finders),
        _all(finder.repositories for finder in finders),
        _all(finder.directories for finder in finders),
        _all(finder.expected for finder in finders),
    )


def _all(found: Iterable[list[T]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(each for some in found for each in some))


def common_directory(root: str) -> str | None:
    """Return the repository outside of a linked worktree or submodule, if that names this project in turn.

    Without the way back, a text in the project could name any directory of the owner's.
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
    """Return the lines of a small regular file; none where there is none."""
    try:
        # A command may have put a named pipe there, and no host is to wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return []
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        return os.read(descriptor, MAX_TEXT_BYTES).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    finally:
        os.close(descriptor)


def _first_line(path: str) -> str:
    return next(iter(read_lines(path)), "")

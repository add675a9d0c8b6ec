"""Finds the hooks, settings and start-up files in a project that run later outside the sandbox. Reads the disk, changes nothing.

The names come from the table of places, which the guard uses too.
"""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime
from corral.containment.filesystem.git_repos import GIT, configured_paths, is_repository, user_settings
from corral.containment.filesystem.shared_files import LinkSampler
from corral.guard.path_zones import inside
from corral.guard.rules.loader import places, startup_home
from corral.policy.user_dirs import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    from corral.containment.filesystem.git_repos import Setting

    T = TypeVar("T")

HOME = "~"  # role of the home directory, where more names are protected
MAX_TEXT_BYTES = 1 << 16  # against a large file in the place of a pointer or a configuration


class DirectoryRole:
    """The meaning of a directory: its protected names, the roles of its subdirectories, and whether all of those are walked."""

    __slots__ = ("globs", "names", "noted", "pointers", "special", "tails", "walked")

    def __init__(self, *patterns: tuple[set[str], dict[str, str]], walked: bool = True) -> None:
        """Make a role from the names and special directories of one or two tables. A name wins over a directory of the other table."""
        self.names = frozenset(name for names, special in patterns for name in names - special.keys())
        # Walked if they are directories, protected if they are files.
        self.pointers = frozenset(name for names, special in patterns for name in names & special.keys()) - self.names
        self.globs = tuple(name for name in self.names if "*" in name)
        self.tails = tuple(name.rpartition("*")[2].lower() for name in self.globs)
        self.special = {
            name: role for _, special in patterns for name, role in special.items() if name not in self.names
        }
        self.walked = walked
        # In lower case, because some file systems ignore case. Entries whose names are not among these need no second look.
        self.noted = frozenset(name.lower() for name in (*self.names, *self.special, "HEAD"))

    def protects(self, name: str, entry: os.DirEntry[str]) -> bool:
        """Say whether an entry runs later. `name` is the entry of the table that its name matches."""
        if name in self.names:
            return True
        # A link in the place of a directory with protected names would lead to others.
        return name in self.special and (
            entry.is_symlink() or (name in self.pointers and not entry.is_dir(follow_symlinks=False))
        )

    def known(self, name: str, directory: str) -> str:
        """Return the entry of the table that a name matches, also if the file system ignores case; else the name itself."""
        if name in self.names or name in self.special:
            return name
        lower = name.lower()
        if lower.endswith(self.tails):
            return next((glob for glob in self.globs if _fits(lower, glob.lower())), name)
        if lower not in self.noted:
            return name
        for other in (*self.names, *self.special):
            if other.lower() == name.lower() and _is_same(f"{directory}/{other}", f"{directory}/{name}"):
                return other
        return name


def _fits(name: str, glob: str) -> bool:
    head, _, tail = glob.partition("*")
    return len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def _roles() -> dict[str, DirectoryRole]:
    """Return the roles by name: "" of an ordinary directory, HOME of the home directory, the others of directories in patterns."""
    table = places()
    names: dict[str, set[str]] = {"": set(), HOME: set()}
    special: dict[str, dict[str, str]] = {"": {}, HOME: {}}
    _add_patterns(table["protected"], "", names, special)
    _add_patterns((*table["protected"], *table["secret_home"], *startup_home()), HOME, names, special)
    table_of = {at: (own, special[at]) for at, own in names.items()}
    roles = {at: DirectoryRole(table_of[""], own) for at, own in table_of.items()}
    roles[GIT] = DirectoryRole(table_of[GIT], walked=False)
    return roles


def _add_patterns(
    patterns: Iterable[str], top: str, names: dict[str, set[str]], special: dict[str, dict[str, str]]
) -> None:
    trees: list[tuple[str, str]] = []
    for pattern in patterns:
        *above, last = pattern.removesuffix("/**").split("/")
        at = top
        for name in above:
            # A repository in the home directory is like any other.
            inner = GIT if name == GIT else f"{at}/{name}" if at else name
            special[at][name] = inner
            names.setdefault(inner, set())
            special.setdefault(inner, {})
            at = inner
        if (at, last) != (GIT, "modules"):
            names[at].add(last)
            trees += [(at, last)] if pattern.endswith("/**") else []
    for at, last in trees:
        # Protected as a whole, so names of another pattern within it do not matter.
        special[at].pop(last, None)


def role_at(directory: str, home: str) -> str:
    """Return the role of a directory where a search begins: the home directory and some below it have more protected names."""
    if not home or not inside(directory, home):
        return ""
    role = HOME
    for name in directory[len(home) + 1 :].split("/"):
        role = ROLES[role].special.get(name, "") if name else role
    return role


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
    pointers: tuple[tuple[str, str], ...] = ()  # `.git` files and their text
    shared: tuple[str, ...] = ()  # files of the project with several names, as far as a quick look finds them


class _Finder:
    def __init__(self, root: str, settings: Iterable[Setting], project: str) -> None:
        self.root = root
        self._settings = settings
        self._project = project
        self.pinned: list[str] = []
        self.readonly: list[str] = []
        self.repositories: list[str] = []
        self.directories: list[tuple[str, str, int, int]] = []
        self.expected: list[str] = []
        self.pointers: list[tuple[str, str]] = []
        self.links = LinkSampler()

    def walk(self, directory: str, role: str) -> None:
        """Collect the protected paths in a directory and below."""
        pending = [(directory, role, 0)]
        while pending:
            path, role, inode = pending.pop()
            if role == GIT:
                # Commands see a copy of it, so nothing in it needs protection.
                self._add_repository(path)
                continue
            ctime = NO_CTIME
            try:
                # Before the listing: an entry that appears during it counts as a later change.
                ctime = comparable_ctime(os.lstat(path).st_ctime_ns)
                with os.scandir(path) as entries:
                    listed = list(entries)
            except OSError:
                # The watcher tries it again when its permissions were changed.
                self.directories.append((path, role, inode, ctime))
                continue
            if is_repository(path, listed):
                self._add_repository(path)
                continue
            self.directories.append((path, role, inode, ctime))
            self.links.note(listed)
            meaning = ROLES[role]
            noted, tails, walked = meaning.noted, meaning.tails, meaning.walked
            for entry in listed:
                name = entry.name.lower()
                if name in noted or name.endswith(tails):
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
        if name == GIT and entry.is_file(follow_symlinks=False):
            # Not mounted read-only: git removes it with a worktree or a submodule. The watcher looks at it after each command.
            self.pointers.append((entry.path, first_line(entry.path)))
            return None
        if role.protects(name, entry):
            self._protect(entry.path)
            return None
        if not entry.is_dir(follow_symlinks=False):
            return None
        return role.special.get(name, "" if role.walked else None)

    def _add_repository(self, directory: str) -> None:
        self.pinned.append(directory)
        self.repositories.append(directory)
        # If it is elsewhere, one of its working trees is the project.
        for top in ("",) if inside(directory, self._project) else ("", self._project):
            for path in configured_paths(directory, self._settings, top):
                self._protect_target(path)
        for above, names, _ in os.walk(f"{directory}/modules"):
            if os.path.lexists(f"{above}/HEAD"):
                names.clear()
                self._add_repository(above)

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


def find(root: str, common: Iterable[str] = (), granted: Iterable[str] = (), home: str = "") -> Protected:
    """Return the protected paths in a project, in its write grants, and in the git directories that belong to it."""
    settings = user_settings()
    finders = [_Finder(top, settings, root) for top in (root, *granted, *common)]
    for finder in finders:
        finder.walk(finder.root, GIT if finder.root in common else role_at(finder.root, home))

    return Protected(
        _merged(finder.pinned for finder in finders),
        _merged(finder.readonly for finder in finders),
        _merged(finder.repositories for finder in finders),
        _merged(finder.directories for finder in finders),
        _merged(finder.expected for finder in finders),
        pointers=_merged(finder.pointers for finder in finders),
        shared=tuple(finders[0].links.found),
    )


def _merged(found: Iterable[list[T]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(each for some in found for each in some))


def common_directory(root: str) -> str | None:
    """Return the git directory outside a linked worktree or submodule, if that names this project in turn.

    Without this check, a `.git` file in the project could name any directory of the user's.
    """
    word, _, target = first_line(f"{root}/.git").strip().partition(": ")
    if word != "gitdir":
        return None
    directory = os.path.realpath(os.path.join(root, target))
    if first_line(f"{directory}/gitdir") == f"{root}/.git":
        common = os.path.realpath(os.path.join(directory, first_line(f"{directory}/commondir") or "."))
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


def first_line(path: str) -> str:
    """Return the first line of a regular file, or "" if there is no such file."""
    return next(iter(read_lines(path)), "")

"""Finds what in a project runs later outside the sandbox when somebody writes it: hooks, settings, start-up files.

Reads the disk, changes nothing. The names come from the table of places, which the guard judges by too.
"""

from __future__ import annotations

import os
import stat

from corral.frozen import Record, frozen
from corral.rulebook import places

MAX_TEXT_BYTES = 1 << 16  # against a file that is no pointer and no configuration
_PATTERNS = [pattern.removesuffix("/**") for pattern in places()["protected"]]
_OF_GIT = tuple(pattern[5:] for pattern in _PATTERNS if pattern.startswith(".git/") and pattern != ".git/modules")
HEADS: dict[str, tuple[str, ...]] = {}  # the first component of a pattern, and what may follow it; nothing for itself
for _pattern in _PATTERNS:
    _head, _, _rest = _pattern.partition("/")
    if _head != ".git":
        HEADS[_head] = (*HEADS.get(_head, ()), _rest)


@frozen
class Protected(Record):
    """What is there: paths to pin and to make read-only; and what is not: names to look for, by directory."""

    pinned: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    absent: tuple[tuple[str, tuple[str, ...]], ...] = ()


class _Finder:
    def __init__(self) -> None:
        self.pinned: list[str] = []
        self.readonly: list[str] = []
        self.absent: dict[str, list[str]] = {}

    def miss(self, directory: str, name: str) -> None:
        self.absent.setdefault(directory, []).append(name)

    def project(self, root: str) -> None:
        """Walk a project."""
        for head in (".git", *HEADS):
            if not os.path.lexists(f"{root}/{head}"):
                self.miss(root, head)
        pending = [root]
        while pending:
            try:
                with os.scandir(pending.pop()) as entries:
                    pending += [entry.path for entry in entries if self.meets(entry)]
            except OSError:
                # What this user cannot list, no command can write to.
                continue

    def meets(self, entry: os.DirEntry[str]) -> bool:
        """Note what an entry protects, and say whether to walk into it."""
        is_directory = entry.is_dir(follow_symlinks=False)
        if entry.name == ".git":
            if is_directory:
                self.git(entry.path)
            else:
                self.readonly.append(entry.path)
            return False
        rests = HEADS.get(entry.name)
        if rests is None:
            return is_directory
        if "" in rests or not is_directory:
            self.readonly.append(entry.path)
            return False
        for rest in rests:
            self.below(entry.path, rest)
        return True

    def below(self, directory: str, name: str) -> None:
        """Note a protected name in a directory that is there."""
        above, _, last = name.rpartition("/")
        inner = f"{directory}/{above}" if above else directory
        if not os.path.isdir(inner) or os.path.islink(inner):
            self.miss(directory, name)
        elif os.path.lexists(f"{inner}/{last}"):
            self.readonly.append(f"{inner}/{last}")
        else:
            self.miss(inner, last)

    def git(self, directory: str) -> None:
        """Note what is protected in a git directory, with its modules and worktrees."""
        self.pinned.append(directory)
        for name in _OF_GIT:
            self.below(directory, name)
        if os.path.lexists(f"{directory}/gitdir"):
            self.readonly.append(f"{directory}/gitdir")
        for inner in _git_directories(f"{directory}/modules", 4) + _git_directories(f"{directory}/worktrees", 1):
            self.git(inner)


def _git_directories(directory: str, depth: int) -> list[str]:
    """Return the git directories below, as far as a submodule's name has parts."""
    found: list[str] = []
    try:
        with os.scandir(directory) as entries:
            inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return found
    for path in inner:
        if os.path.lexists(f"{path}/HEAD"):
            found.append(path)
        elif depth > 1:
            found += _git_directories(path, depth - 1)
    return found


def find(root: str, common: tuple[str, ...] = ()) -> Protected:
    """Return what is protected in a project, and in the git directories outside that belong to it."""
    finder = _Finder()
    finder.project(root)
    for directory in common:
        finder.git(directory)
    absent = tuple((directory, tuple(names)) for directory, names in finder.absent.items())
    return Protected(tuple(finder.pinned), tuple(finder.readonly), absent)


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
    for line in lines(f"{directory}/config"):
        name, _, value = line.strip().partition(" = ")
        if name == "worktree" and os.path.realpath(os.path.join(directory, value)) == root:
            return directory
    return None


def lines(path: str) -> list[str]:
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
    return next(iter(lines(path)), "")

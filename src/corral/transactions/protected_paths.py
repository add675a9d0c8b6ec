"""Decides which paths a transaction never changes: files that programs outside the sandbox run or read as configuration.

A path is protected by its name, because it was protected when the sandbox began, or because it makes a directory a repository. A
repository that the transaction itself made may have the files that git puts there.
"""

from __future__ import annotations

import os
import stat

from corral.containment.filesystem.git_repos import BARE, GIT, SampleHooks, is_written_by_git, risky_entries
from corral.containment.filesystem.protected import ROLES
from corral.guard.path_zones import inside, is_executed_later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from corral._lib.dirfd_tree import DirfdTree
    from corral.transactions.scan import Delta

_MAKE_REPOSITORY = frozenset({"HEAD", "objects", "refs"})
# Directories with some protected entries. A link in the place of one would lead to entries whose names are not protected.
_PARTLY_PROTECTED = tuple(f"/{role}" for role in ROLES if role and not role.startswith(f"{GIT}/"))
_REPOSITORY_NAMES = frozenset(name.lower() for name in (*ROLES[GIT].names, *ROLES[BARE].names, "modules", "worktrees"))


class ProtectedPaths:
    """Decides whether a path, relative to the project, is protected."""

    def __init__(
        self,
        project: DirfdTree,
        layer: DirfdTree,
        deltas: Iterable[Delta],
        kept: Collection[str],
        programs: Collection[str] = (),
    ) -> None:
        self._project = project
        self._layer = layer
        root = project.path
        self._kept = [path[len(root) + 1 :] for path in kept if inside(path, root) and path != root]
        self._made = {
            delta.path
            for delta in deltas
            if delta.old is None and delta.new is not None and delta.new.what == "directory"
        }
        self._samples = SampleHooks(programs)
        self._risky_entries: dict[str, frozenset[str]] = {}

    def __call__(self, path: str) -> bool:
        """Return whether a path is protected."""
        if any(inside(path, kept) for kept in self._kept):
            return True
        if self._replaces_directory(path) or self._redirects_git(path):
            return True
        parts = path.split("/")
        named = path  # the part that is judged by its name
        for number, part in enumerate(parts):
            directory, own = "/".join(parts[:number]), "/".join(parts[: number + 1])
            if _folded(part) == GIT and own in self._made:
                repository, below = own, "/".join(parts[number + 1 :])
            elif part in _MAKE_REPOSITORY and directory not in self._made and self._becomes_repository(directory):
                # A plain file that is there already, such as `config`, would make git run something.
                return True
            elif _folded(part) in _REPOSITORY_NAMES and self._is_repository(directory, self._layer, self._project):
                repository, below = directory, "/".join(parts[number:])
            else:
                continue
            if repository not in self._made or any(inside(below, name) for name in self._risky(repository)):
                return True
            named = directory if named == path else named
        root = self._project.path
        return is_executed_later(f"{root}/{named}", root) or is_executed_later(f"{root}/{_folded(named)}", root)

    def _risky(self, directory: str) -> frozenset[str]:
        """Return the entries of a repository made by the transaction that could make git run something."""
        if directory not in self._risky_entries:
            try:
                found = risky_entries(f"{self._layer.path}/{directory}", (), self._samples)
            except OSError:
                # corral cannot read it, so every entry counts as risky.
                found = list(self._layer.names(directory))
            self._risky_entries[directory] = frozenset(found)
        return self._risky_entries[directory]

    def _replaces_directory(self, path: str) -> bool:
        if not f"/{_folded(path)}".endswith(_PARTLY_PROTECTED):
            return False
        found = self._layer.status(path)
        # A character device is an overlay's mark for a deleted file.
        return found is not None and not stat.S_ISDIR(found.st_mode) and not stat.S_ISCHR(found.st_mode)

    def _redirects_git(self, path: str) -> bool:
        """Return whether a path is a symbolic link among the files that git writes. The user's next commit would write through it."""
        found = self._layer.status(path)
        if found is None or not stat.S_ISLNK(found.st_mode):
            return False
        parts = path.split("/")
        for number in range(1, len(parts)):
            directory, name = "/".join(parts[:number]), parts[number]
            if _folded(parts[number - 1]) == GIT:
                return True
            if is_written_by_git(BARE, name) and self._is_repository(directory, self._layer, self._project):
                return True
        return False

    def _becomes_repository(self, directory: str) -> bool:
        both = self._layer, self._project
        return self._is_repository(directory, *both) and not self._is_repository(directory, self._project)

    def _is_repository(self, directory: str, *trees: DirfdTree) -> bool:
        # Entries that the transaction deletes count too, which errs on the strict side.
        paths = (f"{directory}/{name}".lstrip("/") for name in ("HEAD", "objects", "refs", "commondir"))
        has = [any(tree.status(path) is not None for tree in trees) for path in paths]
        return has[0] and (has[3] or (has[1] and has[2]))


def _folded(name: str) -> str:
    """Return a name as file systems that ignore case compare it."""
    if name.isascii():
        return name.lower()
    import unicodedata  # noqa: PLC0415  a megabyte of tables that ASCII names do not need

    plain = unicodedata.normalize("NFD", name.casefold())
    # Such file systems ignore invisible characters.
    return "".join(char for char in plain if unicodedata.category(char) != "Cf")


def find_protected(tree: DirfdTree, directory: str, is_protected: ProtectedPaths) -> str:
    """Return a protected path below a directory, or an empty string."""
    pending = [directory]
    while pending:
        at = pending.pop()
        # No stat(2): in a directory without search permission, it would first change the user's mode.
        with os.scandir(tree.directory(at)) as entries:
            listed = [(f"{at}/{entry.name}", entry.is_dir(follow_symlinks=False)) for entry in entries]
        for path, is_directory in listed:
            if is_protected(path):
                return path
            if is_directory:
                pending.append(path)
    return ""

"""Which paths a transaction never changes, however it came by them: what runs later outside the sandbox when somebody writes it.

By name, by what was protected when the sandbox began, and by what makes a directory a repository. A repository that the
transaction itself made may come with what git puts there.
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

_MAKE_ONE = frozenset({"HEAD", "objects", "refs"})
# Directories that are protected in part; what stands for one and is none leads to names that nobody looks at.
_IN_PART = tuple(role for role in ROLES if role and not role.startswith(f"{GIT}/"))
_OF_REPOSITORIES = frozenset(name.lower() for name in (*ROLES[GIT].names, *ROLES[BARE].names, "modules", "worktrees"))


class Guarded:
    """Says of a path, relative to the project, whether it is protected."""

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
        self._judged: dict[str, frozenset[str]] = {}

    def __call__(self, path: str) -> bool:
        """Say whether a path is protected."""
        if any(inside(path, kept) for kept in self._kept):
            return True
        if self._stands_for_a_directory(path) or self._leads_git_elsewhere(path):
            return True
        parts = path.split("/")
        named = path  # what is left to be judged by its name
        for number, part in enumerate(parts):
            directory, own = "/".join(parts[:number]), "/".join(parts[: number + 1])
            if _folded(part) == GIT and own in self._made:
                repository, below = own, "/".join(parts[number + 1 :])
            elif part in _MAKE_ONE and directory not in self._made and self._becomes_repository(directory):
                # What makes git run something may lie there by now, as a file like any other.
                return True
            elif _folded(part) in _OF_REPOSITORIES and self._is_repository(directory, self._layer, self._project):
                repository, below = directory, "/".join(parts[number:])
            else:
                continue
            if repository not in self._made or self._is_suspect(repository, below):
                return True
            named = directory if named == path else named
        root = self._project.path
        return is_executed_later(f"{root}/{named}", root) or is_executed_later(f"{root}/{_folded(named)}", root)

    def _is_suspect(self, directory: str, below: str) -> bool:
        return any(inside(below, name) for name in self._suspects(directory))

    def _suspects(self, directory: str) -> frozenset[str]:
        """Return what could make git run something in a repository that the transaction made."""
        if directory not in self._judged:
            try:
                found = risky_entries(f"{self._layer.path}/{directory}", (), self._samples)
            except OSError:
                # It cannot be read, so nothing in it is known to be harmless.
                found = list(self._layer.names(directory))
            self._judged[directory] = frozenset(found)
        return self._judged[directory]

    def _stands_for_a_directory(self, path: str) -> bool:
        if not f"/{_folded(path)}".endswith(tuple(f"/{name}" for name in _IN_PART)):
            return False
        found = self._layer.status(path)
        # A character device is what an overlay has for nothing.
        return found is not None and not stat.S_ISDIR(found.st_mode) and not stat.S_ISCHR(found.st_mode)

    def _leads_git_elsewhere(self, path: str) -> bool:
        """Say whether a path is a link among what git writes: the owner's next commit would go through it, to any file of theirs."""
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
        # In either: what the transaction deletes is counted too, toward too strict.
        paths = (f"{directory}/{name}".lstrip("/") for name in ("HEAD", "objects", "refs", "commondir"))
        has = [any(tree.status(path) is not None for tree in trees) for path in paths]
        return has[0] and (has[3] or (has[1] and has[2]))


def _folded(name: str) -> str:
    """Return a name in the letters by which file systems compare that take large and small ones for the same."""
    if name.isascii():
        return name.lower()
    import unicodedata  # noqa: PLC0415  a megabyte of tables that ASCII does not need

    plain = unicodedata.normalize("NFD", name.casefold())
    # They pass over what is not to be seen.
    return "".join(char for char in plain if unicodedata.category(char) != "Cf")


def holds_protected(tree: DirfdTree, path: str, is_protected: Guarded) -> str:
    """Return something protected that lies in a directory of a tree, or nothing."""
    pending = [path]
    while pending:
        at = pending.pop()
        with os.scandir(tree.directory(at)) as entries:
            listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in listed:
            inner = f"{at}/{name}"
            if is_protected(inner):
                return inner
            if is_directory:
                pending.append(inner)
    return ""

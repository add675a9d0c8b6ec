"""Decides which paths a transaction never changes: files that programs outside the sandbox run or read as configuration.

A path is protected by its name, because it was protected when the sandbox began, or because it lies in a repository or makes a
directory one. Repositories are changed by `git_changes` alone.
"""

from __future__ import annotations

import os
import stat

from corral._lib.case_folding import folded
from corral.containment.filesystem.command_files import is_link_to_command_files
from corral.containment.filesystem.git_repos import GIT
from corral.containment.filesystem.protected import HOME, ROLES
from corral.guard.path_zones import inside, is_executed_at_home, is_executed_later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from corral._lib.dirfd_tree import DirfdTree

# Directories with some protected entries. A link in the place of one would lead to entries whose names are not protected.
_PARTLY_PROTECTED = tuple(f"/{role}" for role in ROLES if role and not role.startswith((f"{GIT}/", HOME)))


class ProtectedPaths:
    """Decides whether a path, relative to the project, is protected."""

    def __init__(self, project: DirfdTree, layer: DirfdTree, kept: Collection[str]) -> None:
        self._project = project
        self._layer = layer
        root = project.path
        self._kept = [path[len(root) + 1 :] for path in kept if inside(path, root) and path != root]
        self._repositories: dict[str, bool] = {}  # by directory
        self._home = os.path.realpath(os.environ.get("HOME") or "/nonexistent")

    def __call__(self, path: str) -> bool:
        """Return whether a path is protected."""
        if any(inside(path, kept) for kept in self._kept) or self._is_dangerous_link(path):
            return True
        parts = path.split("/")
        for number, part in enumerate(parts):
            if folded(part) == GIT or self._is_repository("/".join(parts[:number])):
                return True
        root = self._project.path
        own = f"{root}/{path}"
        return is_executed_later(own, root) or is_executed_at_home(own, root, self._home)

    def _is_dangerous_link(self, path: str) -> bool:
        found = self._layer.status(path)
        if found is None or not stat.S_ISLNK(found.st_mode):
            return False
        if f"/{folded(path)}".endswith(_PARTLY_PROTECTED):
            return True
        above, _, name = path.rpartition("/")
        text = os.readlink(name, dir_fd=self._layer.directory(above))
        return is_link_to_command_files(text, f"{self._project.path}/{above}", os.environ)

    def _is_repository(self, directory: str) -> bool:
        if directory not in self._repositories:
            # Entries that the transaction deletes count too, which errs on the strict side.
            paths = (f"{directory}/{name}".lstrip("/") for name in ("HEAD", "objects", "refs", "commondir"))
            has = [any(tree.status(path) is not None for tree in (self._layer, self._project)) for path in paths]
            self._repositories[directory] = has[0] and (has[3] or (has[1] and has[2]))
        return self._repositories[directory]


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

"""Says whether a file at one path would run later outside the sandbox. For tools that write files themselves, which no watcher follows."""

from __future__ import annotations

import os

from corral._lib.case_folding import folded
from corral.containment.filesystem.git_repos import GIT, configured_paths, user_settings
from corral.guard.path_zones import inside, is_executed_at_home, is_executed_later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_MAKE_REPOSITORY = ("HEAD", "objects", "refs", "commondir")


def runs_later(path: str, top: str, beside: Collection[str] = ()) -> bool:
    """Say whether a program outside would run or obey a resolved path below `top`, the project or a write grant.

    True for the names of runs_later.toml, for everything in a git directory, for the file that would make a directory one, and for
    files to which a git configuration or a link of such a name leads. `beside` are further paths that the same call writes.
    """
    if is_executed_later(path, top) or is_executed_at_home(
        path, top, os.path.realpath(os.environ.get("HOME") or "/nonexistent")
    ):
        return True
    directory = top
    for name in path[len(top) + 1 :].split("/"):
        # Calls that a host judges at the same time could each write a part of a repository. None is one without this file.
        if folded(name) == GIT or name == "HEAD" or _becomes_repository(directory, (path, *beside)):
            return True
        targets = map(os.path.realpath, _references(directory, top))
        # A link to a directory above the project would refuse the whole project.
        if any(inside(path, target) and inside(target, top) and target != top for target in targets):
            return True
        directory = f"{directory}/{name}"
    return False


def _becomes_repository(directory: str, written: Iterable[str]) -> bool:
    """Say whether git takes a directory for a repository, now or with the files that are written."""
    below = f"{directory}/"
    added = {folded(path[len(below) :].partition("/")[0]) for path in written if path.startswith(below)}
    # lexists: a later command can create the target of a dangling link.
    head, objects, refs, common = (
        folded(name) in added or os.path.lexists(f"{directory}/{name}") for name in _MAKE_REPOSITORY
    )
    return head and (common or (objects and refs))


def _references(directory: str, top: str) -> Iterator[str]:
    """Yield the paths that run later because something in a directory refers to them."""
    if os.path.isdir(f"{directory}/{GIT}"):
        yield from configured_paths(f"{directory}/{GIT}", user_settings())
    elif os.path.isfile(f"{directory}/{GIT}"):
        from corral.containment.filesystem.protected import common_directory  # noqa: PLC0415  few projects are worktrees

        yield from configured_paths(common_directory(directory) or directory, user_settings(), directory)
    try:
        with os.scandir(directory) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        # The directory is missing, or the tool cannot list it either.
        return
    yield from (link for link in links if is_executed_later(link, top))

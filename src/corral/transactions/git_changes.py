"""Shows, applies and undoes what the commands of a transaction did to repositories.

The commands worked on copies of the git directories. The host writes what may cross, as after any other command: see the room git.
"""

from __future__ import annotations

import os

from corral.git.comparison import INFORMING
from corral.git.made_repositories import is_plain
from corral.git.membrane import BROKEN, host_git, made_place, take_over_copy, transaction_mirrors
from corral.git.restore import KEPT_AS, MADE, noted_after, restore, snapshot, why_not
from corral.transactions.changes import Change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Any

    from corral.git.mirror import Mirror
    from corral.transactions.scan import Delta

GIT = ".git"
NO_GIT = "git is not installed"


class GitChanges:
    """The changes of one transaction to repositories."""

    def __init__(self, root: str, place: str, layer: str, made: Iterable[str]) -> None:
        self._root = root
        self._place = place
        self._mirrors = transaction_mirrors(place, (root,))
        self._layer = layer
        self.made = list(made)

    def is_inside_made(self, path: str) -> bool:
        """Return whether a path lies in a git directory that the transaction made: it is not applied as a file."""
        return any(path == made or path.startswith(f"{made}/") for made in self.made)

    def _chosen(self, chosen: Collection[str] | None) -> list[Mirror]:
        return [each for each in self._mirrors if _is_taken(os.path.relpath(each.user_dir, self._root), chosen)]

    def changes(self, chosen: Collection[str] | None = None) -> tuple[Change, ...]:
        """Return the changed refs, HEADs and indexes as changes of files, and each new repository as one."""
        found = [Change(made, "added", "directory") for made in self.made if _is_taken(made, chosen)]
        for mirror in self._chosen(chosen):
            above = os.path.relpath(mirror.user_dir, self._root)
            for name, old, new in mirror.preview():
                kind = "added" if not old and new else "deleted" if old and not new else "changed"
                found.append(Change(f"{above}/{name}", kind, "file"))
        return tuple(found)

    def diff(self) -> str:
        """Return the changed refs, one in each line."""
        lines = []
        for mirror in self._mirrors:
            above = os.path.relpath(mirror.user_dir, self._root)
            lines += [
                f"git {above}/{name}: {old or 'none'} -> {new or 'none'}\n"
                for name, old, new in mirror.preview()
                if old or new
            ]
            lines += [f"git {above}/{line}\n" for line in mirror.details()]
        return "".join(lines)

    def work(self, folder: str, chosen: Collection[str] | None) -> dict[str, Any]:
        """Return what `finish` needs, also in another process, and copy the indexes for undo to a folder."""
        changed = [mirror for mirror in self._chosen(chosen) if mirror.preview()]
        noted = [snapshot(mirror.user_dir, f"{folder}/index-{number}") for number, mirror in enumerate(changed)]
        made = [each for each in self.made if _is_taken(each, chosen)]
        noted += [
            {"git_dir": f"{self._root}/{each}", MADE: True, KEPT_AS: f"made-{number}"}
            for number, each in enumerate(made)
        ]
        chosen = None if chosen is None else [*chosen]
        return {"place": self._place, "layer": self._layer, "made": self.made, "chosen": chosen, "noted": noted}

    def apply(self, chosen: Collection[str] | None) -> list[tuple[str, str]]:
        """Write the changes for the user. Return a path and a reason for each that stays behind."""
        found = []
        for mirror in self._chosen(chosen):
            try:
                notes = mirror.compare()
            except BROKEN as error:
                notes = [str(error)]
            # Some tell what was applied, so it is not among what stays behind.
            notes = [note for note in notes if not note.startswith(INFORMING)]
            found += [(os.path.relpath(mirror.user_dir, self._root), note) for note in notes]
        git = host_git(self._root) if self.made else None
        for made in self.made:
            if not _is_taken(made, chosen):
                continue
            is_begun = os.path.isdir(made_place(self._place, f"{self._root}/{made}"))
            is_usable = is_plain(f"{self._layer}/{made}") and not os.path.lexists(f"{self._root}/{made}")
            if git is None or not (is_usable or is_begun):
                found.append((made, "it is not a plain repository, or there is one already"))
                continue
            try:
                notes = take_over_copy(f"{self._root}/{made}", f"{self._layer}/{made}", self._root, git, self._place)
            except BROKEN as error:
                notes = [str(error)]
            found += [(made, note) for note in notes]
        return found


def _is_taken(path: str, chosen: Collection[str] | None) -> bool:
    """Return whether a git directory is at, below or above a chosen path."""
    if chosen is None or "" in chosen:
        return True
    return any(f"{path}/".startswith(f"{each}/") or each.startswith(f"{path}/") for each in chosen)


def made_repositories(deltas: Iterable[Delta], layer: str) -> list[str]:
    """Return the git directories that a transaction made."""
    return [delta.path for delta in deltas if _is_made_repository(delta, layer)]


def finish(root: str, work: Mapping[str, Any], folder: str) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Do what an apply or undo has to do in git, after the files: in the same process, or in the next after a crash.

    Return a path and a reason for each git directory that stays as it is, and facts for the history.
    """
    noted = work["noted"]
    if "place" in work:
        refused = GitChanges(root, work["place"], work["layer"], work["made"]).apply(work["chosen"])
        return refused, {"git": [after for each in noted if (after := noted_after(each))]}
    git = host_git(root)
    if git is None:
        return [(each["git_dir"], NO_GIT) for each in noted], {}
    return restore(git, noted, folder), {}


def why_not_undone(root: str, facts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the git directories that undo cannot restore, and why."""
    if facts and host_git(root) is None:
        return [(facts[0]["git_dir"], NO_GIT)]
    return why_not(facts)


def _is_made_repository(delta: Delta, layer: str) -> bool:
    if delta.old is not None or delta.new is None or delta.new.what != "directory":
        return False
    return os.path.basename(delta.path) == GIT or is_plain(f"{layer}/{delta.path}")

"""Turns deltas into changes for the user: added, changed, deleted, renamed, mode, link, time."""

from __future__ import annotations

import os
import stat

from corral._lib.records import Record, frozen
from corral.transactions.scan import facts_at, same_content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from corral._lib.dirfd_tree import DirfdTree
    from corral.transactions.scan import Delta

# Bounds on finding renames, against a layer of a million files that are almost equal.
MAX_PAIRS = 2_000
MAX_COMPARED_PATHS = 20_000
MAX_COMPARED_BYTES = 1 << 28
MAX_RENAMED_BYTES = 1 << 26  # of one file
MAX_COUNTED = 100_000  # files of one deleted directory


@frozen
class Change(Record):
    """A change for the user. `path` is relative to the project. So is `old_path`, the path before a rename.

    `kind` is added, changed, deleted, renamed, mode, link or time; `what` is file, directory, link, pipe or socket.
    """

    path: str
    kind: str
    what: str
    old_path: str = ""
    old_mode: int | None = None
    mode: int | None = None
    old_size: int | None = None
    size: int | None = None
    old_link: str = ""
    link: str = ""
    files: int = 0  # in a directory that was deleted, replaced or renamed
    protected: bool = False  # never applied
    old_what: str = ""  # the type before, where it was another: a file became a link or a directory
    new_owner: bool = False  # the file's user or group changed

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready data."""
        return {name: getattr(self, name) for name in self._fields}


def summary(changes: Iterable[Change]) -> str:
    """Return the number of changes of each kind, in one line."""
    counted: dict[str, int] = {}
    for change in changes:
        kind = "only its mode" if change.kind == "mode" else "touched" if change.kind == "time" else change.kind
        counted[kind] = counted.get(kind, 0) + 1
    total = sum(counted.values())
    parts = ", ".join(f"{number} {kind}" for kind, number in counted.items())
    return f"{total} change{'s' if total != 1 else ''}: {parts}" if total else "nothing was changed"


def describe(
    deltas: Iterable[Delta], project: DirfdTree, layer: DirfdTree, is_protected: Callable[[str], bool]
) -> tuple[Change, ...]:
    """Return deltas as changes. A renamed file or directory is one change."""
    found = list(deltas)
    renames = _find_renames(found, project, layer)
    old_paths = set(renames.values())
    changes = []
    last = ""  # the last renamed path
    for delta in found:
        # A renamed directory stands for its entries.
        if delta.path in old_paths or (last and delta.path.startswith(f"{last}/")):
            continue
        last = delta.path if delta.path in renames else last
        changes.append(_change(delta, renames.get(delta.path, ""), project, is_protected))
    return tuple(changes)


def _change(delta: Delta, old_path: str, project: DirfdTree, is_protected: Callable[[str], bool]) -> Change:
    new = delta.new
    old = facts_at(project, old_path) if old_path else delta.old
    kind = "renamed" if old_path else _kind(delta)
    shown = new or old
    assert shown is not None  # noqa: S101  a delta has one of the two
    old_what = old.what if old and new and old.what != new.what else ""
    has_files = (kind in ("deleted", "renamed") and shown.what == "directory") or old_what == "directory"
    return Change(
        delta.path,
        kind,
        shown.what,
        old_path,
        old.mode if old else None,
        new.mode if new else None,
        old.size if old else None,
        new.size if new else None,
        old.text if old else "",
        new.text if new else "",
        _count_files(project, old_path or delta.path) if has_files else 0,
        is_protected(delta.path) or bool(old_path and is_protected(old_path)),
        old_what,
        bool(old and new and old.owner != new.owner),
    )


def _kind(delta: Delta) -> str:
    old, new = delta.old, delta.new
    if old is None:
        return "added"
    if new is None:
        return "deleted"
    if not delta.same_content:
        return "link" if old.what == new.what == "link" else "changed"
    if (old.mode, old.owner) != (new.mode, new.owner):
        return "mode"
    return "link" if new.links > 1 and new.what == "file" else "time"


def _find_renames(deltas: list[Delta], project: DirfdTree, layer: DirfdTree) -> dict[str, str]:
    """Return the old path of each new path whose contents are those of a deleted file or directory."""
    deleted: dict[tuple[str, int, str], list[str]] = {}
    for delta in deltas:
        old = delta.old
        # Any two empty files are equal, so an empty file is never taken for a rename.
        if (
            old is not None
            and delta.new is None
            and (old.what in ("directory", "link") or 0 < old.size <= MAX_RENAMED_BYTES)
        ):
            deleted.setdefault((old.what, old.size, old.text), []).append(delta.path)
    renames: dict[str, str] = {}
    taken: set[str] = set()
    last = ""
    comparison = _Comparison(project, layer)
    for delta in deltas:
        new = delta.new
        if delta.old is not None or new is None or (last and delta.path.startswith(f"{last}/")):
            continue
        for old_path in deleted.get((new.what, new.size, new.text), ()):
            comparison.pairs_left -= 1
            if comparison.is_exhausted:
                return renames
            if old_path not in taken and comparison.are_equal(old_path, delta.path):
                renames[delta.path] = old_path
                last = delta.path
                taken.add(old_path)
                break
    return renames


class _Comparison:
    """Compares added with deleted files, within a bound on the work."""

    def __init__(self, project: DirfdTree, layer: DirfdTree) -> None:
        self._project = project
        self._layer = layer
        self.pairs_left = MAX_PAIRS
        self._paths_left = MAX_COMPARED_PATHS
        self._bytes_left = MAX_COMPARED_BYTES

    @property
    def is_exhausted(self) -> bool:
        """True if corral compares no more files."""
        return min(self.pairs_left, self._paths_left, self._bytes_left) < 0

    def are_equal(self, old: str, new: str) -> bool:
        """Return whether a path of the project and a path of the layer have the same modes and contents."""
        pending = [""]
        while pending:
            below = pending.pop()
            one, other = self._project.status(old + below), self._layer.status(new + below)
            self._paths_left -= 1
            if one is None or other is None or self.is_exhausted or one.st_mode != other.st_mode:
                return False
            kind = stat.S_IFMT(one.st_mode)
            if kind == stat.S_IFDIR:
                names = self._project.names(old + below)
                if names != self._layer.names(new + below) or (not names and not below):
                    return False
                pending += [f"{below}/{name}" for name in names]
            elif kind == stat.S_IFLNK:
                if self._project.link(old + below) != self._layer.link(new + below):
                    return False
            elif kind != stat.S_IFREG or one.st_size != other.st_size:
                return False
            else:
                self._bytes_left -= one.st_size
                if one.st_size > MAX_RENAMED_BYTES or self.is_exhausted:
                    return False
                if not same_content(self._project, old + below, self._layer, new + below):
                    return False
        return True


def _count_files(project: DirfdTree, path: str) -> int:
    """Return the number of files below a directory, at most about MAX_COUNTED."""
    pending, found = [path], 0
    while pending and found < MAX_COUNTED:
        at = pending.pop()
        try:
            with os.scandir(project.directory(at)) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{at}/{entry.name}")
                    else:
                        found += 1
        except OSError:
            # Removed meanwhile, or without read permission.
            continue
    return found

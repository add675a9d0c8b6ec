"""A transaction's changes as a person thinks of them: added, changed, deleted, renamed, another mode, another link."""

from __future__ import annotations

import os
import stat

from corral._lib.records import Record, frozen
from corral.transactions.scan import facts_of, same_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from corral._lib.dirfd_tree import DirfdTree
    from corral.transactions.scan import Delta, Facts

# Of what is compared for renames, against a layer of a million files that are almost equal.
MAX_PAIRS = 2_000
MAX_COMPARED_PATHS = 20_000
MAX_COMPARED_BYTES = 1 << 28
MAX_RENAMED_BYTES = 1 << 26  # of one file
MAX_COUNTED = 100_000  # files of a deleted directory


@frozen
class Change(Record):
    """One change. `path` is relative to the project, and so is `old_path`, which is another for what was renamed.

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
    files: int = 0  # in a directory that was deleted or renamed
    protected: bool = False  # and so never applied

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready data."""
        return {name: getattr(self, name) for name in self._fields}


def summary(changes: Iterable[Change]) -> str:
    """Return how many changes of each kind there are, in a line."""
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
    """Return deltas as changes, with what was only moved as one."""
    found = list(deltas)
    moved = _moved(found, project, layer)
    taken = set(moved.values())
    changes = []
    last = ""  # that was renamed: what lies in a directory follows it
    for delta in found:
        # What lies in a directory that was renamed was renamed with it.
        if delta.path in taken or (last and delta.path.startswith(f"{last}/")):
            continue
        last = delta.path if delta.path in moved else last
        old_path = moved.get(delta.path, "")
        changes.append(_change(delta, old_path, project, is_protected))
    return tuple(changes)


def _change(delta: Delta, old_path: str, project: DirfdTree, is_protected: Callable[[str], bool]) -> Change:
    old, new = delta.old, delta.new
    if old_path:
        old = _facts(project, old_path)
    kind = "renamed" if old_path else _kind(delta)
    shown = new or old
    assert shown is not None  # noqa: S101  a delta has one of the two
    files = (
        count_files(project, old_path or delta.path)
        if kind in ("deleted", "renamed") and shown.what == "directory"
        else 0
    )
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
        files,
        is_protected(delta.path) or bool(old_path and is_protected(old_path)),
    )


def _facts(project: DirfdTree, path: str) -> Facts | None:
    found = project.status(path)
    return None if found is None else facts_of(project, path, found)


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


def _moved(deltas: list[Delta], project: DirfdTree, layer: DirfdTree) -> dict[str, str]:
    """Return what was renamed, the new path and the old: alike in all that it holds, and only once."""
    gone: dict[tuple[str, int, str], list[str]] = {}
    for delta in deltas:
        if delta.old is not None and delta.new is None and _may_be_moved(delta.old):
            gone.setdefault(_likeness(delta.old), []).append(delta.path)
    moved: dict[str, str] = {}
    taken: set[str] = set()
    last = ""
    likeness = _Likeness(project, layer)
    for delta in deltas:
        if delta.old is not None or delta.new is None or (last and delta.path.startswith(f"{last}/")):
            continue
        for old in gone.get(_likeness(delta.new), ()):
            likeness.pairs -= 1
            if likeness.is_exhausted:
                return moved
            if old not in taken and likeness.holds(old, delta.path):
                moved[delta.path] = old
                last = delta.path
                taken.add(old)
                break
    return moved


def _may_be_moved(facts: Facts) -> bool:
    # An empty file is like any other, and nobody's old one.
    return facts.what in ("directory", "link") or (facts.what == "file" and 0 < facts.size <= MAX_RENAMED_BYTES)


def _likeness(facts: Facts) -> tuple[str, int, str]:
    return facts.what, facts.size, facts.text


class _Likeness:
    """Compares what was added with what was deleted, until enough was compared."""

    def __init__(self, project: DirfdTree, layer: DirfdTree) -> None:
        self._project = project
        self._layer = layer
        self.pairs = MAX_PAIRS
        self._paths = MAX_COMPARED_PATHS
        self._bytes = MAX_COMPARED_BYTES

    @property
    def is_exhausted(self) -> bool:
        """Whether no more is compared."""
        return min(self.pairs, self._paths, self._bytes) < 0

    def holds(self, old: str, new: str) -> bool:
        """Say whether all that lies at one path lies at the other."""
        pending = [""]
        while pending:
            below = pending.pop()
            one, other = self._project.status(old + below), self._layer.status(new + below)
            self._paths -= 1
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
            elif (
                kind != stat.S_IFREG
                or one.st_size != other.st_size
                or not self._hold_the_same(old + below, new + below, one.st_size)
            ):
                return False
        return True

    def _hold_the_same(self, old: str, new: str, size: int) -> bool:
        self._bytes -= size
        if size > MAX_RENAMED_BYTES or self.is_exhausted:
            return False
        try:
            one = self._project.open(old)
        except OSError:
            return False
        try:
            other = self._layer.open(new)
            try:
                return same_bytes(one, other)
            finally:
                os.close(other)
        finally:
            os.close(one)


def count_files(project: DirfdTree, path: str) -> int:
    """Return how many files lie in a directory, at most MAX_COUNTED."""
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
            # Removed meanwhile, or closed to its owner.
            continue
    return found

"""Spreads Landlock rules around paths that commands must not read or write, where there are no mounts.

Landlock can only allow, and a rule on a directory allows everything below it. So a directory with such a path in it is split: it gets
no rule to write, and each of its other entries gets one. No name can be made, renamed or removed in a split directory.
"""

from __future__ import annotations

import os
from itertools import islice

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import matching_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.containment.plan import Rule, Step

MAX_ENTRIES = 20_000  # of all split directories together; what lies beyond is not allowed
_GENERATED = ("/proc", "/dev", "/sys")  # the kernel's files, which have rules of their own


@frozen
class ClosedPaths(Record):
    """The paths to keep from commands, and the directories that are split for it."""

    unreadable: frozenset[str] = frozenset()
    unwritable: frozenset[str] = frozenset()
    split: frozenset[str] = frozenset()  # because of unwritable paths
    supervised: tuple[
        str, ...
    ] = ()  # protected files that Landlock leaves writable, because their directory is not split

    @property
    def above_unreadable(self) -> set[str]:
        """The directories above the unreadable paths."""
        return {path[:end] for path in self.unreadable for end in range(1, len(path)) if path[end] == "/"}


def closed_paths(steps: Iterable[Step], rules: Sequence[Rule]) -> ClosedPaths:
    """Return what the steps of a tree hide and keep read-only, as far as it exists and `rules` would open it.

    Only directories, such as those of git, cause their directory to be split: a file that runs later can lie anywhere, and commands
    must be able to work beside it.
    """
    steps = tuple(steps)
    masked = [step.target for step in steps if step.action in ("mask", "hide")]
    unreadable = frozenset(path for pattern in masked for path in matching_paths(pattern) if not _is_generated(path))
    roots = [path for path, right in rules if right == "write"]
    # Where there are mounts, a git directory is covered by a copy.
    kept = [step.target for step in steps if step.action == "readonly" or (step.action == "bind" and _covers(step))]
    kept = [path for path in kept if os.path.lexists(path) and any(_inside(path, root) for root in roots)]
    directories = [path for path in kept if os.path.isdir(path) and not os.path.islink(path)]
    split = frozenset(_above(directories, roots))
    return ClosedPaths(
        unreadable,
        frozenset((*directories, *(path for path in kept if os.path.dirname(path) in split))),
        split,
        tuple(path for path in dict.fromkeys(kept) if path not in directories and os.path.dirname(path) not in split),
    )


def spread(rules: Sequence[Rule], closed: ClosedPaths) -> list[Rule]:
    """Return rules that allow what `rules` allow, without the closed paths. Reads the split directories."""
    above_unreadable = closed.above_unreadable
    found: list[Rule] = []
    left = MAX_ENTRIES
    pending = list(reversed(rules))
    while pending:
        path, right = pending.pop()
        if path in closed.unreadable:
            continue
        if right == "write" and path in closed.unwritable:
            right = "read"
        is_unreadable_below = right in ("read", "write") and path in above_unreadable
        if not is_unreadable_below and not (right == "write" and path in closed.split):
            found.append((path, right))
            continue
        found.append((path, "list" if is_unreadable_below else "read"))
        try:
            with os.scandir(path) as entries:
                # A rule cannot be made for a link. What it leads to has one, or is not allowed.
                listed = [entry.path for entry in islice(entries, left) if not entry.is_symlink()]
        except OSError:
            continue
        left -= len(listed)
        pending += [(inner, right) for inner in listed]
    return found


def _covers(step: Step) -> bool:
    return step.source != step.target or step.access == "ro"


def _is_generated(path: str) -> bool:
    return any(_inside(path, root) for root in _GENERATED)


def _above(paths: Iterable[str], roots: Iterable[str]) -> Iterable[str]:
    """Yield the directories above the paths, up to the root that they lie in."""
    roots = tuple(roots)
    for path in paths:
        at = path
        while at not in roots and any(_inside(at, root) for root in roots):
            at = os.path.dirname(at)
            yield at


def _inside(path: str, root: str) -> bool:
    # As `guard.path_zones.inside`. Every keeper loads this module, and that one would load the rules too.
    return path == root or path.startswith(root + "/")

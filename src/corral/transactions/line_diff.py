"""Compares two texts line by line with Myers' algorithm, as git does, within a bound on the work.

difflib has no such bound: its time is quadratic for texts that are made to be slow to compare, and here commands wrote the texts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Span = tuple[int, int, int, int]  # from and to in the old text, from and to in the new

MAX_STEPS = 250_000  # for one pair of texts
MAX_ALL_STEPS = 4_000_000  # for one diff


class Budget:
    """The steps left for one diff."""

    def __init__(self) -> None:
        self.steps = MAX_ALL_STEPS


def differing(old: Sequence[str], new: Sequence[str], budget: Budget) -> list[Span]:
    """Return the spans in which two texts differ. If comparing takes too long, one span covers everything that differs."""
    head, shortest = 0, min(len(old), len(new))
    while head < shortest and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shortest - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    ends = len(old) - tail, len(new) - tail
    # Lines that only one text has cannot match.
    common = {*old[head : ends[0]]} & {*new[head : ends[1]]}
    ours = [number for number in range(head, ends[0]) if old[number] in common]
    theirs = [number for number in range(head, ends[1]) if new[number] in common]
    numbers = {line: number for number, line in enumerate(common)}
    pairs = _matched([numbers[old[each]] for each in ours], [numbers[new[each]] for each in theirs], budget)
    spans, at = [], (head, head)
    for here, there in [*((ours[one], theirs[other]) for one, other in pairs), ends]:
        if (here, there) != at:
            spans.append((at[0], here, at[1], there))
        at = here + 1, there + 1
    return spans


def _matched(old: list[int], new: list[int], budget: Budget) -> list[tuple[int, int]]:
    """Return the longest common subsequence as pairs of indices, by Myers' algorithm, or no pairs if that takes too long."""
    most = left = min(MAX_STEPS, budget.steps)
    reached = {1: 0}  # the furthest index in the old list, by diagonal
    trail = []
    for edits in range(len(old) + len(new) + 1):
        trail.append(reached.copy())
        lowest, highest = edits - 2 * max(0, edits - len(new)), edits - 2 * max(0, edits - len(old))
        for diagonal in range(-lowest, highest + 1, 2):
            at, _ = _step(reached, diagonal)
            start = at
            while at < len(old) and at - diagonal < len(new) and old[at] == new[at - diagonal]:
                at += 1
            reached[diagonal] = at
            left -= 1 + at - start
            if at >= len(old) and at - diagonal >= len(new):
                budget.steps -= most - max(left, 0)
                return _walked_back(trail, len(old), len(new))
            if left < 0:
                budget.steps -= most
                return []
    return []


def _step(reached: dict[int, int], diagonal: int) -> tuple[int, int]:
    """Return the index that one edit reaches on a diagonal, and the diagonal that it comes from. A deletion advances by one."""
    deleted, inserted = reached.get(diagonal - 1, -1), reached.get(diagonal + 1, -1)
    return (inserted, diagonal + 1) if deleted < inserted else (deleted + 1, diagonal - 1)


def _walked_back(trail: list[dict[int, int]], here: int, there: int) -> list[tuple[int, int]]:
    pairs = []
    for reached in reversed(trail):
        start, before = _step(reached, here - there)
        while here > start:
            here, there = here - 1, there - 1
            pairs.append((here, there))
        here = reached[before]
        there = here - before
    return pairs[::-1]

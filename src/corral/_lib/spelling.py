"""Suggests known words for a mistyped one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_MATCHES = 5


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known words, or ""."""
    found = nearest(word, known)
    return f"did you mean {' or '.join(found)}?" if found else ""


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words with the smallest edit distance to `word`, if that is small enough for a typing error."""
    distances = {name: edit_distance(word, name) for name in known}
    least = min(distances.values(), default=len(word))
    if least > max(len(word) // 3, 1):
        return []
    return sorted(name for name, distance in distances.items() if distance == least)[:MAX_MATCHES]


def edit_distance(one: str, other: str) -> int:
    """Count the characters to add, drop, change, or swap with their neighbour."""
    if abs(len(one) - len(other)) > len(one) // 3 + 1:
        return len(one) + len(other)
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, against in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == against:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]

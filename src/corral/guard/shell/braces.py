"""Brace expansion as bash does it, before anything else: {a,b}, {1..9}, nested. Bounded: past its limits a word is unknown."""

from __future__ import annotations

from itertools import pairwise

from corral._lib.lazy_regex import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    Fragment = tuple[str, int]

HOLE = "\0"
# Unquoted source text, quoted text, text of an unquoted expansion, a field boundary.
LITERAL, QUOTED, EXPANDED, SPLIT = range(4)
MAX_BRACES = 64  # in one word, against time that grows with their square
MAX_FIELDS = 256  # against a brace expansion that makes millions of words
_RANGE = pattern(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")


def expand_braces(fragments: list[Fragment]) -> list[list[Fragment]]:
    """Expand the first brace group and then the rest, as bash does before anything else; bounded by MAX_FIELDS."""
    if sum(text.count("{") for text, kind in fragments if kind == LITERAL) > MAX_BRACES:
        return [[(HOLE, EXPANDED)]]
    chars: list[Fragment] = []
    for text, kind in fragments:
        if kind == LITERAL:
            chars.extend((c, LITERAL) for c in text)
        else:
            chars.append((text, kind))
    done: list[list[Fragment]] = []
    work = [chars]
    while work and len(done) + len(work) <= MAX_FIELDS:
        current = work.pop(0)
        group = _first_group(current)
        if group is None:
            done.append(_joined(current))
            continue
        open_at, close_at, branches = group
        work[:0] = [current[:open_at] + branch + current[close_at + 1 :] for branch in branches]
    if work:
        return [[(HOLE, EXPANDED)]]
    return done


def _first_group(chars: list[Fragment]) -> tuple[int, int, list[list[Fragment]]] | None:
    for start, char in enumerate(chars):
        if char != ("{", LITERAL):
            continue
        depth = 0
        commas: list[int] = []
        for at in range(start, len(chars)):
            if chars[at] == ("{", LITERAL):
                depth += 1
            elif chars[at] == ("}", LITERAL):
                depth -= 1
                if depth == 0:
                    if commas:
                        edges = [start, *commas, at]
                        return start, at, [chars[a + 1 : b] for a, b in pairwise(edges)]
                    branches = _sequence("".join(t for t, k in chars[start + 1 : at] if k == LITERAL))
                    if branches is not None:
                        return start, at, branches
                    break
            elif chars[at] == (",", LITERAL) and depth == 1:
                commas.append(at)
    return None


def _sequence(text: str) -> list[list[Fragment]] | None:
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last, step = match.groups()
    if first.lstrip("-").isdigit() != last.lstrip("-").isdigit() or len(first + last) > 12:
        return [[(HOLE, EXPANDED)]]
    digits = first.lstrip("-").isdigit()
    low, high = (int(first), int(last)) if digits else (ord(first), ord(last))
    stride = abs(int(step or 1)) or 1
    if abs(high - low) // stride > MAX_FIELDS:
        return [[(HOLE, EXPANDED)]]
    width = (
        max(len(first), len(last))
        if (digits and (first.lstrip("-") + "x")[0] == "0") or (last.lstrip("-") + "x")[0] == "0"
        else 0
    )
    values = range(low, high + (1 if high >= low else -1), stride if high >= low else -stride)
    return [[(str(v).zfill(width) if digits else chr(v), LITERAL)] for v in values]


def _joined(chars: list[Fragment]) -> list[Fragment]:
    out: list[Fragment] = []
    for text, kind in chars:
        if out and kind == LITERAL and out[-1][1] == LITERAL:
            out[-1] = (out[-1][0] + text, LITERAL)
        else:
            out.append((text, kind))
    return out

"""Brace expansion as bash does it, before all other expansions: {a,b}, {1..9}, nested. A word past the limits becomes a hole."""

from __future__ import annotations

from itertools import pairwise

from corral._lib.lazy_regex import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    Fragment = tuple[str, int]

HOLE = "\0"  # stands in the text of a word for a part that is only known at run time; no argument can contain NUL
# Kinds of fragments: unquoted source text, quoted text, text of an unquoted expansion, a field boundary.
LITERAL, QUOTED, EXPANDED, SPLIT = range(4)
MAX_BRACES = 64  # in one word, against time that grows with their square
MAX_PARTS = 1000  # of one word, between braces and commas
MAX_FIELDS = 256  # against a brace expansion that makes millions of words
_RANGE = pattern(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")
_MARKS = pattern(r"([{},])")
_UNKNOWN: list[list[Fragment]] = [[(HOLE, EXPANDED)]]


def expand_braces(fragments: list[Fragment]) -> list[list[Fragment]]:
    """Return the fragments of each word that the braces in one word make, at most MAX_FIELDS of them."""
    if sum(text.count("{") for text, kind in fragments if kind == LITERAL) > MAX_BRACES:
        return _UNKNOWN
    parts: list[Fragment] = []
    for text, kind in fragments:
        parts += [(part, LITERAL) for part in _MARKS.split(text) if part] if kind == LITERAL else [(text, kind)]
        if len(parts) > MAX_PARTS:
            return _UNKNOWN
    done: list[list[Fragment]] = []
    work = [parts]
    while work and len(done) + len(work) <= MAX_FIELDS:
        current = work.pop(0)
        group = _first_group(current)
        if group is None:
            done.append(_join_literals(current))
            continue
        open_at, close_at, branches = group
        if len(branches) > MAX_FIELDS:
            return _UNKNOWN
        work[:0] = [current[:open_at] + branch + current[close_at + 1 :] for branch in branches]
    return _UNKNOWN if work else done


def _first_group(parts: list[Fragment]) -> tuple[int, int, list[list[Fragment]]] | None:
    """Return where the first brace group opens and closes, and its alternatives."""
    for start, part in enumerate(parts):
        if part != ("{", LITERAL):
            continue
        depth = 0
        commas: list[int] = []
        for at in range(start, len(parts)):
            if parts[at] == ("{", LITERAL):
                depth += 1
            elif parts[at] == ("}", LITERAL):
                depth -= 1
                if depth == 0:
                    if commas:
                        return start, at, [parts[a + 1 : b] for a, b in pairwise([start, *commas, at])]
                    branches = _sequence("".join(t for t, k in parts[start + 1 : at] if k == LITERAL))
                    if branches is not None:
                        return start, at, branches
                    break
            elif parts[at] == (",", LITERAL) and depth == 1:
                commas.append(at)
    return None


def _sequence(text: str) -> list[list[Fragment]] | None:
    """Return the values of `first..last..step`, or None for any other text."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last, step = match.groups()
    digits = first.lstrip("-").isdigit()
    if digits != last.lstrip("-").isdigit() or len(first + last) > 12:
        return _UNKNOWN
    low, high = (int(first), int(last)) if digits else (ord(first), ord(last))
    stride = abs(int(step or 1)) or 1
    if abs(high - low) // stride > MAX_FIELDS:
        return _UNKNOWN
    has_leading_zero = "0" in (first.lstrip("-")[0], last.lstrip("-")[0])
    width = max(len(first), len(last)) if has_leading_zero else 0
    values = range(low, high + 1, stride) if high >= low else range(low, high - 1, -stride)
    return [[(str(v).zfill(width) if digits else chr(v), LITERAL)] for v in values]


def _join_literals(parts: list[Fragment]) -> list[Fragment]:
    joined: list[Fragment] = []
    for text, kind in parts:
        if joined and kind == LITERAL == joined[-1][1]:
            joined[-1] = (joined[-1][0] + text, LITERAL)
        else:
            joined.append((text, kind))
    return joined

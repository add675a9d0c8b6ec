"""Renders rows as Markdown tables. Text is escaped, so that it cannot leave its cell."""

import re
from collections.abc import Callable, Iterable, Sequence

from bench._plots import shortened
from bench._rows import Row, Section, goal_in_words, number


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(cell(word) for word in row) + " |\n" for row in rows)


def cell(word: object) -> str:
    """Return text that can neither end its cell nor be read as an HTML tag."""
    return str(word).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def matrix(rows: Iterable[Row], said: Callable[[Row], str], subjects: Sequence[str] = ()) -> str:
    """Return a table with a line for each candidate and a column for each subject."""
    rows = [row for row in rows if not subjects or row.subject in subjects]
    columns = list(dict.fromkeys(row.subject for row in rows))
    ways = list(dict.fromkeys(row.way for row in rows))
    found = {(row.way, row.subject): said(row) for row in rows}
    named = [f"**{way}**" if way.startswith("corral") else shortened(way) for way in ways]
    lines = [
        (name, *(found.get((way, column), "–") for column in columns)) for name, way in zip(named, ways, strict=True)
    ]
    return table(("", *columns), lines)


def listed(section: Section, without: Callable[[Row], bool] = lambda _: False) -> str:
    """Return a table with a line for each row of a section, without empty columns."""
    rows = [row for row in section.rows if not without(row)]
    head = ("", "measured", "bare", "ratio", "spread", "goal", "")
    lines = [head, *(_line(row) for row in rows)]
    used = [i for i in range(len(head)) if i < 2 or any(line[i] for line in lines[1:])]
    return table([head[i] for i in used], [[line[i] for i in used] for line in lines[1:]]) if rows else ""


def notes(section: Section) -> str:
    """Return a section's notes as a list, with the error if the benchmark failed. Levels of enforcement are shown as code."""
    said = [f"It broke: {section.broke}"] if section.broke else []
    shown = [re.sub(r"(?<=: enforcement is )(\w+)$", r"`\1`", note) for note in (*said, *section.notes)]
    return "".join(f"* {cell(note)}\n" for note in shown)


def times(row: Row) -> str:
    """Return the ratio of a row in words."""
    return "–" if row.ratio is None else f"{row.ratio:,.2f}x" if row.ratio < 100 else f"{row.ratio:,.0f}x"


def _line(row: Row) -> tuple[str, ...]:
    verdict = "" if row.met is None else "met" if row.met else "**missed**"
    bare = "" if row.bare is None else f"{number(row.bare)} {row.unit}"
    ratio = "" if row.ratio is None or (row.goal is not None and row.goal.of_value) else times(row)
    spread = "" if row.spread is None else f"±{row.spread:.0%}"
    return (row.what, f"{number(row.value)} {row.unit}", bare, ratio, spread, goal_in_words(row), verdict)

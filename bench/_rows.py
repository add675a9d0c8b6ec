"""One measurement and its goal as a record, and a section of them as a table. Whether a goal is met is computed, never written."""

from typing import Any

from corral._lib.records import Record, frozen

COLUMNS = ("", "measured", "bare", "unit", "ratio", "spread", "quiet", "goal", "")
_TEXT_COLUMNS = (0, 3, 8)


@frozen
class Goal(Record):
    """A bound that people look at: on the ratio to the bare thing, or on the value itself."""

    bound: float
    at_least: bool = False
    of_value: bool = False

    def holds(self, number: float) -> bool:
        """Say whether a number keeps to the bound."""
        return number >= self.bound if self.at_least else number <= self.bound


def at_most(bound: float) -> Goal:
    """Return a goal for the ratio."""
    return Goal(bound)


def at_least(bound: float) -> Goal:
    """Return a goal for the ratio."""
    return Goal(bound, at_least=True)


@frozen
class Row(Record):
    """What was measured, in a unit, beside the bare thing.

    `spread` is half the interquartile range, as a part of the value. `quiet` is the ratio of the tenth percentiles, which what
    else the machine does hardly moves; the goal is for the medians all the same.
    """

    what: str
    value: float
    unit: str
    bare: float | None = None
    spread: float | None = None
    goal: Goal | None = None
    quiet: float | None = None

    @property
    def subject(self) -> str:
        """What was done: what stands before the last colon."""
        return self.what.rpartition(": ")[0]

    @property
    def way(self) -> str:
        """By whom it was done: what stands after it."""
        return self.what.rpartition(": ")[2]

    @property
    def ratio(self) -> float | None:
        """How many times the bare thing it is."""
        return self.value / self.bare if self.bare else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        number = self.value if self.goal is not None and self.goal.of_value else self.ratio
        return None if self.goal is None or number is None else self.goal.holds(number)

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        row: dict[str, Any] = {
            name: getattr(self, name) for name in ("what", "value", "unit", "bare", "ratio", "spread", "quiet")
        }
        if self.goal is not None:
            kind = ("value" if self.goal.of_value else "ratio") + (" at least" if self.goal.at_least else " at most")
            row |= {"goal": {kind: self.goal.bound}, "met": self.met}
        return row


def row_from_dict(data: dict[str, Any]) -> Row:
    """Return the row that `to_dict` wrote."""
    goal = None
    for kind, bound in data.get("goal", {}).items():
        goal = Goal(bound, at_least=kind.endswith("least"), of_value=kind.startswith("value"))
    return Row(**{name: data[name] for name in ("what", "value", "unit", "bare", "spread", "quiet")}, goal=goal)


@frozen
class Section(Record):
    """What one benchmark found as one user. `broke` is why it has no rows."""

    title: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    broke: str = ""
    name: str = ""
    who: str = ""

    @property
    def heading(self) -> str:
        """What was measured, and as whom."""
        return f"{self.title}, {self.who}" if self.who else self.title

    def to_dict(self) -> dict[str, Any]:
        """Return the section for JSON."""
        rows = [row.to_dict() for row in self.rows]
        words = {"name": self.name, "who": self.who, "title": self.title}
        return {**words, "rows": rows, "notes": list(self.notes), "broke": self.broke}


def section_from_dict(data: dict[str, Any]) -> Section:
    """Return the section that `to_dict` wrote."""
    rows = tuple(row_from_dict(row) for row in data["rows"])
    return Section(data["title"], rows, tuple(data["notes"]), data["broke"], data["name"], data["who"])


def shown(section: Section) -> str:
    """Return a section as a person reads it."""
    lines = [section.heading, "=" * len(section.heading)]
    if section.broke:
        lines.append(f"✗ broke: {section.broke}")
    if section.rows:
        lines += _aligned([list(COLUMNS), *(_cells(row) for row in section.rows)])
    return "\n".join((*lines, *(f"* {note}" for note in section.notes), ""))


def summary(sections: list[Section]) -> str:
    """Return how many goals were met, and those that were not."""
    judged = [(section, row) for section in sections for row in section.rows if row.met is not None]
    lines = [f"{sum(1 for _, row in judged if row.met)} of {len(judged)} goals met"]
    lines += [
        f"✗ missed: {row.what}: {reached(row)}, goal {goal_in_words(row)} ({section.heading})"
        for section, row in judged
        if not row.met
    ]
    return "\n".join(
        (*lines, *(f"✗ broke: {section.heading}: {section.broke}" for section in sections if section.broke))
    )


def _cells(row: Row) -> list[str]:
    verdict = "" if row.met is None else "✓ met" if row.met else "✗ missed"
    bare = "" if row.bare is None else number(row.bare)
    judged_by_value = row.goal is not None and row.goal.of_value
    ratio = "" if row.ratio is None or judged_by_value else f"{row.ratio:,.2f}x"
    spread = "" if row.spread is None else f"±{row.spread:.0%}"
    quiet = "" if row.quiet is None else f"{row.quiet:,.2f}x"
    return [row.what, number(row.value), bare, row.unit, ratio, spread, quiet, goal_in_words(row), verdict]


def reached(row: Row) -> str:
    """Return the number that a goal is about."""
    of_value = row.ratio is None or (row.goal is not None and row.goal.of_value)
    return f"{number(row.value)} {row.unit}" if of_value else f"{row.ratio:.2f}x"


def goal_in_words(row: Row) -> str:
    """Return the bound, or nothing."""
    if row.goal is None:
        return ""
    bound = f"{row.goal.bound:g} {row.unit}" if row.goal.of_value else f"{row.goal.bound:.2f}x"
    return f"{'≥' if row.goal.at_least else '≤'} {bound}"


def number(value: float) -> str:
    """Return a number as a person reads it."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(lines: list[list[str]]) -> list[str]:
    """Return the lines with their columns one below the other, without those that say nothing here."""
    used = [i for i in range(len(COLUMNS)) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in used}
    return [
        "  ".join(line[i].ljust(widths[i]) if i in _TEXT_COLUMNS else line[i].rjust(widths[i]) for i in used).rstrip()
        for line in lines
    ]

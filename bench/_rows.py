"""Records for one measurement with its goal, and for a section of measurements. Goals are judged from the numbers, never stored."""

from typing import Any

from corral._lib.records import Record, frozen

COLUMNS = ("", "measured", "bare", "unit", "ratio", "spread", "quiet", "goal", "")
_TEXT_COLUMNS = (0, 3, 8)


@frozen
class Goal(Record):
    """A bound on the ratio to the bare measurement, or on the value itself."""

    bound: float
    at_least: bool = False
    of_value: bool = False

    def holds(self, number: float) -> bool:
        """Return True if a number keeps to the bound."""
        return number >= self.bound if self.at_least else number <= self.bound


def at_most(bound: float) -> Goal:
    """Return an upper bound for the ratio."""
    return Goal(bound)


def at_least(bound: float) -> Goal:
    """Return a lower bound for the ratio."""
    return Goal(bound, at_least=True)


@frozen
class Row(Record):
    """One measurement in a unit, beside the bare one.

    `spread` is half the interquartile range, as a fraction of the value. `quiet` is the ratio of the tenth percentiles, which
    other load on the machine hardly changes. Goals are judged by the medians.
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
        """Return the task that was measured: the part of `what` before the last colon."""
        return self.what.rpartition(": ")[0]

    @property
    def way(self) -> str:
        """Return the candidate that did the task: the part of `what` after the last colon."""
        return self.what.rpartition(": ")[2]

    @property
    def ratio(self) -> float | None:
        """Return the value divided by the bare value, or None."""
        return self.value / self.bare if self.bare else None

    @property
    def met(self) -> bool | None:
        """Return True if the goal is met, and None if there is no goal."""
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
    """The results of one benchmark run by one user. `broke` says why it has no rows."""

    title: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    broke: str = ""
    name: str = ""
    who: str = ""

    @property
    def heading(self) -> str:
        """Return the title, with the user if there is one."""
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
    """Return a section as text for the terminal."""
    lines = [section.heading, "=" * len(section.heading)]
    if section.broke:
        lines.append(f"✗ broke: {section.broke}")
    if section.rows:
        lines += _aligned([list(COLUMNS), *(_cells(row) for row in section.rows)])
    return "\n".join((*lines, *(f"* {note}" for note in section.notes), ""))


def summary(sections: list[Section]) -> str:
    """Return how many goals were met, and a line for each missed goal."""
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
    """Return the number that the goal bounds, as text."""
    of_value = row.ratio is None or (row.goal is not None and row.goal.of_value)
    return f"{number(row.value)} {row.unit}" if of_value else f"{row.ratio:.2f}x"


def goal_in_words(row: Row) -> str:
    """Return the bound as text, or an empty text."""
    if row.goal is None:
        return ""
    bound = f"{row.goal.bound:g} {row.unit}" if row.goal.of_value else f"{row.goal.bound:.2f}x"
    return f"{'≥' if row.goal.at_least else '≤'} {bound}"


def number(value: float) -> str:
    """Return a number as text with about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(lines: list[list[str]]) -> list[str]:
    """Return the lines with aligned columns, without empty columns."""
    used = [i for i in range(len(COLUMNS)) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in used}
    return [
        "  ".join(line[i].ljust(widths[i]) if i in _TEXT_COLUMNS else line[i].rjust(widths[i]) for i in used).rstrip()
        for line in lines
    ]

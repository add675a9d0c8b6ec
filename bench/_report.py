"""docs/benchmarks.json as records: what one run of everything found. Whatever is read here was rounded when it was written."""

import json
from pathlib import Path
from typing import Any

from bench._rows import Row, Section, section_from_dict
from corral._lib.records import Record, frozen

DOCS = Path(__file__).parents[1] / "docs"
FILE = DOCS / "benchmarks.json"
DIGITS = 4  # a fifth is noise


@frozen
class Report(Record):
    """One run: the machine as JSON has it, and every section."""

    facts: dict[str, Any]
    sections: tuple[Section, ...]

    def found(self, name: str) -> list[Section]:
        """Return what a benchmark found, as each user."""
        return [section for section in self.sections if section.name == name]

    def first(self, name: str) -> Section:
        """Return what a benchmark found as the user who ran it; one without rows when it is not there."""
        return next(iter(self.found(name)), Section(name, name=name))

    def row(self, name: str, what: str) -> Row | None:
        """Return one measurement of the first user."""
        return next((row for row in self.first(name).rows if row.what == what), None)


def report_from(data: dict[str, Any]) -> Report:
    """Return what `to_json` wrote."""
    sections = tuple(section_from_dict(section) for section in data["sections"])
    return Report({name: value for name, value in data.items() if name != "sections"}, sections)


def read() -> Report:
    """Return the report that the project carries."""
    return report_from(json.loads(FILE.read_text()))


def to_json(data: dict[str, Any]) -> str:
    """Return the file's text."""
    return json.dumps(_rounded(data), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value

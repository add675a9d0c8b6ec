"""Reads and writes docs/benchmarks.json, the results of one whole run. Numbers are rounded when they are written."""

import json
from pathlib import Path
from typing import Any

from bench._rows import Row, Section, section_from_dict
from corral._lib.records import Record, frozen

DOCS = Path(__file__).parents[1] / "docs"
FILE = DOCS / "benchmarks.json"
DIGITS = 4  # a fifth digit would be noise


@frozen
class Report(Record):
    """The results of one run: facts about the machine, and all sections."""

    facts: dict[str, Any]
    sections: tuple[Section, ...]

    def found(self, name: str) -> list[Section]:
        """Return the sections of a benchmark, one for each user."""
        return [section for section in self.sections if section.name == name]

    def first(self, name: str) -> Section:
        """Return the first section of a benchmark, or an empty section."""
        return next(iter(self.found(name)), Section(name, name=name))

    def row(self, name: str, what: str) -> Row | None:
        """Return one row of a benchmark's first section, or None."""
        return next((row for row in self.first(name).rows if row.what == what), None)


def report_from(data: dict[str, Any]) -> Report:
    """Return the report from the data that `to_json` wrote."""
    sections = tuple(section_from_dict(section) for section in data["sections"])
    return Report({name: value for name, value in data.items() if name != "sections"}, sections)


def read() -> Report:
    """Return the report in docs/benchmarks.json."""
    return report_from(json.loads(FILE.read_text()))


def to_json(data: dict[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(_rounded(data), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value

"""Reads project_types.toml: marker files, publishing commands, package indexes and caches of each type of project."""

from __future__ import annotations

import tomllib

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@frozen
class Publishing(Record):
    """A command that publishes, an example that is refused, and a similar command that is allowed."""

    command: str
    refused: str
    allowed: str


@frozen
class ProjectType(Record):
    """A type of project. The data file explains the fields."""

    name: str
    marks: tuple[str, ...]
    publishing: tuple[Publishing, ...] = ()
    caches: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    seconds: int = 600
    index: str = ""
    index_found_by: str = ""


def _load() -> tuple[ProjectType, ...]:
    with open(f"{__file__.rpartition('/')[0]}/project_types.toml", "rb") as file:
        rows: list[dict[str, Any]] = tomllib.load(file)["type"]
    for row in rows:
        row["publishing"] = [Publishing(*each) for each in row.get("publishing", ())]
        row |= {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
    return tuple(ProjectType(**row) for row in rows)


PROJECT_TYPES = _load()

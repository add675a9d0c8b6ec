"""A rule's page by its id: what it refuses, why, what to do instead. Read from the tables; nothing is told twice."""

from __future__ import annotations

from functools import cache

from corral._lib.records import Record, frozen
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.rules.compiler import read_tables
from corral.guard.rules.loader import DEFAULT_DENYLIST, effects, group, profile_named, profile_names, row
from corral.model.call import Call
from corral.policy.config import SandboxConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.rules.loader import Profile

_UNKNOWN = "unknown"  # in the id of a rule: a command that has no row
MAX_EXAMPLES = 6
EXAMPLES_PROFILE = "strict"  # under which the examples of a page are refused
_NEVER_THERE = "/nonexistent/project"  # no file of this machine decides what an example meets
# What is refused before there is anything to judge. No profile allows these, so they stand in no table.
SHAPES = {
    "structure-crash": ("A call on which the guard itself failed.", "Write it in plain, simple shell."),
    "structure-cwd": ("A working directory that is not a path.", "Pass a path inside the project."),
    "structure-empty": ("A call without a command.", "Name the command to run."),
    "structure-env": ("An environment that is not made of plain names and values.", "Pass plain strings."),
    "structure-list": ("A list of several arguments with shell=True.", "Pass the command as one string."),
    "structure-nul": ("An argument that holds a NUL byte, where the kernel would cut it.", "Remove it."),
    "structure-size": ("A call past the guard's limits of count or length.", "Split it, or write it to a file."),
    "structure-string": ("A string of several words without shell=True.", "Pass a list, or shell=True."),
    "structure-type": ("A call that is not made of strings.", "Pass a list of strings."),
    "path-cwd": ("A working directory outside project root.", "Use a directory inside the project."),
}

# Effects whose reason is made whole by the judge, so that the table has no words to show without a call.
MADE_BY_THE_JUDGE = {
    "metacharacter": (
        "An argument contains a shell metacharacter, but the call uses no shell.",
        "If you need a shell, pass one string with shell=True, or --shell on the command line.",
    ),
}


@frozen
class Page(Record):
    """Everything there is to say about one rule."""

    id: str
    axis: str
    what: str
    instead: str
    profiles: tuple[tuple[str, str], ...]
    refused: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the page as JSON-ready data."""
        data: dict[str, object] = {name: getattr(self, name) for name in self._fields}
        return data | {"profiles": dict(self.profiles), "refused": list(self.refused), "allowed": list(self.allowed)}


def rule_ids() -> list[str]:
    """Return the ids of all rules, sorted. `COMMAND` stands for any command's row."""
    ids = {*SHAPES, *(f"name-{name.removesuffix('.*')}" for name in DEFAULT_DENYLIST)}
    for key, data in effects().items():
        ids.add(f"argv-COMMAND-{key}" if data["axis"] == "argv" else f"{data['axis']}-{key}")
    return sorted(ids)


def page_of(rule: str) -> Page | None:
    """Return the page of a rule, or None where there is no such rule."""
    if rule in SHAPES:
        what, instead = SHAPES[rule]
        return Page(rule, rule.partition("-")[0], what, instead, _said(lambda _: "deny"))
    axis, _, rest = rule.partition("-")
    if axis == "name":
        return _name_page(rule, rest)
    for key, data in effects().items():
        command = rest.removesuffix(f"-{key}") if axis == "argv" else ""
        if data["axis"] == axis and (rest == key if axis != "argv" else command != rest):
            found = _command_row(command) if axis == "argv" else {}
            if found is not None:
                return _effect_page(rule, key, data, found)
    return None


def _command_row(command: str) -> dict[str, Any] | None:
    """Return the raw row of a command or subcommand (`git-push`), an empty one for no particular command."""
    if command in ("COMMAND", "call", _UNKNOWN):
        return {}
    rows = _raw_rows()
    while command and command not in rows:
        command = command.rpartition("-")[0]
    return {"id": command, **rows[command]} if command else None


@cache
def _raw_rows() -> dict[str, dict[str, Any]]:
    return read_tables()[1]


def _effect_page(rule: str, key: str, data: dict[str, str], found: dict[str, Any]) -> Page:
    name = rule.removeprefix("argv-").removesuffix(f"-{key}") if data["axis"] == "argv" else "COMMAND"
    name = "COMMAND" if name == _UNKNOWN else name
    what, instead = MADE_BY_THE_JUDGE.get(
        key, (data["reason"].format(name=name, text="ARGUMENT", detail=""), data["instead"])
    )
    said = _said(lambda profile: str(profile.effects[key]))
    met = _meeting(found, f"argv-{found.get('id')}-{key}")
    return Page(rule, data["axis"], what, instead, said, met, _allowed(found))


def _name_page(rule: str, name: str) -> Page | None:
    known = (row(name) or row(f"{name}.")) if name else None
    if known is None or "group" not in known:
        return None
    family = group(known["group"])
    raw = _raw_rows().get(known["id"], {})
    what = f"{name} is on the denylist: {known.get('why') or family['why']}."
    said = _said(lambda profile: str(profile.groups[known["group"]]))
    instead = known.get("instead", family["instead"])
    return Page(rule, "name", what, instead, said, _meeting(raw, rule), _allowed(raw))


def _said(by: Any) -> tuple[tuple[str, str], ...]:
    profiles: list[Profile] = [profile_named(name) for name in profile_names()]
    return tuple((profile.name, by(profile)) for profile in profiles)


def _meeting(raw: dict[str, Any], rule: str) -> tuple[str, ...]:
    """Return the examples of a row that have a finding of this rule: a row's examples show all of its rules."""
    texts = dict.fromkeys([*raw.get("deny", ()), *raw.get("workspace", {}).get("deny", ())])
    return tuple(text for text in texts if rule in rules_met_by(text))[:MAX_EXAMPLES]


def rules_met_by(text: str) -> frozenset[str]:
    """Return the ids of the rules that a call meets, wherever it is judged."""
    config = SandboxConfig("/usr", profile=EXAMPLES_PROFILE)
    machine = Machine(_NEVER_THERE, home="/home/user")
    verdict = vet(Call(text, shell=True), config, machine)  # noqa: S604  it is read, not run
    return frozenset(found.rule for found in verdict.findings)


def _allowed(raw: dict[str, Any]) -> tuple[str, ...]:
    return tuple(raw.get("allow", ()))[:MAX_EXAMPLES]

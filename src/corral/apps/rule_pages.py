"""Builds the page of a rule from the rule tables: the refusal, the alternative, the profiles' decisions, and examples."""

from __future__ import annotations

from functools import cache

from corral._lib.records import Record, frozen
from corral.guard.axes.structure import SHAPE_RULES
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.rules.compiler import read_tables
from corral.guard.rules.loader import DEFAULT_DENYLIST, effects, group, profile_named, profile_names, row
from corral.model.call import Call
from corral.policy.config import SandboxConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.guard.rules.loader import Profile

MAX_EXAMPLES = 6
EXAMPLES_PROFILE = "strict"  # the profile that refuses the examples of a page
_NO_COMMAND = ("COMMAND", "call", "unknown")  # in a rule's id, instead of the name of a row
_NO_PROJECT = "/nonexistent/project"  # so that files of this machine do not decide about the examples
_METACHARACTER = (
    "An argument contains a shell metacharacter, but the call uses no shell.",
    "If you need a shell, pass one string with shell=True, or --shell on the command line.",
)


@frozen
class Page(Record):
    """The page of one rule."""

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
    """Return the sorted ids of all rules. `COMMAND` stands for any command's row."""
    ids = {*SHAPE_RULES, *(f"name-{name.removesuffix('.*')}" for name in DEFAULT_DENYLIST)}
    for key, data in effects().items():
        ids.add(f"argv-COMMAND-{key}" if data["axis"] == "argv" else f"{data['axis']}-{key}")
    return sorted(ids)


def page_of(rule: str) -> Page | None:
    """Return the page of a rule, or None for an unknown id."""
    axis, _, rest = rule.partition("-")
    if rule in SHAPE_RULES:
        return Page(rule, axis, *SHAPE_RULES[rule], _decisions(lambda _: "deny"))
    if axis == "name":
        return _name_page(rule, rest)
    for key, data in effects().items():
        command = rest.removesuffix(f"-{key}") if axis == "argv" else ""
        if data["axis"] == axis and (rest == key if axis != "argv" else command != rest):
            raw = _raw_row(command) if axis == "argv" else {}
            if raw is not None:
                return _effect_page(rule, key, command, raw)
    return None


def _raw_row(command: str) -> dict[str, Any] | None:
    """Return the raw row of a command or subcommand (`git-push`), or an empty one for no particular command."""
    if command in _NO_COMMAND:
        return {}
    rows = _raw_rows()
    while command and command not in rows:
        command = command.rpartition("-")[0]
    return {"id": command, **rows[command]} if command else None


@cache
def _raw_rows() -> dict[str, dict[str, Any]]:
    return read_tables()[1]


def _effect_page(rule: str, key: str, command: str, raw: dict[str, Any]) -> Page:
    data = effects()[key]
    name = "`COMMAND`" if command in ("", "unknown") else f"`{command}`"
    what = data["reason"].format(name=name, command=name, text="ARGUMENT", detail="")
    what, instead = _METACHARACTER if key == "metacharacter" else (what, data["instead"])
    decisions = _decisions(lambda profile: str(profile.effects[key]))
    refused, allowed = _examples(raw, f"argv-{raw.get('id')}-{key}")
    return Page(rule, data["axis"], what, instead, decisions, refused, allowed)


def _name_page(rule: str, name: str) -> Page | None:
    known = (row(name) or row(f"{name}.")) if name else None
    if known is None or "group" not in known:
        return None
    words = group(known["group"]) | known
    what = f"`{name}` is on the denylist: {words['why']}."
    decisions = _decisions(lambda profile: str(profile.groups[known["group"]]))
    return Page(rule, "name", what, words["instead"], decisions, *_examples(_raw_rows().get(known["id"], {}), rule))


def _decisions(decide: Callable[[Profile], str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, decide(profile_named(name))) for name in profile_names())


def _examples(raw: dict[str, Any], rule: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the refused examples of a row that meet this rule, as a row's examples show all of its rules, and the allowed ones."""
    texts = dict.fromkeys([*raw.get("deny", ()), *raw.get("workspace", {}).get("deny", ())])
    refused = [text for text in texts if rule in rules_met_by(text)]
    return tuple(refused[:MAX_EXAMPLES]), tuple(raw.get("allow", ())[:MAX_EXAMPLES])


def rules_met_by(text: str) -> frozenset[str]:
    """Return the ids of the rules that a shell text meets, on any machine."""
    config = SandboxConfig("/usr", profile=EXAMPLES_PROFILE)
    machine = Machine(_NO_PROJECT, home="/home/user")
    verdict = vet(Call(text, shell=True), config, machine)  # noqa: S604  it is judged, not run
    return frozenset(found.rule for found in verdict.findings)

"""Judges the examples that rules carry, under the profile and the rules of their own file. A wrong one is a PolicyError."""

from __future__ import annotations

from corral.config import SandboxConfig
from corral.errors import PolicyError
from corral.machine import Machine
from corral.model import Call, Decision
from corral.rulebook import CommandRule, Profile, profile_named
from corral.vet import vet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_EXAMPLES = {"allow": Decision.ALLOW, "ask": Decision.ASK, "deny": Decision.DENY}


def check_examples(parsed: dict[str, Any], path: str) -> None:
    """Judge every example of every rule of a file."""
    for rule, name, text in [(r, n, t) for r in parsed["rules"] for n in _EXAMPLES for t in r.get(n, ())]:
        verdict = vet(Call(text, shell=True), config_of(parsed), Machine("/nonexistent/project"))  # noqa: S604  judged, not run
        if verdict.decision is not _EXAMPLES[name]:
            why = f": {verdict.reason}" if verdict.reason else ""
            raise PolicyError(
                f"{path}:{rule['line']}:{rule['column']}: the example {text!r} should give {name}, "
                f"and gives {verdict.decision}{why}"
            )


def config_of(parsed: dict[str, Any]) -> SandboxConfig:
    """Return the config under which the rules of one file are judged."""
    settings = {key: value for key, value, _ in parsed["settings"]}
    base = profile_named(settings.get("profile", "workspace"))
    effects, groups = dict(base.effects), dict(base.groups)
    for key, value in settings.items():
        table, _, field = key.partition(".")
        if table in ("effects", "groups"):
            (effects if table == "effects" else groups)[field] = Decision[value.upper()]
    rules = tuple(
        CommandRule(r["words"], Decision[r["decision"].upper()], r.get("reason", ""), r.get("instead", ""), "this file")
        for r in parsed["rules"]
    )
    return SandboxConfig("/usr", profile=Profile(base.name, effects, groups, base.needs_containment, (rules,)))

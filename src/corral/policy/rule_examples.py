"""Judges the examples of a policy file's rules and grants, under the profile and the rules of that file alone. A wrong example is a PolicyError.

The result does not depend on the machine.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.guard.axes import user_rules
from corral.guard.evaluate import commands_of, vet
from corral.guard.machine import Machine
from corral.guard.rules.loader import default_denylist, profile_named
from corral.model.call import Call, Decision
from corral.policy.config import SandboxConfig
from corral.policy.merge import grant_of, profile_with, rule_of
from corral.policy.parser import error_at
from corral.policy.settings import DECISIONS, DEFAULT_PROFILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from corral.model.call import Verdict
    from corral.policy.answers.family_grants import PolicyGrant

_ROOT = "/nonexistent/project"


@frozen
class ExampleResult(Record):
    """The verdict on one example. `wrong` is the error message, empty where the example holds."""

    words: str
    line: int
    column: int
    text: str
    wanted: Decision
    decision: Decision
    wrong: str = ""


def compile_policy(parsed: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a file's settings, grants and rules, with the effects that each rule lifts. Raise PolicyError for a wrong example."""
    file = rules_of(parsed)
    for outcome in judge_examples(parsed):
        if outcome.wrong:
            raise error_at(path, (outcome.line, outcome.column), outcome.wrong)
    rules = []
    for raw, rule in zip(parsed["rules"], file, strict=True):
        kept = {name: raw[name] for name in ("words", "decision", "line", "column")}
        kept |= {name: raw[name] for name in ("reason", "instead", "exact") if raw.get(name)}
        rules.append({**kept, "lifts": rule.lifts})
    grants = [{name: value for name, value in raw.items() if name != "allow"} for raw in parsed["grants"]]
    return {"settings": parsed["settings"], "rules": rules, "grants": grants}


def judge_examples(parsed: dict[str, Any]) -> Iterator[ExampleResult]:
    """Judge every example of every rule and grant of a file."""
    file = rules_of(parsed)
    # Errors repeat the reason of a rule, and nobody has said yet whether the file is trusted.
    config = config_of(parsed, speaker="the rule")
    for raw, rule in zip(parsed["rules"], file, strict=True):
        for name in DECISIONS:
            for text in raw.get(name, ()):
                wanted = Decision[name.upper()]
                verdict = vet(_call(text), config, Machine(_ROOT))
                wrong = _wrong(text, wanted, verdict)
                if not wrong and wanted is rule.decision:
                    wrong = _decided_elsewhere(text, rule, file)
                yield ExampleResult(
                    " ".join(rule.words), raw["line"], raw["column"], text, wanted, verdict.decision, wrong
                )
    for raw in parsed["grants"]:
        config = config.replace(posture="balanced")
        words = " ".join(raw["words"])
        for text in raw["allow"]:
            grant = grant_of(raw, "this file", "/nonexistent").replace(project="")
            verdict = vet(_call(text), config.replace(policy_grants=(grant,)), Machine(_ROOT))
            wrong = _not_granted(text, verdict, grant)
            yield ExampleResult(words, raw["line"], raw["column"], text, Decision.ALLOW, verdict.decision, wrong)


def _not_granted(text: str, verdict: Verdict, grant: PolicyGrant) -> str:
    """Return an error message where an example is not allowed by its own grant."""
    asked = [finding for finding in verdict.findings if finding.decision is not Decision.ALLOW]
    if any(finding.grants for finding in verdict.findings) and all(grant.covers(each, _ROOT) for each in asked):
        others = ", ".join(verdict.others) if grant.alone else ""
        return (
            f"the example {text!r} also runs {others}, which could use the grant; set alone = false" if others else ""
        )
    needed = ", ".join(f"{each.kind} {each.target}" for each in verdict.grants)
    why = f"it needs {needed}" if needed else verdict.reason or "it needs no grant"
    return f"the example {text!r} is not allowed by this grant: {why}"


def _wrong(text: str, wanted: Decision, verdict: Verdict) -> str:
    if verdict.decision is wanted:
        return ""
    why = f": {verdict.reason}" if verdict.reason else ""
    return f"the example {text!r} should give {wanted}, but gives {verdict.decision}{why}"


def _decided_elsewhere(text: str, rule: Any, file: tuple[Any, ...]) -> str:
    """Return an error message where an example is not decided by its own rule."""
    commands, _ = commands_of(_call(text), Machine(_ROOT))
    if any(match.rule is rule for command in commands for match in user_rules.matches(command, file)):
        return ""
    return f"the example {text!r} gives {rule.decision}, but not by this rule: it does not begin with {' '.join(rule.words)!r}"


def rules_of(parsed: dict[str, Any], *, speaker: str = "") -> tuple[Any, ...]:
    """Return the rules of a file, each with the effects that its allowed examples have."""
    made = []
    for raw in parsed["rules"]:
        rule = rule_of(raw, "this file", speaker=speaker)
        if rule.decision is Decision.ALLOW:
            lifts: set[str] = set()
            for text in raw.get("allow", ()):
                lifts |= user_rules.liftable_effects(commands_of(_call(text), Machine(_ROOT))[0], rule)
            rule = rule.replace(lifts=tuple(sorted(lifts)))
        made.append(rule)
    return tuple(made)


def config_of(parsed: dict[str, Any], *, speaker: str = "") -> SandboxConfig:
    """Return the config under which the rules of one file are judged."""
    settings = {key: value for key, value, _, _ in parsed["settings"]}
    base = profile_with(profile_named(settings.get("profile", DEFAULT_PROFILE)), settings)
    rules = rules_of(parsed, speaker=speaker)
    profile = base.replace(commands=(rules,) if rules else ())
    listed = default_denylist(profile) | set(settings.get("denylist", ()))
    return SandboxConfig("/usr", profile=profile, denylist=listed)


def _call(text: str) -> Call:
    return Call(text, shell=True)  # noqa: S604  judged, not run

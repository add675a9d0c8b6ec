"""The JSON Schema of policy files, made of the same table that parses them."""

from __future__ import annotations

from corral.guard.rules.loader import effects, group_names
from corral.policy.parser import MAX_RULES, RULE_KEYS
from corral.policy.settings import DECISION_TABLES, DECISIONS, LIST_KINDS, SETTINGS, TABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = r"^[^\s/\u0000](?:[^/\u0000]*[^\s/\u0000])?$"
_PATTERNS = {
    "names": r"^[^\s/*\u0000](?:[^/*\u0000]*[^\s/*\u0000])?$",
    "patterns": _NAME,
    "paths": r"^(?:~/|/)[^\u0000]*[^/\u0000]",
    "agents": r"^[a-z0-9-]+$",
    "hosts": r"^[^=\s\u0000]+=[^=\s\u0000]+$",
    "headers": r"^[^\s\u0000]+:[0-9]+ [^\s:]+: *[ -~]*[!-~]",
    "network": r"^(?:\*\.)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[1-9][0-9]{0,4}$",
}
_RULE = {
    "command": {
        "description": "The first words of a command: options and paths in front of them are looked through.",
        "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}],
    },
    "decision": {"description": "What becomes of it.", "enum": list(DECISIONS)},
    "reason": {"description": "Why; the agent reads it.", "type": "string"},
    "instead": {"description": "What to do instead; the agent reads it.", "type": "string"},
    "exact": {"description": "Whether nothing may stand behind the words of what is allowed.", "type": "boolean"},
}  # fmt: skip


def schema() -> dict[str, Any]:
    """Return the schema."""
    properties: dict[str, Any] = {key: _value(key) for key in SETTINGS if "." not in key}
    for table in TABLES:
        properties[table] = _table({k.partition(".")[2]: _value(k) for k in SETTINGS if k.startswith(f"{table}.")})
    for table, names in zip(DECISION_TABLES, (sorted(effects()), sorted(group_names())), strict=True):
        properties[table] = _table({name: {"enum": list(DECISIONS)} for name in names})
    properties["rule"] = {"type": "array", "maxItems": MAX_RULES, "items": _rule()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:corral:policy:1",
        "title": "A policy file of corral: the owner's policy.toml, or a project's corral.toml",
        **_table(properties),
    }


def _table(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(key: str) -> dict[str, Any]:
    row = SETTINGS[key]
    made: dict[str, Any] = {"description": row.what}
    if row.kind in LIST_KINDS:
        return made | {
            "type": "array",
            "uniqueItems": True,
            "items": {"enum": list(row.choices)} if row.choices else {"type": "string", "pattern": _PATTERNS[row.kind]},
        }
    if row.kind == "network":
        named = {"type": "string", "pattern": _PATTERNS["network"]}
        return made | {"anyOf": [{"enum": list(row.choices)}, {"type": "array", "uniqueItems": True, "items": named}]}
    if row.kind in ("choice", "switch"):
        return made | {"enum": list(row.choices)}
    if row.kind == "seconds":
        least = {"minimum": 0} if row.zero else {"exclusiveMinimum": 0}
        return made | {"type": "number", **least, "maximum": row.most}
    whole = {"type": "integer", "minimum": 0 if row.zero else 1, "maximum": row.most}
    if row.kind == "share":
        return made | {"anyOf": [whole, {"type": "number", "exclusiveMinimum": 0, "maximum": 1}]}
    return made | whole


def _rule() -> dict[str, Any]:
    examples = {"type": "array", "items": {"type": "string", "pattern": r"\S"}}
    own = _RULE | {word: {"description": f"Commands for which the answer is {word}.", **examples} for word in DECISIONS}
    needed = [
        {
            "if": {"properties": {"decision": {"const": word}}},
            "then": {"required": [word], "properties": {word: {"minItems": 1}}},
        }
        for word in DECISIONS
    ]
    exact = {
        "if": {"properties": {"exact": {"const": True}}, "required": ["exact"]},
        "then": {"properties": {"decision": {"const": "allow"}}},
    }
    return {
        **_table({key: own[key] for key in RULE_KEYS}),
        "required": ["command", "decision"],
        "allOf": [*needed, exact],
    }

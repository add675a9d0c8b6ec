"""Builds the JSON Schema of policy files from the table of settings. Run it to write the published file."""

import json
from pathlib import Path
from typing import Any

import corral
from corral.guard.rules.loader import effects, group_names
from corral.policy.parser import GRANT_KEYS, MAX_GRANTS, MAX_RULES, RULE_KEYS
from corral.policy.settings import DECISION_TABLES, DECISIONS, LIST_KINDS, SETTINGS, TABLES

PUBLISHED = Path(corral.__file__).parent / "model" / "schemas" / "policy.schema.json"

_PATTERN = r"^[^\s/\u0000](?:[^/\u0000]*[^\s/\u0000])?$"
_PATTERNS = {
    "names": r"^[^\s/*\u0000](?:[^/*\u0000]*[^\s/*\u0000])?$",
    "patterns": _PATTERN,
    "paths": r"^(?:~/|/)[^\u0000]*[^/\u0000]",
    "keys": r"^(?:(?:~/|/)[^\u0000]*[^/\u0000]|gpg:(?:[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64})$)",
    "agents": r"^[a-z0-9-]+$",
    "hosts": r"^[^=\s\u0000]+=[^=\s\u0000]+$",
    "headers": r"^[^\s\u0000]+:[0-9]+ [^\s:]+: *[ -~]*[!-~]",
    "network": r"^(?:\*\.)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[1-9][0-9]{0,4}$",
}
_RULE: dict[str, Any] = {
    "command": {
        "description": "The first words of a command. Options between them and the path of the program are ignored.",
        "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}],
    },
    "decision": {"description": "The decision for commands that begin with these words.", "enum": list(DECISIONS)},
    "reason": {"description": "The reason, which the agent reads.", "type": "string"},
    "instead": {"description": "The alternative, which the agent reads.", "type": "string"},
    "exact": {"description": "Whether the rule allows the words alone, with nothing after them.", "type": "boolean"},
}  # fmt: skip

_PORTS = {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 1, "maximum": 65535}}
_GRANT: dict[str, Any] = {
    "command": {
        **_RULE["command"],
        "description": "The first words of the commands that get the openings without a question.",
    },
    "network": {
        "description": "Destinations, as host:port. @npm stands for the hosts that npm is configured for; likewise for other package managers.",
        "pattern": r"^(?:@[a-z][a-z0-9-]*|(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[1-9][0-9]{0,4})$",
    },
    "read": {"description": "Paths that the command may read.", "pattern": _PATTERNS["paths"]},
    "write": {"description": "Paths that the command may change.", "pattern": _PATTERNS["paths"]},
    "local": {"description": "Ports of this machine's loopback that the command may connect to.", **_PORTS},
    "publish": {"description": "Ports of the sandbox that this machine may connect to.", **_PORTS},
    "fetch": {"description": "URLs of git remotes that the command may fetch from.", "pattern": r"^[!-~]+$"},
    "push": {
        "description": "URLs of git remotes that the command may push to, each with the refs. A ref may end in *.",
        "pattern": r"^[!-~]+( refs/heads/[!-)+-~]+\*?)*$",
    },
    "broker": {
        "description": "Commands that run outside the sandbox for it, as program/shape.",
        "pattern": r"^[a-z][a-z0-9-]*/[A-Za-z0-9._@:-]+$",
    },
    "project": {"description": "The only project that this is for.", "type": "string", "pattern": r"^(?:$|/|~/)"},
    "alone": {
        "description": "Whether the openings are only for calls in which nothing else could use them. The default is true.",
        "type": "boolean",
    },
    "always": {
        "description": "Whether each such command gets the hosts, also where its words do not name them. `corral learn` writes it.",
        "type": "boolean",
    },
    "allow": {
        "description": "Example commands that this grant allows.",
        "type": "array",
        "items": {"type": "string", "pattern": r"\S"},
    },
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema."""
    properties: dict[str, Any] = {key: _value(key) for key in SETTINGS if "." not in key}
    for table in TABLES:
        properties[table] = _table({k.partition(".")[2]: _value(k) for k in SETTINGS if k.startswith(f"{table}.")})
    for table, names in zip(DECISION_TABLES, (sorted(effects()), sorted(group_names())), strict=True):
        properties[table] = _table({name: {"enum": list(DECISIONS)} for name in names})
    properties["rule"] = {"type": "array", "maxItems": MAX_RULES, "items": _rule()}
    properties["grant"] = {"type": "array", "maxItems": MAX_GRANTS, "items": _grant()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:corral:policy:1",
        "title": "A policy file of corral: the user's policy.toml, or a project's corral.toml",
        **_table(properties),
    }


def _table(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(key: str) -> dict[str, Any]:
    spec = SETTINGS[key]
    made: dict[str, Any] = {"description": spec.description}
    if spec.kind == "ports":
        return made | _PORTS
    if spec.kind in LIST_KINDS:
        return made | {
            "type": "array",
            "uniqueItems": True,
            "items": {"enum": list(spec.choices)}
            if spec.choices
            else {"type": "string", "pattern": _PATTERNS[spec.kind]},
        }
    if spec.kind == "network":
        named = {"type": "string", "pattern": _PATTERNS["network"]}
        return made | {"anyOf": [{"enum": list(spec.choices)}, {"type": "array", "uniqueItems": True, "items": named}]}
    if spec.kind in ("choice", "switch"):
        return made | {"enum": list(spec.choices)}
    if spec.kind == "seconds":
        least = {"minimum": 0} if spec.takes_zero else {"exclusiveMinimum": 0}
        return made | {"type": "number", **least, "maximum": spec.max}
    whole = {"type": "integer", "minimum": 0 if spec.takes_zero else 1, "maximum": spec.max}
    if spec.kind == "share":
        return made | {"anyOf": [whole, {"type": "number", "exclusiveMinimum": 0, "maximum": 1}]}
    return made | whole


def _rule() -> dict[str, Any]:
    examples = {"type": "array", "items": {"type": "string", "pattern": r"\S"}}
    properties = _RULE | {
        word: {"description": f"Example commands whose decision is {word}.", **examples} for word in DECISIONS
    }
    needs_example = [
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
        **_table({key: properties[key] for key in RULE_KEYS}),
        "required": ["command", "decision"],
        "allOf": [*needs_example, exact],
    }


def _grant() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key in GRANT_KEYS:
        given = dict(_GRANT[key])
        if "type" not in given and "anyOf" not in given:
            items = {"type": "string", "pattern": given.pop("pattern")}
            given |= {"type": "array", "uniqueItems": True, "items": items}
        made[key] = given
    lists = [key for key in GRANT_KEYS if made[key].get("uniqueItems")]
    opens = [{"required": [key], "properties": {key: {"minItems": 1}}} for key in lists]
    return {**_table(made), "required": ["command"], "anyOf": opens}


if __name__ == "__main__":
    PUBLISHED.write_text(json.dumps(schema(), indent=2) + "\n")

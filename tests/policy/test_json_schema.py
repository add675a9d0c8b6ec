"""The published schema and the parser accept the same policy files."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import corral
from corral.apps.cli.verbs.init import project_text, user_text
from corral.guard.rules.loader import effects, group_names
from corral.model.errors import PolicyError
from corral.policy.parser import GRANT_KEYS, RULE_KEYS, parse
from corral.policy.project_types import PROJECT_TYPES
from corral.policy.settings import DECISIONS, LIST_KINDS, SETTINGS, TABLES

sys.path.append(str(Path(corral.__file__).parents[2] / "tools"))
from policy_schema import schema

PUBLISHED = json.loads((Path(corral.__file__).parent / "model" / "schemas" / "policy.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(PUBLISHED)
RULE = {"command": "git push", "decision": "deny", "deny": ["git push"]}


def test_published_schema_is_current() -> None:
    assert json.loads(json.dumps(schema())) == PUBLISHED, "run: python tools/policy_schema.py"


def test_schema_has_exactly_the_keys_of_the_parser() -> None:
    properties = PUBLISHED["properties"]
    keys = {key for key in properties if properties[key].get("type") != "object" and key not in ("rule", "grant")}
    keys |= {f"{table}.{key}" for table in TABLES for key in properties[table]["properties"]}
    assert keys == set(SETTINGS)
    assert set(properties["effects"]["properties"]) == set(effects())
    assert set(properties["groups"]["properties"]) == set(group_names())
    assert set(properties["rule"]["items"]["properties"]) == set(RULE_KEYS)
    assert set(properties["grant"]["items"]["properties"]) == set(GRANT_KEYS)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=True)


def nested(key: str, value: Any) -> dict[str, Any]:
    table, _, field = key.partition(".")
    return {table: {field: value}} if field else {table: value}


def parses(tree: dict[str, Any]) -> bool:
    text = "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in tree.items())
    assert tomllib.loads(text) == tree
    try:
        parse(text.encode(), "F")
    except PolicyError:
        return False
    return True


def values(key: str) -> list[Any]:
    row = SETTINGS[key]
    if row.choices:
        return [*row.choices, "nonsense", 1, None]
    if row.kind in LIST_KINDS:
        return [
            [],
            ["make"],
            ["make", "make"],
            [""],
            [5],
            "make",
            ["/usr/share"],
            ["~/x"],
            ["/"],
            ["a/b"],
            [" x"],
            ["X*"],
            ["a b"],
        ]
    return [0, 1, 0.5, 1.5, -1, True, "1", row.max, row.max * 2, [1], 2**62]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(k, v) for k in SETTINGS for v in values(k) if v is not None], ids=repr)
def test_schema_and_parser_agree_on_values(key: str, value: Any) -> None:
    if isinstance(value, float) and value.is_integer():
        # JSON treats 2.0 as an integer, TOML does not.
        value = int(value)
    assert VALIDATOR.is_valid(nested(key, value)) is parses(nested(key, value))


@pytest.mark.parametrize(
    "rule",
    [
        RULE,
        {"command": ["git", "push"], "decision": "ask", "ask": ["git push"], "reason": "x", "instead": "y"},
        {"command": "make", "decision": "allow", "allow": ["make"], "exact": True},
        {"command": "make", "decision": "deny", "deny": ["make"], "exact": False},
        {**RULE, "exact": True},
        {**RULE, "exact": "yes"},
        {**RULE, "deny": []},
        {**RULE, "deny": [" "]},
        {**RULE, "deny": "git push"},
        {**RULE, "decision": "refuse"},
        {**RULE, "command": ""},
        {**RULE, "command": []},
        {**RULE, "command": 5},
        {**RULE, "unknown": 1},
        {**RULE, "reason": 5},
        {"command": "git push"},
        {"decision": "deny", "deny": ["git push"]},
        {"command": "git push", "decision": "deny", "allow": ["git push"]},
    ],
    ids=repr,
)  # fmt: skip
def test_schema_and_parser_agree_on_rules(rule: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid({"rule": [rule]}) is parses({"rule": [rule]})


@pytest.mark.parametrize(
    "grant",
    [
        {"command": "npm install", "network": ["@npm", "a.example:443"]},
        {
            "command": ["npm", "install"],
            "network": ["@npm"],
            "alone": False,
            "project": "~/x",
            "allow": ["npm install"],
        },
        {"command": "npm", "publish": [3000]},
        {"command": "git push", "push": ["git@forge.example:me/app.git refs/heads/agent/*"]},
        {"command": "gh", "broker": ["gh/read"]},
        {"command": "x"},
        {"command": "x", "network": []},
        {"network": ["a.example:443"]},
        {"command": "x", "network": "a.example:443"},
        {"command": "x", "network": ["a.example"]},
        {"command": "x", "network": ["*.a.example:443"]},
        {"command": "x", "network": ["@"]},
        {"command": "x", "network": ["a.example:1", "a.example:1"]},
        {"command": "x", "publish": [0]},
        {"command": "x", "publish": ["3000"]},
        {"command": "x", "read": ["lib"]},
        {"command": "x", "read": ["~/lib"], "project": "lib"},
        {"command": "x", "read": ["~/lib"], "alone": "no"},
        {"command": "x", "push": ["origin refs/tags/*"]},
        {"command": "x", "fetch": ["origin refs/heads/x"]},
        {"command": "x", "broker": ["gh"]},
        {"command": "x", "colour": [1]},
        {"command": "x", "read": ["~/lib"], "allow": [""]},
    ],
    ids=str,
)
def test_schema_and_parser_agree_on_grants(grant: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid({"grant": [grant]}) is parses({"grant": [grant]})


@pytest.mark.parametrize("table", ["effects", "groups"])
def test_schema_and_parser_agree_on_decisions(table: str) -> None:
    known = effects() if table == "effects" else group_names()
    for name in [*known, "nothing"]:
        for word in (*DECISIONS, "maybe"):
            assert VALIDATOR.is_valid({table: {name: word}}) is parses({table: {name: word}})


@given(
    st.dictionaries(
        st.sampled_from([*SETTINGS, *TABLES, "rule", "effects", "x"]), st.sampled_from([1, "x", True]), max_size=2
    )
)
def test_schema_and_parser_agree_on_keys(tree: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(tree) is parses(tree)


@pytest.mark.parametrize("kinds", [[], *[[kind] for kind in PROJECT_TYPES], list(PROJECT_TYPES)], ids=lambda kinds: "+".join(k.name for k in kinds) or "none")  # fmt: skip
def test_project_file_from_init_fits_the_schema(kinds: list[Any]) -> None:
    VALIDATOR.validate(tomllib.loads(project_text(kinds)))


def test_user_file_from_init_fits_the_schema() -> None:
    VALIDATOR.validate(tomllib.loads(user_text()))

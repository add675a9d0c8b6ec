"""Generates the reference pages from the command line parsers, the policy keys and the JSON Schemas."""

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import corral
from corral.apps.cli.arguments import verb_parser
from corral.apps.cli.help import EXIT_CODES
from corral.apps.cli.verb import GROUPS, Verb, grouped_verbs, load_verb
from corral.policy.config import SandboxConfig
from corral.policy.parser import GRANT_KEYS, RULE_KEYS
from corral.policy.settings import CONFIG_FIELDS, LIST_KINDS, SETTINGS
from policy_schema import schema

SCHEMAS = Path(corral.__file__).parent / "model" / "schemas"
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TIGHTER = {
    "lower": "a smaller number",
    "higher": "a larger number",
    "less": "a smaller number",
    "adds": "anything added",
    "grants": "nothing added",
    "free": "either",
    "owner": "nothing: only the user's own file may have it",
    "network": "`off`, or fewer destinations",
}
KINDS = {
    "whole": "a whole number",
    "share": "a whole number, or a share below 1",
    "seconds": "seconds",
    "names": "a list of names",
    "patterns": "a list of names; `*` ends a prefix",
    "paths": "a list of paths, absolute or below `~/`",
    "keys": "a list of paths, absolute or below `~/`, or of `gpg:FINGERPRINT`",
    "network": '`"on"`, `"off"`, or a list of destinations: `"pypi.org:443"`',
    "agents": "a list of names",
    "hosts": "a list of `name=address`",
    "ports": "a list of port numbers",
    "headers": "a list of `name:port Header: value`",
}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def cli_page() -> str:
    """Return the page of all commands and their options, as `--help` prints them."""
    lines = [
        "# Every option\n",
        "Made by `make docs` from the verbs themselves. [The command line](../cli.md) introduces the commands.\n",
        "`corral --version` prints the version. `corral COMMAND --help` prints the text below.\n",
    ]
    groups = grouped_verbs()
    for group, verbs in groups.items():
        links = ", ".join(f"[`{verb}`](#corral-{verb})" for verb in verbs)
        lines.append(f"* {GROUPS[group]}: {links}")
    lines += [verb_section(verb) for verbs in groups.values() for verb in verbs]
    lines += ["## Exit codes\n", "```text", EXIT_CODES.partition("\n")[2].rstrip(), "```\n"]
    return "\n".join(lines)


def verb_section(name: str) -> str:
    """Return the section of one command: usage, options, examples, notes and exit codes."""
    verb, parser = load_verb(name).VERB, verb_parser(name)
    lines = [f"\n## corral {name}\n", f"{verb.summary}\n", "```text", _usage(name, verb, parser), "```\n"]
    options = [_option(action) for action in parser._actions if action.help not in (None, argparse.SUPPRESS)]
    if len(options) > 1:
        lines += ["| option | |", "|---|---|", *options[1:], ""]
    lines += ["Examples:\n", *[_example(line) for line in verb.examples.splitlines()], ""]
    if verb.notes:
        lines.append(verb.notes.replace("<", "&lt;"))
    lines.append(f"Exit code: {verb.exit_codes}.\n")
    return "\n".join(lines)


def _usage(name: str, verb: Verb, parser: argparse.ArgumentParser) -> str:
    # argparse wraps its usage differently in each version of Python.
    if verb.usage:
        return "\n".join(f"corral {line}" for line in verb.usage)
    words = [
        action.metavar for action in parser._actions if not action.option_strings and action.help != argparse.SUPPRESS
    ]
    return " ".join([f"corral {name}", *(str(word) for word in words if word), "[options]"])


def _option(action: argparse.Action) -> str:
    value = f" {action.metavar}" if action.metavar and action.nargs != 0 and isinstance(action.metavar, str) else ""
    if isinstance(action.metavar, tuple):
        value = " " + " ".join(action.metavar)
    if action.choices and not action.metavar:
        value = " " + "\\|".join(str(choice) for choice in action.choices)
    spelled = (
        ", ".join(f"`{name}{value}`".replace("\\|", "|") for name in action.option_strings) or f"`{value.strip()}`"
    )
    return f"| {_cell(spelled)} | {_cell(str(action.help))} |"


def _example(line: str) -> str:
    command, _, comment = line.partition("  ")
    fence = "``" if "`" in command else "`"
    return f"* {fence}{command}{fence}" + (f": {comment.strip()}" if comment else "")


def _default(key: str) -> str:
    """Return the default of a key for the command line, in the syntax of a policy file."""
    if key == "profile":
        return '"workspace"'
    if key == "containment.scratch":
        return '"project"'
    value: Any = SandboxConfig(os.sep + "usr")
    for name in CONFIG_FIELDS.get(key, key).split("."):
        value = getattr(value, name)
    if SETTINGS[key].kind in LIST_KINDS:
        return "[]"
    return json.dumps(0 if value is None else value)


def _tighter(key: str) -> str:
    row = SETTINGS[key]
    if row.tighter != "rank":
        return TIGHTER[row.tighter]
    if row.equal:
        return f"anything but `{row.choices[0]}`, once it is `{row.choices[0]}`"
    return f"`{_word(row.choices[-1])}`"


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _takes(key: str) -> str:
    row = SETTINGS[key]
    if row.kind in KINDS:
        return KINDS[row.kind]
    return ", ".join(f"`{json.dumps(choice)}`" for choice in row.choices)


def policy_page() -> str:
    """Return the page of all keys of a policy file."""
    rule, grant = (schema()["properties"][key]["items"]["properties"] for key in ("rule", "grant"))
    lines = [
        "---\nhide: [toc]\n---\n\n# Every policy key\n",
        "Made by `make docs` from the table that parses the files. [Policy files](../policy.md) says how files are combined.\n",
        "For a limit that can be switched off, `0` means no limit. The last column says which values an untrusted project file may set.\n",
        "| key | meaning | takes | built in | tighter is |",
        "|---|---|---|---|---|",
    ]
    for key, row in SETTINGS.items():
        lines.append(
            f"| `{key}` | {_cell(row.description)} | {_cell(_takes(key))} | `{_default(key)}` | {_tighter(key)} |"
        )
    lines += [
        "\n`[effects]` and `[groups]` take the names in [Rules](../rules.md), each with `allow`, `ask` or `deny`.\n",
        "## `[[rule]]`\n",
        "| key | meaning |",
        "|---|---|",
    ]
    lines += [
        f"| `{key}` | {_cell(rule[key].get('description', 'Examples of it, each of them judged.'))} |"
        for key in RULE_KEYS
    ]
    lines += ["\n## `[[grant]]`\n", "Only the user's own file may have these.\n", "| key | meaning |", "|---|---|"]
    lines += [f"| `{key}` | {_cell(grant[key]['description'])} |" for key in GRANT_KEYS]
    return "\n".join(lines) + "\n"


def schema_page(name: str, title: str, head: str) -> str:
    """Return the page of a JSON Schema: tables of its fields, then the schema itself."""
    text = (SCHEMAS / f"{name}.schema.json").read_text()
    data = json.loads(text)
    lines = [
        f"# {title}\n",
        f"Made by `make docs` from `corral/model/schemas/{name}.schema.json`. {head}\n",
        data["description"] + "\n",
    ]
    lines += _fields(data)
    for key, part in data.get("$defs", {}).items():
        if "properties" in part:
            lines += [f"## {key}\n", *([part["description"] + "\n"] if "description" in part else []), *_fields(part)]
    lines += ["## The schema\n", "```json", text.rstrip(), "```\n"]
    return "\n".join(lines)


def _fields(part: dict[str, Any]) -> list[str]:
    required = part.get("required", ())
    lines = ["| field | type | |", "|---|---|---|"]
    for key, value in part["properties"].items():
        told = value.get("description", "") + ("" if key in required else " Not always there.")
        lines.append(f"| `{key}` | {_cell(_type(value))} | {_cell(told.strip())} |")
    return [*lines, ""]


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})" if name != "decision" else "`allow`, `ask`, `deny`"
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if value.get("type") == "array" and "items" in value:
        return f"list of {_type(value['items'])}"
    kind = value.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def examples_page() -> str:
    """Return the page with the files of examples/."""
    head = (
        (EXAMPLES / "README.md")
        .read_text()
        .replace("# Examples\n", "# Examples\n\nMade by `make docs` from `examples/`.\n", 1)
    )
    names = re.findall(r"\]\(([^)]+)\)", head)
    for name in names:
        head = head.replace(f"]({name})", f"](#{re.sub(r'[^a-z0-9_-]', '', name)})")
    lines = [head]
    for name in names:
        text = (EXAMPLES / name).read_text().rstrip()
        lines += [
            f"## {name}\n",
            f'```{"python" if name.endswith(".py") else "toml"} title="examples/{name}"',
            text,
            "```\n",
        ]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return every page by its path below docs/."""
    # The width of the terminal must not change the help texts.
    os.environ["COLUMNS"] = "100"
    return {
        "examples.md": examples_page(),
        "reference/cli.md": cli_page(),
        "reference/policy.md": policy_page(),
        "reference/result.md": schema_page(
            "result", "The result's schema", "[Results](../results.md) explains the fields."
        ),
        "reference/audit.md": schema_page("audit", "The log's schema", "[The log](../audit.md) explains the fields."),
    }

"""Generates the pages of the rules from the rule tables alone. The same tables give the same pages on every machine."""

import re
from collections import defaultdict
from functools import cache
from typing import Any

from corral.apps.rule_pages import MAX_EXAMPLES, Page, page_of, rules_met_by
from corral.guard.axes.structure import SHAPE_RULES
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.rules.compiler import read_tables
from corral.guard.rules.loader import profile_named
from corral.integrations.hooks.registry import HOSTS
from corral.model.call import Axis, Call
from corral.policy.config import SandboxConfig

HEAD = """# Rules

Made by `make docs` from `src/corral/guard/rules/*.toml`; [Writing a rule](writing-rules.md) says how to add one. `corral rule ID` prints the
page of a rule, and every finding has its id.

An id begins with its axis: `name-reboot`, `argv-git-discard`, `structure-unparsed`, `path-read-secret`. Of an id on the argv axis the
middle is the command, so `argv-git-discard` and `argv-jj-discard` are one rule, and its page is [argv-discard](rules/argv-discard.md).

"""
NEVER_THERE = "/nonexistent/project"  # as for the examples in policy files: files of this machine do not count
ALWAYS_THERE = ("/", "/etc", "/etc/passwd", "/etc/hosts", "/usr", "/tmp", "/dev/null", "/dev/mem")
QUESTIONS = {
    "name": "may a program of this name run?",
    "argv": "do the arguments carry code, or do more than they say?",
    "structure": "can every part be read with certainty?",
    "path": "does every path stay in the project?",
}


# Cached: parsing the tables takes half a second, and every page needs the profiles.
PROTECTED_HEAD = """# Protected files

These files run later, outside the sandbox: a program runs or obeys them when the user enters a directory, opens a folder, starts an editor, an
agent, a debugger or an interpreter there, or runs git. corral protects them in every directory of the project and of write grants:

* Commands cannot change a file that exists. A file that a command creates is moved to quarantine and reported as `planted`.
* A transaction does not apply them.
* The file tools of agent hosts, and `Sandbox.write_bytes`, refuse to write them. They also refuse everything in a git directory, the file that
  would make a directory one, and the targets of `core.hooksPath`, `include.path` and of links with a name in this table. On names in other
  spellings (`.ENVRC`), they behave as on a file system that ignores case.

Files of the home directory count only where the home directory, or a directory in it such as `~/.config`, is itself the project. Files that
say what the project is built from (`package.json`, `Makefile`, `CLAUDE.md`) are not protected: agents write them every day, and the user runs
them by name. `*` stands for a part of a name, `{a,b}` for each of them, `/**` for everything below.

Made by `make docs` from `src/corral/guard/rules/runs_later.toml` and the agent hosts.
"""

_tables = cache(read_tables)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _shown(text: str) -> str:
    return _code(text.replace("\n", "⏎").replace("|", "\\|"))


def _listed(text: str) -> str:
    return _code(text.replace("\n", "⏎"))


def _page_id(key: str, axis: str) -> str:
    return f"{axis}-{key}"


def _page(key: str, axis: str) -> Page:
    found = page_of(f"argv-COMMAND-{key}" if axis == "argv" else _page_id(key, axis))
    assert found is not None
    return found


def effects_table(tables: dict[str, dict[str, Any]]) -> str:
    """Return the tables of effects and groups, with the decision of each profile."""
    profiles = [profile_named(name) for name in tables["profiles"]]
    names = " | ".join(p.name for p in profiles)
    rule = "|".join(["---"] * len(profiles))
    lines = ["## Effects\n", f"| effect | axis | {names} | reason |", f"|---|---|{rule}|---|"]
    for key, data in tables["effects"].items():
        decisions = " | ".join(str(p.effects[key]) for p in profiles)
        link = f"[`{key}`](rules/{_page_id(key, data['axis'])}.md)"
        what = _page(key, data["axis"]).what.replace("|", "\\|")
        lines.append(f"| {link} | {data['axis']} | {decisions} | {what} |")
    lines += ["\n## Groups of names\n", f"| group | {names} | why |", f"|---|{rule}|---|"]
    for key, data in tables["groups"].items():
        decisions = " | ".join(str(p.groups[key]) for p in profiles)
        lines.append(f"| [`{key}`](rules/name-{key}.md) | {decisions} | {data['why']} |")
    return "\n".join(lines) + "\n"


def shapes_table() -> str:
    """Return the table of refusals that happen before any rule applies. No profile allows these."""
    lines = [
        "## Calls without a shape\n",
        "Refused by every profile.\n",
        "| rule | refuses | instead |",
        "|---|---|---|",
    ]
    lines += [f"| `{rule}` | {what} | {instead} |" for rule, (what, instead) in SHAPE_RULES.items()]
    return "\n".join(lines) + "\n"


def _options(row: dict[str, Any]) -> list[str]:
    told = [
        f"{_code(spelled)}: {_code(value)}"
        for spelled, value in row.get("options", {}).items()
        if (value and any(":" in word for word in value.split()))
        or value in ("rewrites", "discards", "changes", "kills")
    ]
    return [f"* options: {', '.join(told)}"] if told else []


def row_page(name: str, row: dict[str, Any]) -> str:
    """Return the section of one rule: its names, its effects, and its examples."""
    lines = [f"## {name}\n"]
    others = [n for n in row.get("names", [name]) if n != name]
    if others:
        lines.append(f"* also: {', '.join(_code(n) for n in others)}")
    if "group" in row:
        lines.append(f"* group: [`{row['group']}`](../name-{row['group']}.md)")
    if row.get("operands"):
        lines.append(f"* operands: {', '.join(_code(o) for o in row['operands'])}")
    lines += _options(row)
    if "sub" in row:
        lines.append(f"* subcommands: {', '.join(_code(s or 'any other') for s in row['sub'])}")
    for profile, source in (("strict", row), ("workspace", row.get("workspace", {}))):
        for kind in ("deny", "allow"):
            if source.get(kind):
                word = "not allowed" if kind == "deny" else "allowed"
                lines.append(f"* {word} under `{profile}`: {', '.join(_listed(t) for t in source[kind])}")
    return "\n".join(lines) + "\n"


def _is_everywhere(text: str) -> bool:
    """Return True if an example gives the same result on every machine."""
    return not text.startswith("/") or text in ALWAYS_THERE


def examples_by_rule(rows: dict[str, dict[str, Any]]) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Return for each effect some examples that have it, and the commands that can have it."""
    config = SandboxConfig("/usr", profile="strict")
    endings = sorted((key for key, data in _tables()[0]["effects"].items() if data["axis"] == "argv"), key=len)
    machine = Machine(NEVER_THERE, home="/home/user")
    found: dict[str, list[str]] = defaultdict(list)
    commands: dict[str, set[str]] = defaultdict(set)
    for row in rows.values():
        for text in [*row.get("deny", ()), *row.get("workspace", {}).get("deny", ())]:
            for finding in vet(Call(text, shell=True), config, machine).findings:
                if finding.axis is Axis.PATH and not _is_everywhere(finding.text):
                    continue
                key = finding.rule
                if finding.axis is Axis.ARGV:
                    key = f"argv-{[ending for ending in endings if key.endswith(f'-{ending}')][-1]}"
                    commands[key].add(row["id"])
                if text not in found[key] and len(found[key]) < MAX_EXAMPLES:
                    found[key].append(text)
    return found, commands


def effect_page(page: str, key: str, data: dict[str, str], found: list[str], commands: set[str]) -> str:
    """Return the page of one effect: its meaning, the reason, the alternative, the decision of each profile, and examples."""
    axis = data["axis"]
    told = _page(key, axis)
    lines = [f"# {page}\n", f"{told.what}\n", *([f"**Instead.** {told.instead}\n"] if told.instead else [])]
    lines += [f"| axis | {axis}: {QUESTIONS[axis]} |", "|---|---|"]
    ids = (
        f"`argv-COMMAND-{key}`, such as `argv-{min(commands, default='call')}-{key}`" if axis == "argv" else f"`{page}`"
    )
    lines += [f"| id in findings | {ids} |"]
    for name in _tables()[0]["profiles"]:
        lines.append(f"| `{name}` | {profile_named(name).effects[key]} |")
    lines += [f'| in a policy file | `[effects]` `{key} = "allow"`, `"ask"` or `"deny"` |', ""]
    if found:
        lines += ["## Examples\n", "Calls that meet it, all of them tests:\n"]
        lines += [f"* {_listed(text)}" for text in found]
        lines.append("")
    if commands:
        lines += ["## Commands that can\n", ", ".join(f"`{name}`" for name in sorted(commands)) + ".\n"]
    return "\n".join(lines)


def _met_by_name(row: dict[str, Any]) -> list[str]:
    """Return the first example of a rule that is refused because of the program's name, if any."""
    ids = {f"name-{name.removesuffix('.*')}" for name in row.get("names", [row["id"]])}
    return next(([text] for text in row.get("deny", ()) if ids & rules_met_by(text)), [])


def group_page(key: str, data: dict[str, str], rows: dict[str, dict[str, Any]]) -> str:
    """Return the page of a group: every program in it, by rule id."""
    members = sorted(name for row in rows.values() if row.get("group") == key for name in row.get("names", [row["id"]]))
    lines = [f"# name-{key}\n", f"`NAME` is on the denylist: {data['why']}.\n", f"**Instead.** {data['instead']}\n"]
    lines += [f"| axis | name: {QUESTIONS['name']} |", "|---|---|"]
    lines += [
        f"| id in findings | `name-NAME`, such as `name-{next(name for name in members if name.islower() and '*' not in name)}` |"
    ]
    for name in _tables()[0]["profiles"]:
        lines.append(f"| `{name}` | {profile_named(name).groups[key]} |")
    lines += [f'| in a policy file | `[groups]` `{key} = "allow"`, `"ask"` or `"deny"` |', ""]
    lines += ["## Names\n", ", ".join(f"`{name}`" for name in members) + ".\n"]
    found = [text for row in rows.values() if row.get("group") == key for text in _met_by_name(row)][:MAX_EXAMPLES]
    if found:
        lines += ["## Examples\n", *[f"* {_listed(text)}" for text in found], ""]
    return "\n".join(lines)


def protected_page(tools: dict[str, dict[str, Any]]) -> str:
    """Return the page that lists the files that run later, by tool."""
    places = {"any": "any directory", "top": "the top of a project", "home": "the home directory"}
    lines = [PROTECTED_HEAD, "| tool | runs | reads in | files |", "|---|---|---|---|"]
    for row in tools.values():
        files = " ".join(f"`{path}`" for path in row["paths"])
        lines.append(f"| {row['tool']} | {row['runs']} | {places[row['read']]} | {files} |")
    for host in HOSTS.values():
        files = " ".join(f"`{path}`" for path in host.protected)
        lines.append(f"| {host.title} | hooks, MCP servers, permissions | {places['top']} | {files} |")
    return "\n".join([*lines, ""])


def pages() -> dict[str, str]:
    """Return every page by its path below docs/."""
    tables, rows = _tables()
    for name, row in rows.items():
        row.setdefault("id", name)
    found, commands = examples_by_rule(rows)
    made = {"rules/protected-files.md": protected_page(tables["runs_later"])}
    for key, data in tables["effects"].items():
        page = _page_id(key, data["axis"])
        made[f"rules/{page}.md"] = effect_page(page, key, data, found[page], commands[page])
    for key, data in tables["groups"].items():
        made[f"rules/name-{key}.md"] = group_page(key, data, rows)
    files = sorted({row["file"] for row in rows.values()})
    for file in files:
        own = [row_page(name, row) for name, row in rows.items() if row["file"] == file]
        made[f"rules/commands/{file[:-5]}.md"] = "\n".join([f"# Commands: {file[:-5]}\n", *own])
    links = [f"* [{file[:-5]}](rules/commands/{file[:-5]}.md): {_some(rows, file)}" for file in files]
    parts = [HEAD, effects_table(tables), shapes_table(), "## Commands\n", "\n".join(links) + "\n"]
    made["rules.md"] = re.sub(r"\n{3,}", "\n\n", "\n".join(parts))
    return made


def _some(rows: dict[str, dict[str, Any]], file: str) -> str:
    own = [name for name, row in rows.items() if row["file"] == file]
    return ", ".join(f"`{name}`" for name in own[:8]) + (f" and {len(own) - 8} more" if len(own) > 8 else "")

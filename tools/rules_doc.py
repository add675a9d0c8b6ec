"""Write docs/rules.md from the rule tables. `--check` only says whether it is current."""

import sys
from pathlib import Path
from typing import Any

from corral.rulebook import profile_named
from corral.rulecompiler import read_tables

DOC = Path(__file__).parents[1] / "docs" / "rules.md"
HEAD = """# Rules

Made by `make docs` from `src/corral/rules/*.toml`; [writing-rules.md](writing-rules.md) says how to add one. `corral rule ID` prints one rule.

"""


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _shown(text: str) -> str:
    return _code(text.replace("\n", "⏎").replace("|", "\\|"))


def effects_page(tables: dict[str, dict[str, Any]]) -> str:
    """Return the tables of effects and groups, with what each profile makes of them."""
    profiles = [profile_named(name) for name in tables["profiles"]]
    names = " | ".join(p.name for p in profiles)
    rule = "|".join(["---"] * len(profiles))
    lines = ["## Effects\n", f"| effect | axis | {names} | reason |", f"|---|---|{rule}|---|"]
    for key, data in tables["effects"].items():
        decisions = " | ".join(str(p.effects[key]) for p in profiles)
        lines.append(f"| `{key}` | {data['axis']} | {decisions} | {data['reason'].replace('|', chr(92) + '|')} |")
    lines += ["\n## Groups of names\n", f"| group | {names} | why |", f"|---|{rule}|---|"]
    for key, data in tables["groups"].items():
        decisions = " | ".join(str(p.groups[key]) for p in profiles)
        lines.append(f"| `{key}` | {decisions} | {data['why']} |")
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
    """Return one row: its names, what it does, its examples."""
    lines = [f"### {name}\n"]
    others = [n for n in row.get("names", [name]) if n != name]
    if others:
        lines.append(f"* also: {', '.join(_code(n) for n in others)}")
    if "group" in row:
        lines.append(f"* group: `{row['group']}`")
    if row.get("operands"):
        lines.append(f"* operands: {', '.join(_code(o) for o in row['operands'])}")
    lines += _options(row)
    if "sub" in row:
        lines.append(f"* subcommands: {', '.join(_code(s or 'any other') for s in row['sub'])}")
    for profile, source in (("strict", row), ("workspace", row.get("workspace", {}))):
        for kind in ("deny", "allow"):
            if source.get(kind):
                word = "not allowed" if kind == "deny" else "allowed"
                lines.append(f"* {word} under `{profile}`: {', '.join(_shown(t) for t in source[kind])}")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole document."""
    tables, rows = read_tables()
    parts = [HEAD, effects_page(tables)]
    for file in sorted({row["file"] for row in rows.values()}):
        parts.append(f"## {file[:-5]}\n")
        parts += [row_page(name, row) for name, row in rows.items() if row["file"] == file]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if DOC.exists() and DOC.read_text() == page() else "docs/rules.md is not current: make docs")
    DOC.write_text(page())

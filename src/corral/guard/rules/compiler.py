"""Compile rules/*.toml into one file that a hook can load in microseconds. The only writer of rules/compiled.bin.

Total over its input: a row that does not fit the schema is an error that names the file, the row and the key.
Stands alone (no import of corral), because the build of a wheel runs it before corral is installed.
"""

from __future__ import annotations

import marshal
import os
import tomllib
from hashlib import sha256
from typing import Any

EFFECTS = frozenset(
    [
        "runs",
        "reads",
        "writes",
        "deletes",
        "loads",
        "sends",
        "listens",
        "chdir",
        "sets",
        "rewrites",
        "discards",
        "wipes",
        "privileges",
        "kills",
        "changes",
        "installs",
        "fetches",
    ]
)
KINDS = frozenset(
    [
        "alias",
        "any",
        "args",
        "arithmetic",
        "makevar",
        "argv",
        "argv;",
        "assign",
        "atpath",
        "class",
        "code",
        "config",
        "environment",
        "hostpath",
        "input",
        "keyvalue",
        "listfile",
        "mark",
        "module",
        "name",
        "operands",
        "package",
        "path",
        "ref",
        "remote",
        "script",
        "setting",
        "shell",
        "stdin",
        "text",
        "unnamed",
        "url",
        "words",
    ]
)
STYLES = frozenset({"gnu", "posix", "longdash", "find", "keyvalue", "tar", "none"})
FACTS = frozenset({":unpushed"})  # conditions that the machine answers
LANGUAGES = frozenset(
    {"sed", "jq", "sqlite", "tex", "m4", "goflags", "duckdb", "filtergraph", "ffinput", "magick", "sbt"}
)
ROW_KEYS = frozenset(
    [
        "names",
        "style",
        "abbrev",
        "options",
        "globals",
        "scripts",
        "hooks",
        "operands",
        "sub",
        "config",
        "modules",
        "bare",
        "effects",
        "group",
        "interpreter",
        "appends",
        "copies",
        "downloads",
        "quotes",
        "wrappers",
        "why",
        "instead",
        "deny",
        "allow",
        "workspace",
    ]
)
HERE = os.path.dirname(os.path.abspath(__file__))
TAG_BYTES = 8
COMPILED = os.path.join(HERE, "compiled.bin")
TABLES = frozenset({"profiles", "groups", "variables", "places", "effects"})

# effect, kind, "" or "*" or "?" or "stop", label, options that drop it, options of which one must be there
Slot = tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]]


class RuleError(ValueError):
    """A row does not fit the schema."""


def _slots(text: str, where: str) -> tuple[Slot, ...]:
    """Read `effect:kind* ? stop #label unless -x`: the slots that an option or an operand fills, in order."""
    slots: list[Slot] = []
    words = text.split()
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word in ("unless", "if"):
            if not slots:
                raise RuleError(f"{where}: {word!r} stands before any slot in {text!r}")
            names = []
            while index < len(words) and words[index] not in ("unless", "if"):
                names.append(words[index])
                index += 1
            unknown = {name for name in names if name.startswith(":")} - FACTS
            if unknown:
                raise RuleError(f"{where}: unknown condition {min(unknown)!r} in {text!r}; known: {', '.join(FACTS)}")
            effect, kind, many, label, unless, when = slots[-1]
            slots[-1] = (
                effect,
                kind,
                many,
                label,
                *((tuple(names), when) if word == "unless" else (unless, tuple(names))),
            )
            continue
        if word == "stop" or word.startswith("#"):
            if not slots:
                raise RuleError(f"{where}: {word!r} stands before any slot in {text!r}")
            effect, kind, many, label, unless, when = slots[-1]
            slots[-1] = (
                (effect, kind, "stop", label, unless, when)
                if word == "stop"
                else (effect, kind, many, word[1:], unless, when)
            )
            continue
        many = word[-1] if word[-1] in "*?" else ""
        word = word[: len(word) - len(many)]
        effect, _, kind = word.partition(":") if ":" in word and not word.startswith("lang:") else ("", "", word)
        if not effect and kind in EFFECTS:
            effect, kind = kind, ""
        if effect and effect not in EFFECTS:
            raise RuleError(f"{where}: unknown effect {effect!r} in {text!r}; known: {', '.join(sorted(EFFECTS))}")
        if kind.startswith("lang:"):
            if kind[5:] not in LANGUAGES:
                raise RuleError(f"{where}: unknown language {kind[5:]!r} in {text!r}")
        elif kind and kind not in KINDS:
            raise RuleError(f"{where}: unknown kind {kind!r} in {text!r}; known: {', '.join(sorted(KINDS))}")
        slots.append((effect, kind, many, "", (), ()))
    return tuple(slots)


def _row(name: str, data: dict[str, Any], where: str) -> dict[str, Any]:
    unknown = set(data) - ROW_KEYS
    if unknown:
        raise RuleError(f"{where}: unknown key {min(unknown)!r}; known: {', '.join(sorted(ROW_KEYS))}")
    style = data.get("style", "gnu")
    if style not in STYLES:
        raise RuleError(f"{where}: unknown style {style!r}; known: {', '.join(sorted(STYLES))}")
    options: dict[str, tuple[Slot, ...]] = {}
    own = data.get("options", {})
    spellings = {spelling for spelled in own for spelling in spelled.split()}
    for spelled, value in (*own.items(), *data.get("globals", {}).items()):
        slots = _slots(value, f"{where}.options.{spelled!r}")
        for spelling in spelled.split():
            if spelling in options and spelling in spellings and value is not own.get(spelled):
                continue  # a subcommand's own option of that name comes before a global one
            if spelling in options:
                raise RuleError(f"{where}: option {spelling!r} is given twice")
            options[spelling] = slots
    operands = [slot for text in data.get("operands", ["reads:any*"]) for slot in _slots(text, f"{where}.operands")]
    row: dict[str, Any] = {"id": name, "style": style, "options": options, "operands": tuple(operands)}
    if any(slot[0] for slots in options.values() for slot in slots) or "sub" in data:
        row["risky"] = True  # a word that is not known may be one of these
    if data.get("abbrev"):
        row["longs"] = tuple(sorted(o for o in options if o.startswith("--")))
    for key in ("scripts", "hooks", "wrappers"):
        if key in data:
            row[key] = tuple(data[key])
    for key in ("group", "interpreter", "appends", "copies", "downloads", "quotes", "why", "instead"):
        if key in data:
            row[key] = data[key]
    for key in ("bare", "effects"):
        if key in data:
            texts = [data[key]] if isinstance(data[key], str) else data[key]
            row[key] = tuple(slot for text in texts for slot in _slots(text, f"{where}.{key}"))
    for key in ("config", "modules"):
        if key in data:
            row[key] = {
                spelling: _slots(value, f"{where}.{key}.{spelled!r}")
                for spelled, value in data[key].items()
                for spelling in spelled.split()
            }
    if "sub" in data:
        row["sub"] = {}
        for spelled, sub in data["sub"].items():
            fields = ({"effects": [sub]} if sub else {}) if isinstance(sub, str) else sub
            inherited: dict[str, Any] = {
                key: data[key] for key in ("abbrev", "interpreter") if key in data and key not in fields
            }
            inherited["globals"] = data.get("globals", {}) | fields.get("globals", {})
            made = _row(
                f"{name}-{spelled.split()[0]}" if spelled else f"{name}-other",
                fields | inherited,
                f"{where}.sub.{spelled!r}",
            )
            for spelling in spelled.split() or [""]:
                row["sub"][spelling] = made
    return row


def sources() -> list[str]:
    """Return the paths of the tables, sorted."""
    return sorted(os.path.join(HERE, f) for f in os.listdir(HERE) if f.endswith(".toml"))


def read_tables() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the raw tables (profiles, groups, …) and the raw rows of all files, refusing a name given twice."""
    tables: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for path in sources():
        with open(path, "rb") as file:
            try:
                data = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise RuleError(f"{os.path.basename(path)}: {error}") from None
        stem = os.path.basename(path)[:-5]
        if stem in TABLES:
            tables[stem] = data
            continue
        for name, row in data.items():
            if name in rows:
                raise RuleError(f"{os.path.basename(path)}: row [{name}] stands in another table already")
            rows[name] = row | {"file": os.path.basename(path)}
    return tables, rows


def compile_rules() -> dict[str, Any]:
    """Return everything that the guard reads, as plain data. `rows` are bytes: of rows, of tables that are seldom needed, and of what
    leads from two initials to the names that begin with them, and from these to their rows.
    """
    tables, raw = read_tables()
    rows: dict[str, bytes] = {}
    grouped: dict[str, list[str]] = {}
    interpreters: list[str] = []
    for name, data in raw.items():
        where = f"{data['file']}: [{name}]"
        row = _row(name, {k: v for k, v in data.items() if k != "file"}, where)
        if "group" in row and row["group"] not in tables["groups"]:
            raise RuleError(f"{where}: unknown group {row['group']!r}")
        blob = marshal.dumps(row, 4)
        for spelling in data.get("names", [name]):
            if spelling in rows:
                raise RuleError(f"{where}: the name {spelling!r} belongs to another row already")
            rows[spelling] = blob
            if "group" in row:
                grouped.setdefault(row["group"], []).append(spelling)
            if row.get("interpreter"):
                interpreters += [spelling, spelling.removesuffix(".*")]
    variables = {
        spelling: _slots(value, f"variables.toml: {spelled!r}")
        for spelled, value in tables["variables"].items()
        for spelling in spelled.split()
    }
    seldom: dict[str, Any] = {"grouped": grouped, "interpreters": frozenset(interpreters), "variables": variables}
    for name, profile in tables["profiles"].items():
        loose = [group for group, word in profile.get("groups", {}).items() if word == "allow"]
        seldom[f"denied-{name}"] = frozenset(n for group in grouped for n in grouped[group] if group not in loose)
    shelf = _Shelf()
    return {
        "names": _by_initials(rows, shelf),
        "seldom": {name: shelf.put(marshal.dumps(table, 4)) for name, table in seldom.items()},
        "patterns": {name: slots for name, slots in variables.items() if "*" in name},
        **{name: table for name, table in tables.items() if name != "variables"},
        "rows": b"".join(shelf.places),
    }


class _Shelf:
    """What a short program does not need: it stays on the disk, and is known by where it begins and how long it is."""

    def __init__(self) -> None:
        self.places: dict[bytes, tuple[int, int]] = {}
        self._size = 0

    def put(self, blob: bytes) -> tuple[int, int]:
        """Keep some bytes, once, and return where they are."""
        if blob not in self.places:
            self.places[blob] = (self._size, len(blob))
            self._size += len(blob)
        return self.places[blob]


def _by_initials(rows: dict[str, bytes], shelf: _Shelf) -> dict[str, tuple[int, int]]:
    cases: dict[str, dict[str, dict[str, tuple[int, int]]]] = {}
    for name, blob in rows.items():
        cases.setdefault(name[:1], {}).setdefault(name[:2], {})[name] = shelf.put(blob)
    return {
        initial: shelf.put(marshal.dumps({initials: marshal.dumps(names, 4) for initials, names in case.items()}, 4))
        for initial, case in cases.items()
    }


def write_compiled() -> None:
    """Write rules/compiled.bin in one step, so that a reader never sees half of it: tag, length, what is always read, rows."""
    book = compile_rules()
    rows = book.pop("rows")
    head = marshal.dumps(book, 4)
    partial = f"{COMPILED}.{os.getpid()}"
    with open(partial, "wb") as file:
        file.write(sha256(head + rows).digest()[:TAG_BYTES] + len(head).to_bytes(4, "little") + head + rows)
    os.replace(partial, COMPILED)


if __name__ == "__main__":
    write_compiled()

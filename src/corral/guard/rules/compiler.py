"""Compiles rules/*.toml into rules/compiled.bin, which a hook loads in microseconds.

A row that does not fit the schema is an error that names the file, the row and the key. This module imports nothing of corral, because the
build of a wheel runs it before corral is installed.
"""

from __future__ import annotations

import ast
import marshal
import os
import tomllib
from hashlib import sha256
from typing import Any

EFFECTS = frozenset([
    "runs", "reads", "writes", "deletes", "loads", "sends", "listens", "chdir", "sets", "rewrites", "discards", "wipes", "privileges", "kills",
    "changes", "installs", "fetches",
])  # fmt: skip
KINDS = frozenset([
    "alias", "any", "args", "arithmetic", "makevar", "argv", "argv;", "assign", "atpath", "class", "code", "config", "environment", "hostpath",
    "input", "keyvalue", "listfile", "mark", "module", "name", "operands", "package", "path", "ref", "remote", "script", "setting", "shell",
    "stdin", "text", "unnamed", "url", "words",
])  # fmt: skip
STYLES = frozenset({"gnu", "posix", "longdash", "find", "keyvalue", "tar", "none"})
FACTS = frozenset({":unpushed"})  # conditions that the machine answers
LANGUAGES = frozenset(
    {"sed", "jq", "sqlite", "tex", "m4", "goflags", "duckdb", "filtergraph", "ffinput", "magick", "sbt"}
)
ROW_KEYS = frozenset([
    "names", "style", "abbrev", "options", "globals", "scripts", "hooks", "operands", "sub", "config", "modules", "bare", "effects", "group",
    "interpreter", "appends", "copies", "downloads", "quotes", "wrappers", "why", "instead", "deny", "allow", "workspace",
])  # fmt: skip
_PLAIN_KEYS = (
    "group",
    "interpreter",
    "appends",
    "copies",
    "downloads",
    "quotes",
    "why",
    "instead",
)  # compiled as they are
HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = os.path.join(HERE, "..", "..", "integrations", "hooks", "hosts")
HOST_FIELDS = ("title", "protected", "private", "notes", "secrets", "questions")
TAG_BYTES = 8
COMPILED = os.path.join(HERE, "compiled.bin")
TABLES = frozenset({"profiles", "groups", "variables", "places", "effects"})

# effect, kind, "" or "*" or "?" or "stop", label, options that drop it, options of which one must be there
Slot = tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]]
_REPEAT, _LABEL, _UNLESS, _IF = 2, 3, 4, 5  # positions in a slot


class RuleError(ValueError):
    """A row does not fit the schema."""


def _check_known(word: str, known: frozenset[str], what: str, where: str) -> None:
    if word not in known:
        raise RuleError(f"{where}: unknown {what} {word!r}; known: {', '.join(sorted(known))}")


def _slots(text: str, where: str) -> tuple[Slot, ...]:
    """Parse `effect:kind* ? stop #label unless -x`: the slots that an option or an operand fills, in order."""
    slots: list[list[Any]] = []
    condition: list[str] | None = None  # the options after `unless` or `if`
    where = f"{where}: {text!r}"
    for word in text.split():
        if not slots and (word in ("unless", "if", "stop") or word.startswith("#")):
            raise RuleError(f"{where}: {word!r} stands before any slot")
        if word in ("unless", "if"):
            slots[-1][_UNLESS if word == "unless" else _IF] = condition = []
        elif condition is not None:
            if word.startswith(":"):
                _check_known(word, FACTS, "condition", where)
            condition.append(word)
        elif word == "stop":
            slots[-1][_REPEAT] = "stop"
        elif word.startswith("#"):
            slots[-1][_LABEL] = word[1:]
        else:
            slots.append(_slot(word, where))
    return tuple((*slot[:_UNLESS], tuple(slot[_UNLESS]), tuple(slot[_IF])) for slot in slots)


def _slots_by_spelling(table: dict[str, str], where: str) -> dict[str, tuple[Slot, ...]]:
    return {
        spelling: _slots(text, f"{where}.{spelled!r}")
        for spelled, text in table.items()
        for spelling in spelled.split()
    }


def _slot(word: str, where: str) -> list[Any]:
    repeat = word[-1] if word[-1] in "*?" else ""
    word = word[: len(word) - len(repeat)]
    effect, _, kind = word.partition(":") if ":" in word and not word.startswith("lang:") else ("", "", word)
    if not effect and kind in EFFECTS:
        effect, kind = kind, ""
    if effect:
        _check_known(effect, EFFECTS, "effect", where)
    if kind.startswith("lang:"):
        _check_known(kind.removeprefix("lang:"), LANGUAGES, "language", where)
    elif kind:
        _check_known(kind, KINDS, "kind", where)
    return [effect, kind, repeat, "", (), ()]


def _row(name: str, data: dict[str, Any], where: str) -> dict[str, Any]:
    for key in data:
        _check_known(key, ROW_KEYS, "key", where)
    style = data.get("style", "gnu")
    _check_known(style, STYLES, "style", where)
    options: dict[str, tuple[Slot, ...]] = {}
    own = data.get("options", {})
    spellings = {spelling for spelled in own for spelling in spelled.split()}
    for spelled, value in (*own.items(), *data.get("globals", {}).items()):
        slots = _slots(value, f"{where}.options.{spelled!r}")
        for spelling in spelled.split():
            if spelling in options and spelling in spellings and value is not own.get(spelled):
                continue  # a subcommand's own option overrides a global one of the same name
            if spelling in options:
                raise RuleError(f"{where}: option {spelling!r} is given twice")
            options[spelling] = slots
    operands = [slot for text in data.get("operands", ["reads:any*"]) for slot in _slots(text, f"{where}.operands")]
    row: dict[str, Any] = {"id": name, "style": style, "options": options, "operands": tuple(operands)}
    if any(slot[0] for slots in options.values() for slot in slots) or "sub" in data:
        row["risky"] = True  # an unknown word may be one of these options or subcommands
    if data.get("abbrev"):
        row["longs"] = tuple(sorted(o for o in options if o.startswith("--")))
    row |= {key: tuple(data[key]) for key in ("scripts", "hooks", "wrappers") if key in data}
    row |= {key: data[key] for key in _PLAIN_KEYS if key in data}
    for key in ("bare", "effects"):
        if key in data:
            texts = [data[key]] if isinstance(data[key], str) else data[key]
            row[key] = tuple(slot for text in texts for slot in _slots(text, f"{where}.{key}"))
    row |= {key: _slots_by_spelling(data[key], f"{where}.{key}") for key in ("config", "modules") if key in data}
    if "sub" in data:
        row["sub"] = {}
        for spelled, sub in data["sub"].items():
            fields = ({"effects": [sub]} if sub else {}) if isinstance(sub, str) else sub
            inherited = {key: data[key] for key in ("abbrev", "interpreter") if key in data}
            own_globals = {"globals": data.get("globals", {}) | fields.get("globals", {})}
            spellings_of_sub = spelled.split() or [""]
            made = _row(
                f"{name}-{spellings_of_sub[0] or 'other'}",
                inherited | fields | own_globals,
                f"{where}.sub.{spelled!r}",
            )
            row["sub"].update(dict.fromkeys(spellings_of_sub, made))
    return row


def read_tables() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the raw tables (profiles, groups, …) and the raw rows of all files."""
    tables: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for source in sorted(name for name in os.listdir(HERE) if name.endswith(".toml")):
        with open(os.path.join(HERE, source), "rb") as file:
            try:
                data = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise RuleError(f"{source}: {error}") from None
        table = source.removesuffix(".toml")
        if table in TABLES:
            tables[table] = data
            continue
        for name, row in data.items():
            if name in rows:
                raise RuleError(f"{source}: row [{name}] is already in another table")
            rows[name] = row | {"file": source}
    return tables, rows


def _host_fields() -> dict[str, dict[str, Any]]:
    """Return the literal fields of every `HOST = Host(...)` record in integrations/hooks/hosts, by module.

    The guard may not import the hooks, and the build of a wheel cannot, so the records are read as source text.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(f for f in os.listdir(HOSTS) if f.endswith(".py") and not f.startswith("_")):
        with open(os.path.join(HOSTS, file), encoding="utf-8") as source:
            body = ast.parse(source.read()).body
        (record,) = (
            node.value
            for node in body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.targets[0]) == "HOST"
        )
        fields = {keyword.arg: keyword.value for keyword in record.keywords}
        try:
            found[file[:-3]] = {name: ast.literal_eval(fields[name]) for name in HOST_FIELDS}
        except (KeyError, ValueError) as error:
            raise RuleError(f"{file}: HOST needs the literal fields {', '.join(HOST_FIELDS)}: {error}") from None
    return found


def _add_hosts(tables: dict[str, dict[str, Any]]) -> None:
    """Add the hosts' paths to the table of places, and their titles and questions as a table of their own."""
    hosts, places = _host_fields(), tables["places"]
    fields = {"protected": "protected", "secret_home": "private", "host_notes": "notes", "host_secrets": "secrets"}
    for place, field in fields.items():
        paths = [path for host in hosts.values() for path in host[field]]
        places[place] = list(dict.fromkeys((*places.get(place, ()), *paths)))
    tables["hosts"] = {name: {key: host[key] for key in ("title", "questions")} for name, host in hosts.items()}


def compile_rules() -> dict[str, Any]:
    """Return everything that the guard reads, as plain data.

    `rows` holds all blobs: rows, rarely needed tables, and indexes. `names` leads from a name's first letter to the blob of an index from two
    initials to the names that begin with them, and from these to their rows.
    """
    tables, raw = read_tables()
    _add_hosts(tables)
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
                raise RuleError(f"{where}: the name {spelling!r} already belongs to another row")
            rows[spelling] = blob
            if "group" in row:
                grouped.setdefault(row["group"], []).append(spelling)
            if row.get("interpreter"):
                interpreters += [spelling, spelling.removesuffix(".*")]
    variables = _slots_by_spelling(tables["variables"], "variables.toml")
    rare: dict[str, Any] = {"grouped": grouped, "interpreters": frozenset(interpreters), "variables": variables}
    for name, profile in tables["profiles"].items():
        loose = [group for group, word in profile.get("groups", {}).items() if word == "allow"]
        rare[f"denied-{name}"] = frozenset(n for group in grouped for n in grouped[group] if group not in loose)
    blobs = _Blobs()
    return {
        "names": _by_initials(rows, blobs),
        "rare": {name: blobs.put(marshal.dumps(table, 4)) for name, table in rare.items()},
        "patterns": {name: slots for name, slots in variables.items() if "*" in name},
        **{name: table for name, table in tables.items() if name != "variables"},
        "rows": b"".join(blobs.places),
    }


class _Blobs:
    """Collects the part of the file that is read on demand. A blob is identified by its offset and length."""

    def __init__(self) -> None:
        self.places: dict[bytes, tuple[int, int]] = {}
        self._size = 0

    def put(self, blob: bytes) -> tuple[int, int]:
        """Add a blob unless it is there already, and return its offset and length."""
        if blob not in self.places:
            self.places[blob] = (self._size, len(blob))
            self._size += len(blob)
        return self.places[blob]


def _by_initials(rows: dict[str, bytes], blobs: _Blobs) -> dict[str, tuple[int, int]]:
    initials: dict[str, dict[str, dict[str, tuple[int, int]]]] = {}
    for name, blob in rows.items():
        initials.setdefault(name[:1], {}).setdefault(name[:2], {})[name] = blobs.put(blob)
    return {
        initial: blobs.put(marshal.dumps({pair: marshal.dumps(names, 4) for pair, names in pairs.items()}, 4))
        for initial, pairs in initials.items()
    }


def write_compiled() -> None:
    """Write rules/compiled.bin by rename, so that no reader sees half of it: a tag, the head's length, the head, the blobs."""
    compiled = compile_rules()
    rows = compiled.pop("rows")
    head = marshal.dumps(compiled, 4)
    partial = f"{COMPILED}.{os.getpid()}"
    with open(partial, "wb") as file:
        file.write(sha256(head + rows).digest()[:TAG_BYTES] + len(head).to_bytes(4, "little") + head + rows)
    os.replace(partial, COMPILED)


if __name__ == "__main__":
    write_compiled()

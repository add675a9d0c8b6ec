"""Compiles rules/*.toml into rules/compiled.bin, which a hook loads in microseconds.

A row that does not fit the schema is an error that names the file, the row and the key. This module imports nothing of corral, because the
build of a wheel runs it before corral is installed.
"""

from __future__ import annotations

import ast
import marshal
import os
import re
import tomllib
from hashlib import sha256
from typing import Any

EFFECTS = frozenset([
    "runs", "reads", "writes", "deletes", "loads", "sends", "listens", "chdir", "sets", "rewrites", "discards", "wipes", "privileges", "kills",
    "changes", "installs", "fetches",
])  # fmt: skip
KINDS = frozenset([
    "alias", "any", "args", "arithmetic", "makevar", "argv", "argv;", "assign", "atpath", "class", "code", "config", "environment", "hostpath",
    "input", "keyvalue", "listfile", "literal", "mark", "module", "name", "operands", "outdir", "ownremote", "package", "path", "ref", "remote", "script",
    "setting", "shell", "source", "stdin", "text", "unnamed", "unpacked", "url", "words", "worktree",
])  # fmt: skip
STYLES = frozenset({"gnu", "posix", "longdash", "find", "keyvalue", "tar", "none"})
FACTS = frozenset({":unpushed", ":key-alone"})  # conditions that no option answers
LANGUAGES = frozenset(
    {"sed", "jq", "sqlite", "tex", "m4", "goflags", "duckdb", "filtergraph", "ffinput", "magick", "sbt"}
)
ROW_KEYS = frozenset([
    "names", "style", "abbrev", "options", "globals", "scripts", "hooks", "operands", "sub", "config", "modules", "bare", "effects", "group",
    "interpreter", "appends", "copies", "downloads", "proxied", "quotes", "wrappers", "why", "instead", "deny", "allow", "workspace",
])  # fmt: skip
_PLAIN_KEYS = (
    "group",
    "interpreter",
    "appends",
    "copies",
    "downloads",
    "proxied",
    "quotes",
    "why",
    "instead",
)  # compiled as they are
HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = os.path.join(HERE, "..", "..", "integrations", "hooks", "hosts")
HOST_FIELDS = ("title", "protected", "private", "notes", "secrets", "questions")
TAG_BYTES = 8
COMPILED = os.path.join(HERE, "compiled.bin")
TABLES = frozenset(
    {"profiles", "groups", "variables", "places", "effects", "runs_later", "quiet", "registries", "broker"}
)
REGISTRY_LISTS = frozenset([
    "names", "asks", "keys", "more", "variables", "keys_in", "more_in", "gives", "user", "project", "fetches", "locked", "plain",
])  # fmt: skip
REGISTRY_TEXTS = frozenset({"module", "form", "observe", "builtin", "index", "page", "root"})
REGISTRY_TABLES = frozenset({"env", "writes"})
REGISTRY_FORMS = frozenset({"", "urls", "settings", "go"})
REGISTRY_FILE_FORMS = frozenset({"ini", "keys", "toml", "tags"})
REGISTRY_INDEXES = frozenset({"", "pep503", "cargo", "npm"})
PROGRAM_KEYS = frozenset({"box", "sets", "passes", "watch", "never", "leading", "shape"})  # of broker.toml
BOX_KEYS = frozenset({"read", "network", "keyring"})
SHAPE_KEYS = frozenset([
    "id", "words", "options", "operands", "stops", "needs", "adds", "drops", "refuse", "stdin", "asks", "types", "says", "deny", "allow",
])  # fmt: skip
ASKS = frozenset({"family", "once"})
READ_IN = frozenset({"any", "top", "home"})  # the directories in which a tool looks for the files of its row

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


def expand_braces(pattern: str) -> list[str]:
    """Return the patterns that `a{b,c}d` stands for. Braces do not nest."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    choices, _, tail = rest.partition("}")
    return [head + choice + end for choice in choices.split(",") for end in expand_braces(tail)]


def _add_names_that_run_later(tables: dict[str, dict[str, Any]]) -> None:
    """Add the paths of runs_later.toml to the table of places: those in any project, and those in a home directory alone."""
    places: dict[str, list[str]] = {"protected": [], "startup_home": []}
    for tool, row in tables.pop("runs_later").items():
        where = f"runs_later.toml: [{tool}]"
        if set(row) != {"tool", "runs", "read", "paths"}:
            raise RuleError(f"{where}: needs the keys tool, runs, read, paths")
        _check_known(row["read"], READ_IN, "place", where)
        places["startup_home" if row["read"] == "home" else "protected"] += [
            path for pattern in row["paths"] for path in expand_braces(pattern)
        ]
    tables["places"] |= places


def _add_hosts(tables: dict[str, dict[str, Any]]) -> None:
    """Add the hosts' paths to the table of places, and their titles and questions as a table of their own."""
    hosts, places = _host_fields(), tables["places"]
    fields = {"protected": "protected", "secret_home": "private", "host_notes": "notes", "host_secrets": "secrets"}
    for place, field in fields.items():
        paths = [path for host in hosts.values() for path in host[field]]
        places[place] = list(dict.fromkeys((*places.get(place, ()), *paths)))
    tables["hosts"] = {name: {key: host[key] for key in ("title", "questions")} for name, host in hosts.items()}


def _registries(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the rows of registries.toml with every key, and the words of their commands."""
    made: dict[str, dict[str, Any]] = {}
    for tool, data in table.items():
        where = f"registries.toml: [{tool}]"
        for key in data:
            _check_known(key, REGISTRY_LISTS | REGISTRY_TEXTS | REGISTRY_TABLES, "key", where)
        # Sorted: two builds of the same rules must be the same bytes, or running programs refuse all calls.
        row: dict[str, Any] = {key: tuple(data.get(key, ())) for key in sorted(REGISTRY_LISTS)}
        row |= {key: data.get(key, "") for key in sorted(REGISTRY_TEXTS)}
        row |= {key: data.get(key, {}) for key in sorted(REGISTRY_TABLES)}
        _check_known(row["form"], REGISTRY_FORMS, "form", where)
        _check_known(row["index"], REGISTRY_INDEXES, "index", where)
        if "://" in str(data) or not row["names"] or not row["fetches"]:
            raise RuleError(f"{where}: needs names and fetches, and holds no address: corral asks the tool for it")
        for key in ("user", "project"):
            row[key] = tuple(_registry_file(file, f"{where}.{key}") for file in row[key])
        for key in ("asks", "locked"):
            row[key] = tuple(tuple(text.split()) for text in row[key])
        row["observe"] = tuple(row["observe"].split())
        made[tool] = row
    return made


def _registry_file(data: dict[str, Any], where: str) -> dict[str, Any]:
    for key in data:
        _check_known(key, frozenset({"path", "form", "keys", "more"}), "key", where)
    _check_known(data.get("form", ""), REGISTRY_FILE_FORMS, "form", where)
    keys, more = (tuple(data.get(key, ())) for key in ("keys", "more"))
    return {"paths": tuple(data["path"].split()), "form": data["form"], "keys": keys, "more": more}


def _broker_program(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return a row of broker.toml as the guard and the broker read it."""
    where = f"broker.toml: [{name}]"
    for key in data:
        _check_known(key, PROGRAM_KEYS, "key", where)
    box = data.get("box")
    if box != "none":
        if not isinstance(box, dict):
            raise RuleError(f"{where}.box: must be a table or 'none'")
        for key in box:
            _check_known(key, BOX_KEYS, "key", f"{where}.box")
    never = []
    for number, entry in enumerate(data.get("never", []), 1):
        if not {"words", "why"} <= set(entry) <= {"words", "why", "instead"}:
            raise RuleError(f"{where}.never {number}: needs the keys words and why, and may have instead")
        never += [(_first_words(text), entry["why"], entry.get("instead", "")) for text in entry["words"]]
    shapes = [_broker_shape(shape, f"{where} shape {shape.get('id', '')!r}") for shape in data.get("shape", [])]
    if len({shape["id"] for shape in shapes}) != len(shapes) or not shapes:
        raise RuleError(f"{where}: needs shapes, each with an id of its own")
    return {
        "box": None if box == "none" else {"read": (), "network": "", "keyring": False} | box,
        "sets": data.get("sets", {}),
        "passes": tuple(data.get("passes", ())),
        "watch": tuple(data.get("watch", ())),
        "never": tuple(never),
        "leading": frozenset(spelling for entry in data.get("leading", []) for spelling in entry.split()),
        "shapes": tuple(shapes),
    }


def _first_words(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(word.split("|")) for word in text.split())


def _broker_shape(data: dict[str, Any], where: str) -> dict[str, Any]:
    for key in data:
        _check_known(key, SHAPE_KEYS, "key", where)
    for key in ("id", "words", "asks", "deny", "allow"):
        if key not in data:
            raise RuleError(f"{where}: needs the key {key}")
    _check_known(data["asks"], ASKS, "word", f"{where}.asks")
    # Each spelling leads to the option's last spelling, and to the kind of its value: flag, text, choice or file.
    options: dict[str, tuple[str, str, tuple[str, ...], bool]] = {}
    for text in data.get("options", []):
        # The first colon ends the names; a value may contain another one.
        spelled, colon, value = text.partition(":")
        names, repeats = spelled.split(), value.endswith("+")
        value = value.removesuffix("+")
        kind = ("file" if value == "file" else "choice" if value else "text") if colon else "flag"
        for spelling in names:
            if spelling in options or not re.fullmatch(r"-[A-Za-z0-9]|--[a-z0-9][a-z0-9-]+", spelling):
                raise RuleError(f"{where}.options {text!r}: {spelling!r} is given twice or is no option")
            options[spelling] = (names[-1], kind, tuple(value.split("|")) if kind == "choice" else (), repeats)
    canonical = {option[0] for option in options.values()}
    needs = tuple(tuple(entry.split("|")) for entry in data.get("needs", []))
    refuse = tuple((spelled, pattern) for spelled, pattern in data.get("refuse", {}).items())
    for spelling in (
        *(name for names in needs for name in names),
        *(spelled for spelled, _ in refuse if spelled not in ("*", "operands")),
    ):
        if spelling not in canonical:
            raise RuleError(f"{where}: {spelling!r} is not the last spelling of an option of this shape")
    for spelled, pattern in refuse:
        try:
            re.compile(pattern)
        except re.error as error:
            raise RuleError(f"{where}.refuse {spelled!r}: {error}") from None
    operands = data.get("operands", [])
    return {
        "id": data["id"],
        "words": tuple(_first_words(text) for text in data["words"]),
        "options": options,
        "operands": tuple(text for text in operands if not text.startswith("!")),
        "refused": tuple(text[1:] for text in operands if text.startswith("!")),
        "needs": needs,
        "adds": tuple(data.get("adds", ())),
        "drops": tuple(data.get("drops", ())),
        "refuse": refuse,
        "stops": bool(data.get("stops", False)),
        "stdin": bool(data.get("stdin", False)),
        **{key: str(data.get(key, "")) for key in ("asks", "types", "says")},
    }


def compile_rules() -> dict[str, Any]:
    """Return everything that the guard reads, as plain data.

    `rows` holds all blobs: rows, rarely needed tables, and indexes. `names` leads from a name's first letter to the blob of an index from two
    initials to the names that begin with them, and from these to their rows.
    """
    tables, raw = read_tables()
    _add_names_that_run_later(tables)
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
    rare["startup_home"] = tables["places"].pop("startup_home")
    rare["broker"] = {name: _broker_program(name, row) for name, row in tables.pop("broker").items()}
    rare["quiet"] = frozenset(name for names in tables.pop("quiet").values() for name in names)
    rare["registries"] = _registries(tables.pop("registries"))
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

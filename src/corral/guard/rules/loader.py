"""Reads the compiled rules: rows by command name, profiles, groups, places. Pure data once loaded."""

from __future__ import annotations

import marshal

from corral._lib.records import Record, frozen
from corral.model.call import Decision
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Row = dict[str, Any]


@frozen
class CommandRule(Record):
    """A rule of the user about commands that begin with these words."""

    words: tuple[str, ...]
    decision: Decision
    reason: str = ""
    instead: str = ""
    source: str = ""  # file and line
    exact: bool = False  # whether no further words may follow
    lifts: tuple[str, ...] = ()  # the effects that an allowing rule lifts: those of its examples, and no others

    @property
    def id(self) -> str:
        """The id that findings carry."""
        return "policy-" + "-".join(self.words)


@frozen
class Profile(Record):
    """A decision for each effect, and for each group of command names."""

    name: str
    effects: Mapping[str, Decision]
    groups: Mapping[str, Decision]
    needs_containment: bool = False
    commands: tuple[tuple[CommandRule, ...], ...] = ()  # of each policy file, where the first matching rule counts
    closed: frozenset[str] = (
        frozenset()
    )  # `effects.KEY` and `groups.KEY` that a policy file denies: no grant opens them


_TAG_BYTES = 8  # identify one build of the rules
_PATH = __file__.rpartition("/")[0] + "/compiled.bin"


def _load() -> tuple[dict[str, dict[str, Any]], bytes, int, bytes | None]:
    """Return the tables that every call needs, the tag, the offset of the blobs, and the blobs if they are in no file."""
    try:
        # Unbuffered: the blobs after the tables are ten times as long.
        with open(_PATH, "rb", buffering=0) as file:
            tag = file.read(_TAG_BYTES)
            head = file.read(int.from_bytes(file.read(4), "little"))
        return marshal.loads(head), tag, _TAG_BYTES + 4 + len(head), None  # noqa: S302  the package's own file
    except FileNotFoundError:
        from corral.guard.rules.compiler import compile_rules  # noqa: PLC0415  a checkout without compiled rules

        tables = compile_rules()
        return tables, b"", 0, tables["rows"]
    except (ValueError, EOFError, TypeError) as error:
        message = f"{_PATH} is damaged or of another version. Write it again: python -m corral.guard.rules.compiler"
        raise ImportError(message) from error


_TABLES, _TAG, _BLOBS_BEGIN, _BLOBS = _load()
_PLACES_BY_INITIALS: dict[str, dict[str, tuple[int, int]]] = {}
_RARE: dict[str, Any] = {}
_ROWS: dict[str, Row | None] = {}
_VARIABLES: dict[str, tuple[Any, ...] | None] = {}
_PROFILES: dict[str, Profile] = {}
MAX_CACHED_ROWS = 4096  # against a caller that asks for ever new names


def row(name: str) -> Row | None:
    """Return the row of a command's base name, also for versions and dotted variants (`python3.12`, `mkfs.ext4`)."""
    try:
        return _ROWS[name]
    except KeyError:
        pass
    blob = _matching_blob(name)
    found: Row | None = marshal.loads(blob) if blob else None  # noqa: S302  as above
    if len(_ROWS) < MAX_CACHED_ROWS:
        _ROWS[name] = found
    return found


def row_digest(name: str) -> str:
    """Return the hash of a command's row, or nothing if it has none. A stored answer of the user ends when the row changes."""
    from corral._lib.sha256 import sha256_hex  # noqa: PLC0415  most calls have no stored answer

    blob = _matching_blob(name)
    return sha256_hex(blob) if blob else ""


def _matching_blob(name: str) -> bytes | None:
    versionless = name.rstrip("0123456789.").rstrip("-")
    blob = _row_blob(name) or _row_blob(versionless) or _row_blob(name.partition(".")[0] + ".*")
    return _row_blob(_cross_tool(versionless)) if not blob and "-" in name else blob


def _row_blob(name: str) -> bytes | None:
    initials = name[:2]
    places = _PLACES_BY_INITIALS.get(initials)
    if places is None:
        index = _TABLES["names"].get(initials[:1])
        stored = None if index is None else marshal.loads(_blob(index)).get(initials)  # noqa: S302  as above
        places = {} if stored is None else marshal.loads(stored)  # noqa: S302  as above
        if len(_PLACES_BY_INITIALS) < MAX_CACHED_ROWS:
            _PLACES_BY_INITIALS[initials] = places
    return _blob(places[name]) if name in places else None


def _blob(place: tuple[int, int]) -> bytes:
    begin, size = place
    if _BLOBS is not None:
        return _BLOBS[begin : begin + size]
    with open(_PATH, "rb", buffering=0) as file:
        if file.read(_TAG_BYTES) != _TAG:
            raise RuntimeError("the rules were replaced while this program runs; start it again")
        file.seek(_BLOBS_BEGIN + begin)
        return file.read(size)


def _cross_tool(name: str) -> str:
    """Return the tool at the end of a cross compiler's name (`aarch64-linux-gnu-gcc`), or nothing."""
    system, _, tool = name.rpartition("-")
    known = any(part in system for part in ("linux", "w64", "eabi", "elf", "musl", "darwin", "freebsd", "android"))
    return tool if known or system in ("c89", "c99") else ""


def _rare(name: str) -> Any:
    """Return a table that only some calls need."""
    if name not in _RARE:
        _RARE[name] = marshal.loads(_blob(_TABLES["rare"][name]))  # noqa: S302  as above
    return _RARE[name]


def build() -> str:
    """Return the tag of this build of the rules, or nothing if they are not compiled."""
    return _TAG.hex()


def variable(name: str) -> tuple[Any, ...] | None:
    """Return the slots that the value of an environment variable fills, or None for a variable without a rule."""
    try:
        return _VARIABLES[name]
    except KeyError:
        found = _matching_variable(name)
    if len(_VARIABLES) < MAX_CACHED_ROWS:
        _VARIABLES[name] = found
    return found


def _matching_variable(name: str) -> tuple[Any, ...] | None:
    table: dict[str, tuple[Any, ...]] = _rare("variables")
    if name[:11].lower() == "npm_config_":
        name = name.lower()  # npm ignores the case
    if name in table:
        return table[name]
    for pattern, slots in _TABLES["patterns"].items():
        head, _, tail = pattern.partition("*")
        if name.startswith(head) and name.endswith(tail) and len(name) >= len(head) + len(tail):
            return tuple(slots)
    return None


def places() -> dict[str, Any]:
    """Return the table of places: the patterns of protected, secret, scratch and system paths."""
    return _TABLES["places"]


def startup_home() -> list[str]:
    """Return the patterns of files in a home directory that run later, besides those that are protected in every directory."""
    return list(_rare("startup_home"))


def broker_programs() -> dict[str, Any]:
    """Return the programs that the broker runs outside for a sandbox, with their shapes. See broker.toml for the keys."""
    table: dict[str, Any] = _rare("broker")
    return table


def quiet_names() -> frozenset[str]:
    """Return the names of the commands that can use no opening of the sandbox: they run nothing and connect to nothing."""
    table: frozenset[str] = _rare("quiet")
    return table


def registries() -> dict[str, dict[str, Any]]:
    """Return the table of package managers, by tool."""
    table: dict[str, dict[str, Any]] = _rare("registries")
    return table


def hosts() -> dict[str, dict[str, str]]:
    """Return the title of every agent host, and whether a person answers its questions, by name."""
    return _TABLES["hosts"]


def effects() -> dict[str, Any]:
    """Return the table of effects: the axis of each, and the words in which it is refused."""
    return _TABLES["effects"]


def group(name: str) -> dict[str, str]:
    """Return why a group of names is refused, and what to do instead."""
    table: dict[str, str] = _TABLES["groups"][name]
    return table


def group_names() -> tuple[str, ...]:
    """Return the names of the groups of commands."""
    return tuple(_TABLES["groups"])


def profile_names() -> tuple[str, ...]:
    """Return the names of the built-in profiles."""
    return tuple(_TABLES["profiles"])


def profile_named(name: str) -> Profile:
    """Return a built-in profile."""
    try:
        return _PROFILES[name]
    except KeyError:
        made = _PROFILES[name] = parse_profile(name, _TABLES["profiles"][name])
    return made


def parse_profile(name: str, data: Mapping[str, Any]) -> Profile:
    """Parse a profile from data as in profiles.toml. A missing effect is denied, an unknown one is an error."""

    def decisions(field: str, known: Mapping[str, Any]) -> dict[str, Decision]:
        made = {}
        for key, word in data.get(field, {}).items():
            if key not in known:
                raise PolicyError(f"profile {name}: {field} has no {key!r}; known: {', '.join(sorted(known))}")
            if str(word).upper() not in Decision.__members__:
                raise PolicyError(f"profile {name}: {field}.{key} must be allow, ask or deny, not {word!r}")
            made[key] = Decision[str(word).upper()]
        return {key: made.get(key, Decision.DENY) for key in known}

    return Profile(
        name,
        decisions("effects", _TABLES["effects"]),
        decisions("groups", _TABLES["groups"]),
        bool(data.get("needs_containment", False)),
    )


def default_denylist(profile: Profile) -> frozenset[str]:
    """Return the command names that a profile refuses."""
    built_in = _PROFILES.get(profile.name)
    if built_in is not None and profile.groups == built_in.groups:
        return frozenset(_rare(f"denied-{profile.name}"))
    refused = [group for group, decision in profile.groups.items() if decision != Decision.ALLOW]
    return frozenset(name for group in refused for name in _rare("grouped").get(group, ()))


def default_interpreter_block() -> frozenset[str]:
    """Return the names of the interpreters: programs that run code from an argument or standard input."""
    return frozenset(_rare("interpreters"))


if TYPE_CHECKING:
    DEFAULT_DENYLIST: frozenset[str]
    DEFAULT_INTERPRETER_BLOCK: frozenset[str]


def __getattr__(name: str) -> frozenset[str]:
    if name == "DEFAULT_DENYLIST":
        return default_denylist(profile_named("strict"))
    if name == "DEFAULT_INTERPRETER_BLOCK":
        return default_interpreter_block()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

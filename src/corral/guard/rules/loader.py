"""The only reader of the compiled rules: rows by command name, profiles, groups, places. Pure data once loaded."""

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
    """What the owner says about commands that begin with these words."""

    words: tuple[str, ...]
    decision: Decision
    reason: str = ""
    instead: str = ""
    source: str = ""  # file and line
    exact: bool = False  # whether nothing may stand behind the words
    lifts: tuple[str, ...] = ()  # the effects that a rule's examples of what it allows have: it allows no others

    @property
    def id(self) -> str:
        """The id that findings carry."""
        return "policy-" + "-".join(self.words)


@frozen
class Profile(Record):
    """What each effect means to the owner. `effects` maps `effect` or `effect.place` to a decision, `groups` a group of names."""

    name: str
    effects: Mapping[str, Decision]
    groups: Mapping[str, Decision]
    needs_containment: bool = False
    commands: tuple[tuple[CommandRule, ...], ...] = ()  # of each file; in each the first that fits counts


_TAG_BYTES = 8  # tell one build of the rules from another
_PATH = __file__.rpartition("/")[0] + "/compiled.bin"


def _load() -> tuple[dict[str, Any], bytes | None]:
    """Return what is always needed, and the rows if they are not to be read from the file one by one."""
    try:
        # Unbuffered: the rows behind it are ten times as long.
        with open(_PATH, "rb", buffering=0) as file:
            tag = file.read(_TAG_BYTES)
            head = file.read(int.from_bytes(file.read(4), "little"))
        book: dict[str, Any] = marshal.loads(head)  # noqa: S302  the package's own file
    except FileNotFoundError:
        from corral.guard.rules.compiler import compile_rules  # noqa: PLC0415  a checkout that was never built; slow, but right

        book = compile_rules()
        return book, book["rows"]
    except (ValueError, EOFError, TypeError) as error:
        message = f"{_PATH} is damaged or of another version: `python -m corral.guard.rules.compiler` writes it anew"
        raise ImportError(message) from error
    book["tag"], book["begin"] = tag, _TAG_BYTES + 4 + len(head)
    return book, None


_BOOK, _ALL_ROWS = _load()
_SHELVES: dict[str, dict[str, tuple[int, int]]] = {}
_SELDOM: dict[str, Any] = {}
_ROWS: dict[str, Row | None] = {}
_PROFILES: dict[str, Profile] = {}
MAX_CACHED_ROWS = 4096  # against a caller that asks for ever new names


def row(name: str) -> Row | None:
    """Return the row for a command's base name, versions and dotted variants included (`python3.12`, `mkfs.ext4`)."""
    try:
        return _ROWS[name]
    except KeyError:
        pass
    versionless = name.rstrip("0123456789.").rstrip("-")
    blob = _blob(name) or _blob(versionless) or _blob(name.partition(".")[0] + ".*")
    if not blob and "-" in name:
        blob = _blob(_of_a_toolchain(versionless))
    found: Row | None = marshal.loads(blob) if blob else None  # noqa: S302  as above
    if len(_ROWS) < MAX_CACHED_ROWS:
        _ROWS[name] = found
    return found


def _blob(name: str) -> bytes | None:
    initials = name[:2]
    shelf = _SHELVES.get(initials)
    if shelf is None:
        shelf = _shelf(initials)
        if len(_SHELVES) < MAX_CACHED_ROWS:
            _SHELVES[initials] = shelf
    found = shelf.get(name)
    return None if found is None else _stored(found)


def _shelf(initials: str) -> dict[str, tuple[int, int]]:
    case = _BOOK["names"].get(initials[:1])
    stored = None if case is None else marshal.loads(_stored(case)).get(initials)  # noqa: S302  as above
    shelf: dict[str, tuple[int, int]] = {} if stored is None else marshal.loads(stored)  # noqa: S302  as above
    return shelf


def _stored(place: tuple[int, int]) -> bytes:
    begin, size = place
    if _ALL_ROWS is not None:
        return _ALL_ROWS[begin : begin + size]
    with open(_PATH, "rb", buffering=0) as file:
        if file.read(_TAG_BYTES) != _BOOK["tag"]:
            raise RuntimeError("the rules were replaced while this program runs; start it again")
        file.seek(_BOOK["begin"] + begin)
        return file.read(size)


def _of_a_toolchain(name: str) -> str:
    """Return the tool that a cross compiler's name ends with (`aarch64-linux-gnu-gcc`), or nothing."""
    system, _, tool = name.rpartition("-")
    known = any(part in system for part in ("linux", "w64", "eabi", "elf", "musl", "darwin", "freebsd", "android"))
    return tool if known or system in ("c89", "c99") else ""


def _seldom(name: str) -> Any:
    """Return a table that only some calls need."""
    if name not in _SELDOM:
        _SELDOM[name] = marshal.loads(_stored(_BOOK["seldom"][name]))  # noqa: S302  as above
    return _SELDOM[name]


def build() -> str:
    """Return what tells this build of the rules from another, or nothing where they are not compiled."""
    tag: bytes = _BOOK.get("tag", b"")
    return tag.hex()


def variable(name: str) -> tuple[Any, ...] | None:
    """Return the slots that the value of an environment variable fills, if it is one that matters."""
    table: dict[str, tuple[Any, ...]] = _seldom("variables")
    if name[:11].lower() == "npm_config_":
        name = name.lower()  # npm does not care
    if name in table:
        return table[name]
    for pattern, slots in _BOOK["patterns"].items():
        head, _, tail = pattern.partition("*")
        if name.startswith(head) and name.endswith(tail) and len(name) >= len(head) + len(tail):
            return tuple(slots)
    return None


def places() -> dict[str, Any]:
    """Return the table of places: what is protected, secret, scratch, system."""
    table: dict[str, Any] = _BOOK["places"]
    return table


def effects() -> dict[str, Any]:
    """Return the table of effects: the words in which each is refused."""
    table: dict[str, Any] = _BOOK["effects"]
    return table


def group(name: str) -> dict[str, str]:
    """Return why a group of names is refused, and what to do instead."""
    table: dict[str, str] = _BOOK["groups"][name]
    return table


def group_names() -> tuple[str, ...]:
    """Return the names of the groups of commands."""
    return tuple(_BOOK["groups"])


def profile_names() -> tuple[str, ...]:
    """Return the names of the built-in profiles."""
    return tuple(_BOOK["profiles"])


def profile_named(name: str) -> Profile:
    """Return a built-in profile."""
    if name not in _PROFILES:
        data = _BOOK["profiles"][name]
        _PROFILES[name] = parse_profile(name, data)
    return _PROFILES[name]


def parse_profile(name: str, data: Mapping[str, Any]) -> Profile:
    """Make a profile of plain data such as profiles.toml holds; a missing effect is refused, an unknown one is an error."""

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
        decisions("effects", _BOOK["effects"]),
        decisions("groups", _BOOK["groups"]),
        bool(data.get("needs_containment", False)),
    )


def default_denylist(profile: Profile) -> frozenset[str]:
    """Return the names that a profile does not let run."""
    built_in = _PROFILES.get(profile.name)
    if built_in is not None and profile.groups == built_in.groups:
        listed: frozenset[str] = _seldom(f"denied-{profile.name}")
        return listed
    return frozenset(
        name for group, names in _seldom("grouped").items() if profile.groups[group] != Decision.ALLOW for name in names
    )


def default_interpreter_block() -> frozenset[str]:
    """Return the names of the interpreters: rows whose code can arrive inline or on standard input."""
    known: frozenset[str] = _seldom("interpreters")
    return known


if TYPE_CHECKING:
    DEFAULT_DENYLIST: frozenset[str]
    DEFAULT_INTERPRETER_BLOCK: frozenset[str]


def __getattr__(name: str) -> frozenset[str]:
    if name == "DEFAULT_DENYLIST":
        return default_denylist(profile_named("strict"))
    if name == "DEFAULT_INTERPRETER_BLOCK":
        return default_interpreter_block()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

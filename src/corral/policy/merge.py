"""How the levels of a policy come to one config. What is not trusted only tightens; what it would loosen is noted and left out."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.guard.rules.loader import CommandRule, Profile, default_denylist, default_interpreter_block, profile_named
from corral.model.call import Decision
from corral.model.errors import PolicyError
from corral.policy.config import (
    DEFAULT_ENV_ALLOWLIST,
    DEFAULT_MAX_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    Audit,
    Containment,
    Limits,
    Output,
    SandboxConfig,
)
from corral.policy.settings import DECISION_TABLES, LIST_KINDS, SETTINGS, is_tighter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_PROFILE = "workspace"
LASTING = Containment(scratch="project")  # what one command writes to /tmp the next reads, each in a process of its own
_RECORDS: dict[str, Any] = {"containment": Containment, "limits": Limits, "output": Output, "audit": Audit}
_DEFAULTS: dict[str, Any] = {
    "profile": DEFAULT_PROFILE,
    "timeout_seconds": DEFAULT_TIMEOUT_SECONDS,
    "max_output_bytes": DEFAULT_MAX_OUTPUT_BYTES,
    "containment.scratch": LASTING.scratch,
}


@frozen
class Setting(Record):
    """One line of a policy, where it stands, and whether it counts."""

    key: str
    value: object
    path: str
    line: int
    in_force: bool = True
    column: int = 1


def rule_of(raw: dict[str, Any], source: str) -> CommandRule:
    """Return a rule of a file as a record."""
    return CommandRule(
        tuple(raw["words"]),
        Decision[raw["decision"].upper()],
        raw.get("reason", ""),
        raw.get("instead", ""),
        source,
        bool(raw.get("exact")),
        tuple(raw.get("lifts", ())),
    )


def table_of(name: str | None, settings: dict[str, Any], held: Profile | None = None) -> Profile:
    """Return a profile with what the settings say of effects and groups; without a name it starts from what holds."""
    base = held if name is None and held is not None else profile_named(name or DEFAULT_PROFILE)
    effects, groups = dict(base.effects), dict(base.groups)
    for key, word in settings.items():
        table, _, field = key.partition(".")
        if table in DECISION_TABLES:
            (effects if table == "effects" else groups)[field] = Decision[word.upper()]
    return Profile(base.name, effects, groups, base.needs_containment)


def strictest(one: Profile, other: Profile) -> Profile:
    """Return what both refuse: of every decision the stricter one, and containment where either needs it."""
    return Profile(
        other.name,
        {key: max(decision, other.effects[key]) for key, decision in one.effects.items()},
        {key: max(decision, other.groups[key]) for key, decision in one.groups.items()},
        one.needs_containment or other.needs_containment,
    )


class PolicyMerge:
    """The levels as they are added: the owner's first."""

    def __init__(self, home: str = "") -> None:
        self.home = home
        self.values: dict[str, Any] = {}  # of keys that have one row in the table, as files write them
        self.base: Setting | None = None  # the last trusted word on the profile
        self.decided: dict[str, str] = {}  # what trusted files say of effects and groups
        self.tightened: list[tuple[str | None, dict[str, str]]] = []  # the same of those that are not
        self.rules: list[tuple[CommandRule, ...]] = []
        self.settings: list[Setting] = []

    def add(self, parsed: dict[str, Any], path: str, *, trusted: bool) -> None:
        """Take a file."""
        held = self.profile()
        name, decided = None, {}
        for key, value, line, column in parsed["settings"]:
            in_force = trusted or self._tightens(key, value, held)
            self.settings.append(Setting(key, value, path, line, in_force, column))
            if not in_force:
                continue
            if key == "profile":
                name = value
                self.base = self.settings[-1] if trusted else self.base
            elif key.startswith(tuple(f"{table}." for table in DECISION_TABLES)):
                decided[key] = value
            else:
                self._put(key, value, trusted=trusted)
        if trusted:
            self.decided |= decided
        elif name is not None or decided:
            self.tightened.append((name, decided))
        self._add_rules(parsed["rules"], path, trusted=trusted)

    def _add_rules(self, rules: list[dict[str, Any]], path: str, *, trusted: bool) -> None:
        kept = []
        for raw in rules:
            in_force = trusted or raw["decision"] != "allow"
            words = f"{raw['decision']} {' '.join(raw['words'])}"
            self.settings.append(Setting("rule", words, path, raw["line"], in_force, raw["column"]))
            if in_force:
                kept.append(rule_of(raw, f"{path}:{raw['line']}"))
        if kept:
            self.rules.append(tuple(kept))

    def request_profile(self, profile: str) -> None:
        """Take the profile that the caller asks for: it holds where no trusted file has spoken, else it may only tighten."""
        asked = Setting("profile", profile, "", 0)
        if self.base is None:
            self.base = asked
        elif not is_tighter("profile", profile, self.base.value):
            said = f"{self.base.value!r} ({self.base.path}:{self.base.line})"
            raise PolicyError(f"the policy says profile = {said}; an option does not loosen it to {profile!r}")
        elif profile != self.base.value:
            self.tightened.append((profile, {}))
        self.settings.append(asked)

    def profile(self) -> Profile:
        """Return what holds of effects and groups so far."""
        held = table_of(None if self.base is None else str(self.base.value), self.decided)
        for name, decided in self.tightened:
            held = strictest(held, table_of(name, decided, held))
        return held

    def _put(self, key: str, value: Any, *, trusted: bool) -> None:
        row = SETTINGS[key]
        held = self.values.get(key)
        if row.tighter == "network" and trusted and isinstance(value, list) and isinstance(held, list):
            # Two lists of the owner's add up; who may only tighten has said all that is to be left.
            value = list(dict.fromkeys([*held, *value]))
        if row.kind == "paths":
            value = [self._expanded(path) for path in value]
        if row.tighter in ("adds", "grants"):
            value = list(dict.fromkeys([*self.values.get(key, ()), *value]))
        self.values[key] = value

    def _expanded(self, path: str) -> str:
        if not path.startswith("~/"):
            return path
        if not self.home.startswith("/"):
            raise PolicyError(f"{path!r} is in a policy, and HOME is not set")
        return f"{self.home}{path[1:]}"

    def _tightens(self, key: str, value: Any, held: Profile) -> bool:
        table, _, field = key.partition(".")
        if table in DECISION_TABLES:
            decisions = held.effects if table == "effects" else held.groups
            return Decision[value.upper()] >= decisions[field]
        if key == "profile":
            return is_tighter(key, value, DEFAULT_PROFILE if self.base is None else self.base.value)
        row = SETTINGS[key]
        now = self.values.get(key, default(key))
        if row.tighter == "grants":
            return not {self._expanded(item) for item in value} - set(now)
        if row.kind == "share":
            return is_tighter(key, _bytes(value), _bytes(now))
        return is_tighter(key, value, now)

    def config(self, root: str) -> SandboxConfig:
        """Return the config that all of it comes to."""
        values = self.values
        table = self.profile()
        profile: str | Profile = table.name
        if self.rules or table != profile_named(table.name):
            profile = table.replace(commands=tuple(self.rules))
        made: dict[str, Any] = {"profile": profile}
        for name in ("timeout_seconds", "max_output_bytes"):
            if name in values:
                made[name] = _or_none(name, values[name])
        if "denylist" in values:
            made["denylist"] = default_denylist(table) | set(values["denylist"])
        if "interpreters" in values:
            made["interpreter_block"] = default_interpreter_block() | set(values["interpreters"])
        if "host_questions" in values:
            made["host_questions"] = values["host_questions"]
        if "environment" in values:
            made["env_allowlist"] = DEFAULT_ENV_ALLOWLIST | set(values["environment"])
        values = {"containment.scratch": LASTING.scratch} | values
        for name, record in _RECORDS.items():
            fields = {k.partition(".")[2]: _or_none(k, v) for k, v in values.items() if k.startswith(f"{name}.")}
            if fields:
                made[name] = record(**fields)
        return SandboxConfig(root, **made)


def _or_none(key: str, value: Any) -> Any:
    """Return a value as the config has it: where a file writes 0 for no bound or nothing, None."""
    return None if value == 0 and SETTINGS[key].zero and key != "max_output_bytes" else value


def default(key: str) -> Any:
    """Return what holds where no file speaks, as a file would write it."""
    if SETTINGS[key].kind in LIST_KINDS:
        return ()
    table, _, field = key.partition(".")
    found = _DEFAULTS[key] if key in _DEFAULTS else getattr(_RECORDS[table](), field)
    return 0 if found is None else found


def _bytes(value: Any) -> Any:
    """Return a bound on memory in bytes."""
    if not isinstance(value, float):
        return value
    from corral._lib.own_cgroups import own_memory_limit  # noqa: PLC0415  only a share needs to know

    return int(value * own_memory_limit())

"""Merges policy files into one config. An untrusted file can only tighten; each setting that would loosen is recorded and left out."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.guard.rules.loader import CommandRule, Profile, default_denylist, default_interpreter_block, profile_named
from corral.model.call import Decision
from corral.model.errors import PolicyError
from corral.policy.config import (
    DEFAULT_ENV_ALLOWLIST,
    DEFAULT_HOLD_SECONDS,
    DEFAULT_MAX_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    Asking,
    Audit,
    Containment,
    Limits,
    Output,
    SandboxConfig,
)
from corral.policy.settings import (
    CONFIG_FIELDS,
    DECISION_TABLES,
    DEFAULT_POSTURE,
    DEFAULT_PROFILE,
    LIST_KINDS,
    SETTINGS,
    TABLES,
    is_tighter,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.policy.answers.family_grants import PolicyGrant

UNTRUSTED_SPEAKER = "the project's policy file, which the user has not trusted,"
MAX_ATTRIBUTED = 300  # characters of an untrusted rule's reason
_DOUBLE_QUOTES = '"\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{DOUBLE LOW-9 QUOTATION MARK}\N{FULLWIDTH QUOTATION MARK}\N{DOUBLE PRIME}'
# Each command of the command line has its own process, so /tmp is kept between commands.
_BUILT_IN: dict[str, Any] = {
    "containment": Containment(scratch="project"),
    "limits": Limits(),
    "output": Output(),
    "audit": Audit(),
    "asking": Asking(DEFAULT_HOLD_SECONDS),
    "profile": DEFAULT_PROFILE,
    "posture": DEFAULT_POSTURE,
    "timeout_seconds": DEFAULT_TIMEOUT_SECONDS,
    "max_output_bytes": DEFAULT_MAX_OUTPUT_BYTES,
    "sessions": False,
}


@frozen
class Setting(Record):
    """A line of a policy file, its position, and whether it is in force."""

    key: str
    value: object
    path: str
    line: int
    in_force: bool = True
    column: int = 1


def rule_of(raw: dict[str, Any], source: str, *, speaker: str = "") -> CommandRule:
    """Return a rule of a file as a record. A `speaker` is named before the rule's free texts, which are then quoted."""
    reason, instead = raw.get("reason", ""), raw.get("instead", "")
    if speaker:
        reason, instead = _attributed(reason, speaker), _attributed(instead, speaker[0].upper() + speaker[1:])
    return CommandRule(
        tuple(raw["words"]),
        Decision[raw["decision"].upper()],
        reason,
        instead,
        source,
        bool(raw.get("exact")),
        tuple(raw.get("lifts", ())),
    )


def grant_of(raw: dict[str, Any], source: str, home: str) -> PolicyGrant:
    """Return a [[grant]] of a file as a record, with real paths."""
    from corral.policy.answers.family_grants import PolicyGrant  # noqa: PLC0415  most policies have no grant

    openings = [
        (kind, real_path(target, home) if kind in ("read", "write") else target) for kind, target in raw["openings"]
    ]
    project = real_path(raw["project"], home) if raw["project"] else ""
    return PolicyGrant(tuple(raw["words"]), tuple(openings), project, raw["alone"], source, raw.get("always", False))


def real_path(path: str, home: str) -> str:
    """Return the real path that a file names, also below ~/."""
    if path.startswith("~/") and not home.startswith("/"):
        raise PolicyError(f"a policy file names {path!r}, and HOME is not set")
    return os.path.realpath(f"{home}{path[1:]}" if path.startswith("~/") else path)


def _attributed(text: str, speaker: str) -> str:
    """Return a text in quotes that it cannot end, with its speaker: an agent must not take it for corral's own words."""
    # Blanks for everything invisible: a line break could begin a line that looks like corral's.
    shown = "".join("'" if c in _DOUBLE_QUOTES else c if c.isprintable() else " " for c in text)
    shown = " ".join(shown.split())
    shown = shown if len(shown) <= MAX_ATTRIBUTED else shown[: MAX_ATTRIBUTED - 1] + "…"
    return f'{speaker} says: "{shown}"' if shown else ""


def profile_with(base: Profile, settings: dict[str, Any]) -> Profile:
    """Return a profile with the decisions that settings give to effects and groups."""
    decisions = {"effects": dict(base.effects), "groups": dict(base.groups)}
    for key, word in settings.items():
        table, _, field = key.partition(".")
        if table in decisions:
            decisions[table][field] = Decision[word.upper()]
    closed = base.closed | {key for key, word in settings.items() if word == "deny"}
    return Profile(base.name, decisions["effects"], decisions["groups"], base.needs_containment, closed=closed)


def strictest(one: Profile, other: Profile) -> Profile:
    """Return a profile with the stricter of two decisions each. It needs containment where either does."""
    return Profile(
        other.name,
        {key: max(decision, other.effects[key]) for key, decision in one.effects.items()},
        {key: max(decision, other.groups[key]) for key, decision in one.groups.items()},
        one.needs_containment or other.needs_containment,
        closed=one.closed | other.closed,
    )


class PolicyMerge:
    """Takes the files of a policy one after the other, the user's own first."""

    def __init__(self, home: str = "", posture: str = DEFAULT_POSTURE) -> None:
        self.settings: list[Setting] = []
        self._home = home
        self._posture = posture  # where no file names one
        self._values: dict[str, Any] = {}  # the present values of keys in SETTINGS, as a file writes them
        self._base: Setting | None = None  # the last trusted setting of the profile
        self._decided: dict[str, str] = {}  # decisions on effects and groups, from trusted files
        self._tightened: list[tuple[str | None, dict[str, str]]] = []  # profiles and decisions from untrusted files
        self._rules: list[tuple[CommandRule, ...]] = []
        self._grants: list[PolicyGrant] = []

    def add(self, parsed: dict[str, Any], path: str, *, trusted: bool, owner: bool = False) -> None:
        """Add a file. Only the user's own file may have grants."""
        present = self._profile()
        name, decided = None, {}
        for key, value, line, column in parsed["settings"]:
            in_force = trusted or self._tightens(key, value, present)
            self.settings.append(Setting(key, value, path, line, in_force, column))
            if not in_force:
                continue
            if key == "profile":
                name = value
                self._base = self.settings[-1] if trusted else self._base
            elif key.partition(".")[0] in DECISION_TABLES:
                decided[key] = value
            else:
                self._put(key, value, trusted=trusted)
        if trusted:
            self._decided |= decided
        elif name is not None or decided:
            self._tightened.append((name, decided))
        self._add_rules(parsed["rules"], path, trusted=trusted)
        for raw in parsed.get("grants", ()):
            openings = ", ".join(f"{kind} {target}" for kind, target in raw["openings"])
            text = f"{' '.join(raw['words'])}: {openings}"
            self.settings.append(Setting("grant", text, path, raw["line"], owner, raw["column"]))
            if owner:
                self._grants.append(grant_of(raw, f"{path}:{raw['line']}", self._home))

    def _add_rules(self, rules: list[dict[str, Any]], path: str, *, trusted: bool) -> None:
        kept = []
        for raw in rules:
            in_force = trusted or raw["decision"] != "allow"
            words = f"{raw['decision']} {' '.join(raw['words'])}"
            self.settings.append(Setting("rule", words, path, raw["line"], in_force, raw["column"]))
            if in_force:
                speaker = "" if trusted else UNTRUSTED_SPEAKER
                kept.append(rule_of(raw, f"{path}:{raw['line']}", speaker=speaker))
        if kept:
            self._rules.append(tuple(kept))

    def request_profile(self, profile: str) -> None:
        """Add the profile that the caller requests. It is used where no trusted file names one, and otherwise may only tighten."""
        asked = Setting("profile", profile, "", 0)
        if self._base is None:
            self._base = asked
        elif not is_tighter("profile", profile, self._base.value):
            named = f"{self._base.value!r} ({self._base.path}:{self._base.line})"
            raise PolicyError(f"the policy sets profile = {named}; an option cannot loosen it to {profile!r}")
        elif profile != self._base.value:
            self._tightened.append((profile, {}))
        self.settings.append(asked)

    def _profile(self) -> Profile:
        """Return the profile that the files so far give."""
        base = profile_named(DEFAULT_PROFILE if self._base is None else str(self._base.value))
        present = profile_with(base, self._decided)
        for name, decided in self._tightened:
            present = strictest(present, profile_with(profile_named(name) if name else present, decided))
        return present

    def _put(self, key: str, value: Any, *, trusted: bool) -> None:
        spec = SETTINGS[key]
        present = self._values.get(key, ())
        if spec.kind in ("paths", "keys"):
            value = [self._expanded(path) for path in value]
        are_destinations = spec.tighter == "network" and isinstance(value, list) and isinstance(present, list)
        # An untrusted list of destinations is a part of the present one, and replaces it.
        if spec.tighter in ("adds", "grants") or (are_destinations and trusted):
            value = list(dict.fromkeys([*present, *value]))
        self._values[key] = value

    def _expanded(self, path: str) -> str:
        if not isinstance(path, str) or not path.startswith("~/"):
            return path
        if not self._home.startswith("/"):
            raise PolicyError(f"a policy file names {path!r}, and HOME is not set")
        return f"{self._home}{path[1:]}"

    def _tightens(self, key: str, value: Any, present: Profile) -> bool:
        table, _, field = key.partition(".")
        if table in DECISION_TABLES:
            decisions = present.effects if table == "effects" else present.groups
            return Decision[value.upper()] >= decisions[field]
        if key == "profile":
            return is_tighter(key, value, DEFAULT_PROFILE if self._base is None else self._base.value)
        spec = SETTINGS[key]
        now = self._values.get(key, self._posture if key == "posture" else default(key))
        if spec.tighter == "grants":
            return not {self._expanded(item) for item in value} - set(now)
        if spec.kind == "share":
            return is_tighter(key, _bytes(value), _bytes(now))
        return is_tighter(key, value, now)

    def config(self, root: str) -> SandboxConfig:
        """Return the merged config."""
        merged = self._profile()
        fields: dict[str, Any] = {"profile": merged.name, "posture": self._posture}
        if self._rules or merged != profile_named(merged.name):
            fields["profile"] = merged.replace(commands=tuple(self._rules))
        added = {
            "denylist": default_denylist(merged),
            "interpreters": default_interpreter_block(),
            "environment": DEFAULT_ENV_ALLOWLIST,
        }
        tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
        for key, value in self._values.items():
            table, _, field = key.partition(".")
            if key in added:
                fields[CONFIG_FIELDS.get(key, key)] = added[key] | set(value)
                continue
            # A file writes 0 for no limit, a config has None.
            checked = None if SETTINGS[key].is_optional and value == 0 else value
            if field:
                tables[table][field] = checked
            else:
                fields[key] = checked
        if self._grants:
            fields["policy_grants"] = tuple(self._grants)
        return SandboxConfig(root, **fields, **{name: _BUILT_IN[name].replace(**tables[name]) for name in tables})


def default(key: str) -> Any:
    """Return the built-in value of a key, as a file writes it."""
    if SETTINGS[key].kind in LIST_KINDS:
        return ()
    table, _, field = key.partition(".")
    found = getattr(_BUILT_IN[table], field) if field else _BUILT_IN[key]
    return 0 if found is None else found


def loosens(key: str, config: SandboxConfig, present: SandboxConfig) -> bool:
    """Return whether a config's setting is one that an untrusted file could not set under the present policy."""
    if key == "profile":
        mine, theirs = config.rules, present.rules
        if mine.name != theirs.name:
            return not is_tighter(key, mine.name, theirs.name)
        # The user's file may have tightened the profile of this name.
        stricter = strictest(theirs, mine)
        return (stricter.effects, stricter.groups) != (mine.effects, mine.groups)
    value, now = _value(key, config), _value(key, present)
    if SETTINGS[key].tighter == "grants":
        return not set(value) <= set(now)
    if SETTINGS[key].kind == "share":
        value, now = _bytes(value), _bytes(now)
    return not is_tighter(key, value, now)


def _value(key: str, config: SandboxConfig) -> Any:
    """Return a config's value of a key, as a file writes it."""
    table, _, field = key.partition(".")
    found = getattr(getattr(config, table), field) if field else getattr(config, CONFIG_FIELDS.get(key, key))
    return 0 if found is None else found


def _bytes(value: Any) -> Any:
    """Return a memory limit in bytes."""
    if not isinstance(value, float):
        return value
    from corral._lib.own_cgroups import own_memory_limit  # noqa: PLC0415  only a share needs it

    return int(value * own_memory_limit())

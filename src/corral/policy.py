"""The owner's choices: built-in profile, the owner's policy.toml, the project's corral.toml, merged into one config.

A project's file may only tighten until the owner trusts its exact bytes; what it would loosen is named, and not in force.
"""

from __future__ import annotations

import marshal
import os

from corral import owned
from corral.config import DEFAULT_ENV_ALLOWLIST, Audit, Containment, Limits, Output, SandboxConfig, checked_root
from corral.errors import PolicyError
from corral.frozen import Record, frozen
from corral.model import Decision
from corral.rulebook import CommandRule, Profile, default_denylist, default_interpreter_block, profile_named
from corral.trust import digest_of, is_trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

OWNER_FILE = "policy.toml"
PROJECT_FILE = "corral.toml"
DEFAULT_PROFILE = "workspace"
_FORMAT = 1  # of the compiled files; another one is another cache entry
_STRICTNESS: dict[str, tuple[object, ...]] = {  # from loose to tight; any value may follow itself
    "profile": ("workspace", "strict"),
    "containment.network": ("on", "off"),
    "containment.project": ("read-write", "read-only"),
    "containment.accept_partial": (True, False),
    "containment.ptrace": (True, False),
    "audit.required": (False, True),
}
_NEUTRAL = ("output.keep", "output.drain_seconds")
_ADDED = ("denylist", "interpreters")  # a list that only grows stricter
_GRANTS = ("containment.read", "containment.write", "environment")  # a list that only grows looser
_TABLES: dict[str, Any] = {"containment": Containment, "limits": Limits, "output": Output, "audit": Audit}


@frozen
class Source(Record):
    """One file of the policy."""

    level: str  # owner or project
    path: str
    digest: str
    trusted: bool


@frozen
class Setting(Record):
    """One line of a policy, where it stands, and whether it counts."""

    key: str
    value: object
    path: str
    line: int
    in_force: bool = True


@frozen
class Policy(Record):
    """The merged choices, and how they came about."""

    config: SandboxConfig
    sources: tuple[Source, ...] = ()
    settings: tuple[Setting, ...] = ()

    @property
    def waiting(self) -> tuple[Setting, ...]:
        """What an untrusted project's file would loosen."""
        return tuple(setting for setting in self.settings if not setting.in_force)


def load(root: str, environ: Mapping[str, str], *, profile: str | None = None) -> Policy:
    """Return the policy of a project; `profile` may only tighten what the files say."""
    root = checked_root(root)
    base = owned.directory("config", environ)
    merge = _Merge()
    sources = []
    for level, path in (("owner", f"{base}/{OWNER_FILE}"), ("project", f"{root}/{PROJECT_FILE}")):
        data = _read(path, root if level == "owner" else "")
        if data is None:
            continue
        digest = digest_of(data)
        trusted = level == "owner" or is_trusted(path, digest, environ, root)
        sources.append(Source(level, path, digest, trusted))
        merge.add(compiled(data, digest, path, environ, root), path, trusted=trusted)
    if profile is not None:
        merge.set("profile", profile, "", 0, trusted=not merge.values.get("profile"))
    return Policy(merge.config(root), tuple(sources), tuple(merge.settings))


def _read(path: str, root: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            if root:
                owned.refuse_inside(path, root)
                owned.refuse_foreign(path)
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        # Not to be read is not the same as not there: it might have tightened.
        raise PolicyError(f"{path} cannot be read: {error.strerror}") from None


def compiled(data: bytes, digest: str, path: str, environ: Mapping[str, str], root: str) -> dict[str, Any]:
    """Return the settings and rules of a file, from the cache where these bytes were read before."""
    place = f"{owned.directory('cache', environ)}/policy"
    cached = f"{place}/{digest}-{_FORMAT}"
    try:
        owned.refuse_inside(place, root)
        owned.refuse_foreign(place)
        with open(cached, "rb") as file:
            found: dict[str, Any] = marshal.loads(file.read())  # noqa: S302  written below, where only the owner can
            return found
    except (OSError, PolicyError, ValueError, EOFError, TypeError):
        pass
    from corral import policyfile  # noqa: PLC0415  a file that is known needs no parser
    from corral.policycheck import check_examples  # noqa: PLC0415

    parsed = policyfile.parse(data, path)
    check_examples(parsed, path)
    _keep(place, cached, marshal.dumps(parsed), root)
    return parsed


def _keep(place: str, cached: str, data: bytes, root: str) -> None:
    partial = f"{cached}.{os.getpid()}"
    try:
        owned.refuse_inside(place, root)
        os.makedirs(place, 0o700, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(data)
        os.replace(partial, cached)
    except (OSError, PolicyError):
        # Without a cache it is read again the next time.
        return


class _Merge:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.rules: list[tuple[CommandRule, ...]] = []
        self.settings: list[Setting] = []

    def add(self, parsed: dict[str, Any], path: str, *, trusted: bool) -> None:
        for key, value, line in parsed["settings"]:
            self.set(key, value, path, line, trusted=trusted)
        rules = []
        for rule in parsed["rules"]:
            decision = Decision[rule["decision"].upper()]
            in_force = trusted or decision is not Decision.ALLOW
            self.settings.append(Setting("rule", " ".join(rule["words"]), path, rule["line"], in_force))
            if in_force:
                source = f"{path}:{rule['line']}"
                rules.append(
                    CommandRule(rule["words"], decision, rule.get("reason", ""), rule.get("instead", ""), source)
                )
        if rules:
            self.rules.append(tuple(rules))

    def set(self, key: str, value: Any, path: str, line: int, *, trusted: bool) -> None:
        """Take one setting, if it is the owner's word or no looser than what holds."""
        in_force = trusted or self._tightens(key, value)
        self.settings.append(Setting(key, value, path, line, in_force))
        if not in_force:
            return
        if key in _ADDED or key in _GRANTS:
            value = [*self.values.get(key, ()), *value]
        if key == "profile":
            # What another profile says of an effect counts as well: the strictest of all holds.
            value = max(value, self.values.get(key, value), key=_STRICTNESS["profile"].index) if not trusted else value
        self.values[key] = value

    def _tightens(self, key: str, value: Any) -> bool:
        held = self.values.get(key, _default(key, self._profile()))
        if key in _NEUTRAL or key in _ADDED:
            return True
        if key in _GRANTS:
            return not set(value) - set(held)
        if key.startswith(("effects.", "groups.")):
            return Decision[value.upper()] >= Decision[str(held).upper()]
        if key in _STRICTNESS:
            order = _STRICTNESS[key]
            return order.index(value) >= order.index(held)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return bool(value) and (not held or value <= held)
        return bool(value == held)

    def _profile(self) -> Profile:
        return profile_named(self.values.get("profile", DEFAULT_PROFILE))

    def config(self, root: str) -> SandboxConfig:
        """Return the config that all of it comes to."""
        values = self.values
        base = self._profile()
        changed = {key: value for key, value in values.items() if key.startswith(("effects.", "groups."))}
        profile: str | Profile = base.name
        if changed or self.rules:
            effects, groups = dict(base.effects), dict(base.groups)
            for key, word in changed.items():
                table = effects if key.startswith("effects.") else groups
                table[key.partition(".")[2]] = Decision[word.upper()]
            profile = Profile(base.name, effects, groups, base.needs_containment, tuple(self.rules))
        made: dict[str, Any] = {"profile": profile}
        for name in ("timeout_seconds", "max_output_bytes"):
            if name in values:
                made[name] = values[name] if name != "timeout_seconds" else values[name] or None
        if "denylist" in values:
            made["denylist"] = default_denylist(profile if isinstance(profile, Profile) else base) | set(
                values["denylist"]
            )
        if "interpreters" in values:
            made["interpreter_block"] = default_interpreter_block() | set(values["interpreters"])
        if "environment" in values:
            made["env_allowlist"] = DEFAULT_ENV_ALLOWLIST | set(values["environment"])
        for name, record in _TABLES.items():
            fields = {k.partition(".")[2]: v for k, v in values.items() if k.startswith(name + ".")}
            if fields:
                made[name] = record(**fields)
        return SandboxConfig(root, **made)


def _default(key: str, profile: Profile) -> Any:
    table, _, field = key.partition(".")
    if table == "effects":
        return profile.effects[field]
    if table == "groups":
        return profile.groups[field]
    if table in _TABLES:
        return getattr(_TABLES[table](), field)
    if key == "profile":
        return profile.name
    if key in _GRANTS:
        return ()
    return getattr(SandboxConfig("/usr"), key)

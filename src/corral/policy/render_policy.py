"""Renders a merged policy as text and as JSON-ready data: each value, the line it comes from, and the settings that wait for trust."""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral._lib.network.network_grants import mask_injection
from corral._lib.terminal import printable
from corral.guard.rules.loader import profile_named
from corral.policy.settings import CONFIG_FIELDS, DECISION_TABLES, SETTINGS, TABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral._lib.terminal import Terminal
    from corral.policy.config import SandboxConfig
    from corral.policy.loader import Policy, PolicyFile
    from corral.policy.merge import Setting

SCHEMA = "corral.policy/1"
BUILT_IN = "built-in"


def setting_text(setting: Setting) -> str:
    """Return a setting as a policy file writes it."""
    if setting.key in ("rule", "grant"):
        return f"[[{setting.key}]] {printable(str(setting.value))}"
    return f"{setting.key} = {printable(toml_value(setting.value))}"


def toml_value(value: object) -> str:
    """Return a value as TOML."""
    return dumps(list(value) if isinstance(value, (tuple, set, frozenset)) else value)


def value_of(key: str, config: SandboxConfig) -> Any:
    """Return the present value of a key, as a file writes it."""
    table, _, field = key.partition(".")
    if field:
        value = getattr(getattr(config, table), field)
    elif key == "profile":
        value = config.rules.name
    else:
        value = getattr(config, CONFIG_FIELDS.get(key, key))
    if SETTINGS[key].kind in ("names", "patterns"):
        return sorted(value)
    if SETTINGS[key].kind == "headers":
        return [mask_injection(text) for text in value]
    return list(value) if isinstance(value, tuple) else 0 if value is None else value


def to_dict(policy: Policy) -> dict[str, object]:
    """Return the policy as JSON-ready data."""
    config, rules = policy.config, policy.config.rules
    settings = {key: {"value": value_of(key, config), "from": _positions(_sources(policy, key))} for key in SETTINGS}
    decided = {
        table: {
            key: {"value": str(decision), "from": _positions(_sources(policy, f"{table}.{key}"))}
            for key, decision in getattr(rules, table).items()
        }
        for table in DECISION_TABLES
    }
    return {
        "schema": SCHEMA,
        "root": config.project_root,
        "files": [source.as_dict() for source in policy.sources],
        "needs_containment": rules.needs_containment,
        "settings": settings,
        **decided,
        "rules": [_rule(rule) for file in rules.commands for rule in file],
        "grants": [_grant(s) for s in policy.settings if s.key == "grant"],
        "waiting": [
            {"key": s.key, "value": s.value, "path": s.path, "line": s.line, "column": s.column} for s in policy.waiting
        ],
    }


def _grant(setting: Setting) -> dict[str, object]:
    where = {"path": setting.path, "line": setting.line, "column": setting.column}
    return {"grant": setting.value, "in_force": setting.in_force, **where}


def _rule(rule: Any) -> dict[str, object]:
    path, _, line = rule.source.rpartition(":")
    return {
        "id": rule.id,
        "command": list(rule.words),
        "decision": str(rule.decision),
        "reason": rule.reason,
        "instead": rule.instead,
        "exact": rule.exact,
        "lifts": list(rule.lifts),
        "path": path,
        "line": int(line),
    }


def _sources(policy: Policy, key: str) -> list[Setting]:
    """Return the settings that a value comes from: the last one, or all for a list that every file adds to."""
    found = [s for s in policy.settings if s.key == key and s.in_force]
    if key in SETTINGS and SETTINGS[key].tighter == "network":
        lists = [s for s in found if isinstance(s.value, list)]
        return lists if found[-1:] == lists[-1:] else found[-1:]
    return found if key in SETTINGS and SETTINGS[key].tighter in ("adds", "grants") else found[-1:]


def _positions(settings: Iterable[Setting]) -> list[dict[str, object]]:
    return [{"path": s.path, "line": s.line, "column": s.column} for s in settings]


def policy_lines(policy: Policy, terminal: Terminal) -> list[str]:
    """Return the policy as lines of text."""
    rows = [_file(source) for source in policy.sources] or [("# no policy file: every value is built in", "")]
    rows.append(("", ""))
    for table in ("", *TABLES):
        own = [key for key in SETTINGS if key.partition(".")[0 if "." in key else 2] == table]
        rows += [("", ""), (f"[{table}]", "")] if table else []
        rows += [_row(policy, key) for key in own]
    for table in DECISION_TABLES:
        changed = _changed(policy, table)
        rows += [("", ""), (f"[{table}]", ""), *changed] if changed else []
    for file in policy.config.rules.commands:
        for rule in file:
            rows += [("", ""), (f"[[rule]] {rule.decision} {' '.join(rule.words)}", rule.source)]
    given = [s for s in policy.settings if s.key == "grant" and s.in_force]
    rows += [row for s in given for row in (("", ""), (setting_text(s), f"{s.path}:{s.line}"))]
    if policy.left_out:
        rows += [("", ""), ("# left out: only your own policy file may have a [[grant]]", "")]
        rows += [(f"# {setting_text(s)}", f"{s.path}:{s.line}") for s in policy.left_out]
    if policy.waiting:
        rows += [("", ""), ("# would loosen the policy, and waits for: corral trust", "")]
        rows += [(f"# {setting_text(s)}", f"{s.path}:{s.line}") for s in policy.waiting]
    width = max(len(text) for text, origin in rows if origin and len(text) < terminal.columns // 2)
    return [_line(text, origin, width, terminal) for text, origin in rows]


def _file(source: PolicyFile) -> tuple[str, str]:
    state = "" if source.level == "owner" else ", trusted" if source.trusted else ", not trusted: it only tightens"
    return f"# {printable(source.path)} ({source.level}{state})", ""


def _row(policy: Policy, key: str) -> tuple[str, str]:
    value = value_of(key, policy.config)
    sources = _sources(policy, key)
    if SETTINGS[key].kind in ("names", "patterns"):
        # The built-in names would fill a screen; `corral rule` lists them.
        value = [name for s in sources for name in s.value]  # type: ignore[attr-defined]
    name = key.rpartition(".")[2]
    return f"{name} = {printable(toml_value(value))}", ", ".join(_origin(s) for s in sources) or BUILT_IN


def _origin(setting: Setting) -> str:
    return f"{printable(setting.path)}:{setting.line}" if setting.path else "the command line"


def _changed(policy: Policy, table: str) -> list[tuple[str, str]]:
    rules = policy.config.rules
    built_in = getattr(profile_named(rules.name), table)
    found = []
    for key, decision in getattr(rules, table).items():
        sources = _sources(policy, f"{table}.{key}")
        if sources or decision is not built_in[key]:
            found.append((f'{key} = "{decision}"', _origin(sources[0]) if sources else BUILT_IN))
    return found


def _line(text: str, origin: str, width: int, terminal: Terminal) -> str:
    if not origin:
        return terminal.paint("dim" if text.startswith("#") else "head", text) if text else ""
    return f"{text.ljust(width)}  {terminal.paint('dim', f'# {printable(origin)}')}"

"""Parses one policy file into checked settings and rules. A mistake is a PolicyError with file, line and column."""

from __future__ import annotations

import tomllib

from corral._lib.lazy_regex import pattern
from corral.guard.rules.loader import effects, group_names
from corral.model.errors import PolicyError
from corral.policy.settings import (
    DECISION_TABLES,
    DECISIONS,
    GPG_KEY,
    LIST_KINDS,
    MAX_FILE_BYTES,
    NEEDS_BACKEND,
    SETTINGS,
    TABLES,
    check,
    check_item,
    list_of,
)
from corral.policy.toml_positions import key_positions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from corral.policy.toml_positions import Path

    Setting = tuple[str, object, int, int]  # dotted key, value, line, column

MAX_RULES = 500
MAX_EXAMPLES = 2000  # of all rules together; each is judged when a file is new
RULE_KEYS = ("command", "decision", "reason", "instead", "exact", *DECISIONS)
MAX_GRANTS = 200
GRANT_LISTS = ("network", "read", "write", "local", "publish", "fetch", "push", "broker")
GRANT_KEYS = ("command", *GRANT_LISTS, "project", "alone", "always", "allow")
_SYNTAX_ERROR = pattern(r"(?s)^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$")
_AGENT = pattern(r"[a-z0-9-]+")
_TOOL = pattern(r"@[a-z][a-z0-9-]*")
_SHAPE = pattern(r"[a-z][a-z0-9-]*/[A-Za-z0-9._@:-]+")
_TRANSPORT = pattern(r"[!-~]+( refs/heads/[!-)+-~]+\*?)*")
_WORD = pattern(r"[^\s\x00-\x20'\"$`\\|&;<>(){}*?!~#\[\]]+")


class _Positions:
    """The positions of a file's keys, for error messages."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._keys = key_positions(text)

    def of(self, *key: str | int) -> tuple[int, int]:
        """Return line and column of a key, or of the nearest key above it."""
        at: Path = key
        while at and at not in self._keys:
            at = at[:-1]
        return self._keys.get(at, (1, 1))

    def refuse(self, key: tuple[str | int, ...], message: str) -> NoReturn:
        """Raise PolicyError with the position of a key."""
        raise error_at(self._path, self.of(*key), message)


def error_at(path: str, position: tuple[int, int], message: str) -> PolicyError:
    """Return an error with its position in a file."""
    return PolicyError(f"{path}:{position[0]}:{position[1]}: {message}")


def parse(data: bytes, path: str) -> dict[str, Any]:
    """Return the `settings` (dotted key, value, line, column), `rules` and `grants` of a file as plain data, all of them checked."""
    if len(data) > MAX_FILE_BYTES:
        raise error_at(path, (1, 1), f"the file is longer than {MAX_FILE_BYTES} bytes")
    text = _decode(data, path)
    tree = _parse_toml(text, path)
    where = _Positions(path, text)
    settings: list[Setting] = []
    rules: list[dict[str, Any]] = []
    grants: list[dict[str, Any]] = []
    for key, value in tree.items():
        if key == "rule":
            rules = _rules(value, where)
        elif key == "grant":
            grants = _grants(value, where)
        elif key in TABLES or key in DECISION_TABLES:
            settings += _table(key, value, where)
        elif key in SETTINGS and "." not in key:
            settings.append((key, _checked((key,), value, where), *where.of(key)))
        else:
            known = [*(k for k in SETTINGS if "." not in k), *TABLES, *DECISION_TABLES, "rule", "grant"]
            where.refuse((key,), f"unknown key {key!r}{_suggestion(key, known)}")
    _refuse_contradictions(settings, rules, where)
    return {"settings": settings, "rules": rules, "grants": grants}


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise error_at(path, (line, column), "the file is not UTF-8") from None


def _parse_toml(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error_at(path, (1, 1), "the file is nested too deeply") from None
    except ValueError as error:  # a number of five thousand digits raises a plain ValueError
        match = _SYNTAX_ERROR.match(str(error))
        if match is None:
            raise error_at(path, (1, 1), f"invalid TOML: {error}") from None
        end = (text.count("\n") + 1, len(text) - text.rfind("\n"))
        position = end if match.group(2) is None else (int(match.group(2)), int(match.group(3)))
        raise error_at(path, position, f"invalid TOML: {match.group(1)}") from None


def _suggestion(key: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  only for a mistake

    near = get_close_matches(key, known, 1)
    return f"{f', did you mean {near[0]!r}?' if near else ''}; known: {', '.join(known)}"


def _table(name: str, table: object, where: _Positions) -> list[Setting]:
    if not isinstance(table, dict):
        where.refuse((name,), f"{name} must be a table, as in: [{name}]")
    settings: list[Setting] = []
    for key, value in table.items():
        dotted = f"{name}.{key}"
        if name in DECISION_TABLES:
            known: Any = effects() if name == "effects" else group_names()
            if key not in known:
                where.refuse((name, key), f"{name} has no {key!r}{_suggestion(key, sorted(known))}")
            if not isinstance(value, str) or value not in DECISIONS:
                where.refuse((name, key), f"{dotted} must be one of {', '.join(DECISIONS)}, not {value!r}")
        elif dotted not in SETTINGS:
            own = [k.partition(".")[2] for k in SETTINGS if k.startswith(f"{name}.")]
            where.refuse((name, key), f"{name} has no {key!r}{_suggestion(key, own)}")
        else:
            value = _checked((name, key), value, where)  # noqa: PLW2901  in its canonical form
        settings.append((dotted, value, *where.of(name, key)))
    return settings


def _checked(path: tuple[str, ...], value: Any, where: _Positions) -> Any:
    """Return the value of a setting in its canonical form."""
    key = ".".join(path)
    spec = SETTINGS[key]
    if spec.kind in LIST_KINDS or (spec.kind == "network" and isinstance(value, list)):
        items = _checked_items(path, value, where)
        return items if items or spec.kind != "network" else "off"
    is_zero = type(value) in (int, float) and value == 0
    if is_zero and spec.is_optional and (isinstance(value, int) or spec.kind == "seconds"):
        return value
    try:
        return check(key, value, none="0 for no limit")
    except PolicyError as error:
        where.refuse(path, str(error))


def _checked_items(path: tuple[str, ...], value: Any, where: _Positions) -> list[Any]:
    key = ".".join(path)
    kind = SETTINGS[key].kind
    if not isinstance(value, list):
        where.refuse(path, f"{key} must be {list_of(kind)}, not {value!r}")
    found: list[Any] = []
    for number, item in enumerate(value):
        place: tuple[str | int, ...] = (*path, number)
        is_below_home = kind in ("paths", "keys") and isinstance(item, str) and item.startswith("~/")
        try:
            checked = check_item(key, item[1:] if is_below_home else item)
        except PolicyError as error:
            message = (
                f"{error}{', or paths below ~/' * (kind in ('paths', 'keys') and not str(item).startswith(GPG_KEY))}"
            )
            # `check_item` saw the path without its ~; quote what the file says.
            where.refuse(place, message.replace(repr(item[1:]), repr(item), 1) if is_below_home else message)
        if kind == "names" and "*" in item:
            where.refuse(place, f"{key} takes whole names, not {item!r}")
        if kind == "agents" and not _AGENT.fullmatch(item):
            where.refuse(place, f"{key} takes names such as 'claude', not {item!r}")
        # Two spellings of the same network destination are the same destination.
        found.append(checked if kind == "network" else item)
        if found.index(found[-1]) != number:
            where.refuse(place, f"{key} contains {found[-1]!r} twice")
    return found


def _rules(value: object, where: _Positions) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        where.refuse(("rule",), "write rules as [[rule]]")
    if len(value) > MAX_RULES:
        where.refuse(("rule", MAX_RULES), f"the file has more than {MAX_RULES} rules")
    rules: list[dict[str, Any]] = []
    count = 0
    for number, rule in enumerate(value):
        at = ("rule", number)
        for key in rule:
            if key not in RULE_KEYS:
                where.refuse((*at, key), f"a rule has no {key!r}{_suggestion(key, RULE_KEYS)}")
        words = _words(rule, at, where)
        decision = rule.get("decision")
        if decision is None:
            where.refuse(at, f"a rule needs a decision, one of {', '.join(DECISIONS)}")
        if not isinstance(decision, str) or decision not in DECISIONS:
            where.refuse((*at, "decision"), f"decision must be one of {', '.join(DECISIONS)}, not {decision!r}")
        for key in ("reason", "instead"):
            if not isinstance(rule.get(key, ""), str):
                where.refuse((*at, key), f"{key} must be a text, not {rule[key]!r}")
        if not isinstance(rule.get("exact", False), bool):
            where.refuse((*at, "exact"), f"exact must be true or false, not {rule['exact']!r}")
        if rule.get("exact") and decision != "allow":
            where.refuse((*at, "exact"), "exact only works in a rule that allows; other rules match with any options")
        count += _examples(rule, at, where)
        if count > MAX_EXAMPLES:
            where.refuse(at, f"the file has more than {MAX_EXAMPLES} examples")
        if not rule.get(decision):
            where.refuse(at, f"a rule needs an example of its decision, as in: {decision} = [{' '.join(words)!r}]")
        _refuse_unreachable(words, rule, rules, at, where)
        line, column = where.of(*at)
        rules.append({**rule, "words": words, "line": line, "column": column, "number": number})
    return rules


def _examples(rule: dict[str, Any], at: tuple[str, int], where: _Positions) -> int:
    seen: dict[str, str] = {}
    for key in DECISIONS:
        texts = rule.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            where.refuse((*at, key), f"{key} must be a list of example commands")
        for number, text in enumerate(texts):
            if text in seen:
                where.refuse((*at, key, number), f"the example {text!r} occurs twice, as {seen[text]} and as {key}")
            seen[text] = key
    return len(seen)


def _words(rule: dict[str, Any], at: tuple[str, int], where: _Positions) -> tuple[str, ...]:
    command = rule.get("command")
    words = command.split() if isinstance(command, str) else command
    at_command = (*at, "command")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        where.refuse(at_command, "command must be the first words of a command, as in 'git push' or ['git', 'push']")
    for word in words:
        if _WORD.fullmatch(word) is None:
            where.refuse(at_command, f"command takes plain words without quotes, variables or patterns, not {word!r}")
    if "/" in words[0] or words[0].startswith("-") or "=" in words[0]:
        where.refuse(at_command, f"command must begin with the name of a program, not with {words[0]!r}")
    return tuple(words)


def _grants(value: object, where: _Positions) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(grant, dict) for grant in value):
        where.refuse(("grant",), "write grants as [[grant]]")
    if len(value) > MAX_GRANTS:
        where.refuse(("grant", MAX_GRANTS), f"the file has more than {MAX_GRANTS} grants")
    grants = []
    for number, grant in enumerate(value):
        at = ("grant", number)
        for key in grant:
            if key not in GRANT_KEYS:
                where.refuse((*at, key), f"a grant has no {key!r}{_suggestion(key, GRANT_KEYS)}")
        words = _words(grant, at, where)
        openings = [opening for key in GRANT_LISTS for opening in _openings(key, grant.get(key, []), at, where)]
        if not openings:
            where.refuse(at, "a grant needs what it opens, as in: network = ['index.example:443']")
        project = grant.get("project", "")
        if not isinstance(project, str) or (project and not project.startswith(("/", "~/"))):
            where.refuse((*at, "project"), f"project must be an absolute path or a path below ~/, not {project!r}")
        for key in ("alone", "always"):
            if not isinstance(grant.get(key, True), bool):
                where.refuse((*at, key), f"{key} must be true or false, not {grant[key]!r}")
        if grant.get("always") and not grant.get("network"):
            where.refuse((*at, "always"), "always needs network = ['host:port']: it opens nothing else")
        allow = grant.get("allow", [])
        if not isinstance(allow, list) or not all(isinstance(text, str) and text.strip() for text in allow):
            where.refuse((*at, "allow"), "allow must be a list of example commands")
        if len(allow) > MAX_EXAMPLES:
            where.refuse(at, f"the file has more than {MAX_EXAMPLES} examples")
        line, column = where.of(*at)
        fields = {"words": words, "openings": openings, "project": project}
        fields |= {"alone": grant.get("alone", True), "always": grant.get("always", False)}
        grants.append({**fields, "allow": allow, "line": line, "column": column})
    return grants


def _openings(key: str, value: Any, at: tuple[str, int], where: _Positions) -> list[tuple[str, str]]:
    """Return kind and target of each item of a grant's list."""
    if not isinstance(value, list):
        where.refuse((*at, key), f"{key} must be a list, not {value!r}")
    found = []
    for number, item in enumerate(value):
        try:
            found.append(_opening(key, item))
        except (PolicyError, ValueError) as error:
            where.refuse((*at, key, number), str(error))
        if found.index(found[-1]) != number:
            where.refuse((*at, key, number), f"{key} contains {item!r} twice")
    return found


def _opening(key: str, item: Any) -> tuple[str, str]:
    if key in ("local", "publish"):
        return key, str(check_item(f"containment.{key}", item, key))
    if not isinstance(item, str):
        raise PolicyError(f"{key} contains {item!r}, which is no text")
    if key == "network":
        if _TOOL.fullmatch(item):
            return "registry", item[1:]
        if item.startswith("*."):
            raise PolicyError(f"{key} contains {item!r}; a grant names each host")
        return key, str(check_item("containment.network", item, key))
    if key in ("read", "write"):
        check_item(f"containment.{key}", item.removeprefix("~"), key)
        return key, item
    if key == "broker":
        if not _SHAPE.fullmatch(item):
            raise PolicyError(f"broker contains {item!r}; it takes texts such as 'gh/read'")
        return key, item
    if not _TRANSPORT.fullmatch(item) or (key == "fetch" and " " in item):
        example = (
            "'git@forge.example:me/app.git'" if key == "fetch" else "'git@forge.example:me/app.git refs/heads/agent/*'"
        )
        raise PolicyError(f"{key} contains {item!r}; it takes texts such as {example}")
    return "transport", f"{key} {item}"


def _refuse_unreachable(
    words: tuple[str, ...], rule: dict[str, Any], before: list[dict[str, Any]], at: tuple[str, int], where: _Positions
) -> None:
    for earlier in before:
        if words[: len(earlier["words"])] != earlier["words"]:
            continue
        is_same = words == earlier["words"]
        if earlier.get("exact") is True and not (rule.get("exact") and is_same):
            continue
        named = f"the rule for {' '.join(earlier['words'])!r} in line {earlier['line']}"
        if is_same and earlier["decision"] != rule["decision"]:
            where.refuse(at, f"this rule contradicts {named}, which gives {earlier['decision']} for the same words")
        where.refuse(at, f"this rule is never reached: {named} comes first; put the longer one before it")


def _refuse_contradictions(settings: list[Setting], rules: list[dict[str, Any]], where: _Positions) -> None:
    values = {key: value for key, value, _, _ in settings}
    timeout, silence = values.get("timeout_seconds"), values.get("output.silence_seconds")
    if isinstance(timeout, (int, float)) and isinstance(silence, (int, float)) and 0 < timeout <= silence:
        where.refuse(
            ("output", "silence_seconds"),
            f"{silence} seconds of silence cannot pass before the command ends: timeout_seconds is {timeout}",
        )
    if values.get("containment.backend") == "none" and values.get("profile") == "workspace":
        where.refuse(("containment", "backend"), f"profile workspace {NEEDS_BACKEND}")
    refused: Any = values.get("denylist", ())
    for rule in rules:
        name = rule["words"][0]
        if rule["decision"] == "allow" and name in refused:
            where.refuse(
                ("rule", rule["number"]), f"this rule allows {name}, which denylist refuses; remove one of them"
            )

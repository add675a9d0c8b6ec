"""One policy file: its bytes to checked settings and rules. What is wrong is a PolicyError with file, line and column."""

from __future__ import annotations

import tomllib

from corral._lib import network_grants
from corral._lib.lazy_regex import pattern
from corral.guard.rules.loader import effects, group_names
from corral.model.errors import PolicyError
from corral.policy.config import Audit, Containment, Limits, Output, SandboxConfig
from corral.policy.settings import CONFIG_FIELDS, DECISION_TABLES, DECISIONS, LIST_KINDS, SETTINGS, TABLES
from corral.policy.toml_positions import key_positions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from corral.policy.toml_positions import Path

    Setting = tuple[str, object, int, int]  # dotted key, value, line, column

MAX_FILE_BYTES = 256 * 1024
MAX_RULES = 500
MAX_EXAMPLES = 2000  # of all rules; each is judged when a file is new
RULE_KEYS = ("command", "decision", "reason", "instead", "exact", *DECISIONS)
_RECORDS: dict[str, Any] = {"containment": Containment, "limits": Limits, "output": Output, "audit": Audit}
_SYNTAX_PLACE = pattern(r"(?s)^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$")
_WANTED = {
    "agents": "names such as 'claude'",
    "hosts": "texts such as 'index.example=192.0.2.1'",
    "headers": "texts such as 'index.example:443 Name: value'",
}
_AGENT = pattern(r"[a-z0-9-]+")
_WORD = pattern(r"[^\s\x00-\x20'\"$`\\|&;<>(){}*?!~#\[\]]+")


class Located:
    """A file's text, and where its keys stand."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._keys = key_positions(text)

    def of(self, *key: str | int) -> tuple[int, int]:
        """Return line and column of a key, or of the nearest thing above it."""
        at: Path = key
        while at and at not in self._keys:
            at = at[:-1]
        return self._keys.get(at, (1, 1))

    def refuse(self, key: tuple[str | int, ...], message: str) -> NoReturn:
        """Raise with the place of a key."""
        raise at_place(self.path, self.of(*key), message)


def at_place(path: str, place: tuple[int, int], message: str) -> PolicyError:
    """Return what is wrong, with the place where it stands."""
    return PolicyError(f"{path}:{place[0]}:{place[1]}: {message}")


def parse(data: bytes, path: str) -> dict[str, Any]:
    """Return `settings` (dotted key, value, line, column) and `rules` of a file, all of the right kind; plain data."""
    if len(data) > MAX_FILE_BYTES:
        raise at_place(path, (1, 1), f"longer than {MAX_FILE_BYTES} bytes")
    text = _text(data, path)
    tree = _tree(text, path)
    where = Located(path, text)
    settings: list[Setting] = []
    rules: list[dict[str, Any]] = []
    for key, value in tree.items():
        if key == "rule":
            rules = _rules(value, where)
        elif key in TABLES or key in DECISION_TABLES:
            settings += _table(key, value, where)
        elif key in SETTINGS and "." not in key:
            settings.append((key, _checked((key,), value, where), *where.of(key)))
        else:
            known = [*(k for k in SETTINGS if "." not in k), *TABLES, *DECISION_TABLES, "rule"]
            where.refuse((key,), f"unknown key {key!r}{_known(key, known)}")
    _refuse_contradictions(settings, rules, where)
    return {"settings": settings, "rules": rules}


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise at_place(path, (line, column), "not UTF-8") from None


def _tree(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise at_place(path, (1, 1), "nested too deeply") from None
    except ValueError as error:  # a number of five thousand digits is no TOMLDecodeError
        match = _SYNTAX_PLACE.match(str(error))
        if match is None:
            raise at_place(path, (1, 1), f"this is not TOML: {error}") from None
        end = (text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)
        place = end if match.group(2) is None else (int(match.group(2)), int(match.group(3)))
        raise at_place(path, place, f"this is not TOML: {match.group(1)}") from None


def _known(key: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  only for a slip of the pen

    near = get_close_matches(key, known, 1)
    return f"{f', did you mean {near[0]!r}?' if near else ''}; known: {', '.join(known)}"


def _table(name: str, table: object, where: Located) -> list[Setting]:
    if not isinstance(table, dict):
        where.refuse((name,), f"{name} must be a table, as in: [{name}]")
    settings: list[Setting] = []
    for key, value in table.items():
        dotted = f"{name}.{key}"
        if name in DECISION_TABLES:
            known: Any = effects() if name == "effects" else group_names()
            if key not in known:
                where.refuse((name, key), f"{name} has no {key!r}{_known(key, sorted(known))}")
            if not isinstance(value, str) or value not in DECISIONS:
                where.refuse((name, key), f"{dotted} must be one of {', '.join(DECISIONS)}, not {value!r}")
        elif dotted not in SETTINGS:
            own = [k.partition(".")[2] for k in SETTINGS if k.startswith(f"{name}.")]
            where.refuse((name, key), f"{name} has no {key!r}{_known(key, own)}")
        else:
            value = _checked((name, key), value, where)  # noqa: PLW2901  checked, and lists without a second mention
        settings.append((dotted, value, *where.of(name, key)))
    return settings


def _checked(path: tuple[str, ...], value: Any, where: Located) -> Any:
    """Return a value of the kind that its key takes."""
    key = ".".join(path)
    row = SETTINGS[key]
    if row.kind in LIST_KINDS:
        return _list(path, value, where)
    if row.kind == "network":
        return _network(path, value, where)
    if row.kind in ("choice", "switch"):
        # True == 1: the type counts as well.
        if not any(value == choice and type(value) is type(choice) for choice in row.choices):
            words = ", ".join(repr(c) if isinstance(c, str) else str(c).lower() for c in row.choices)
            where.refuse(path, f"{key} must be one of {words}, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        where.refuse(path, f"{key} must be a number, not {value!r}")
    if value == 0 and row.zero and (isinstance(value, int) or row.kind == "seconds"):
        return value
    if value > row.most:
        where.refuse(path, f"{key} must be at most {row.most:g}, not {value!r}")
    try:
        if len(path) > 1:
            _RECORDS[path[0]](**{path[1]: value})
        else:
            SandboxConfig("/usr", **{key: value})  # type: ignore[arg-type]  # the record says what is wrong
    except PolicyError as error:
        where.refuse(path, str(error).replace(", or None", ", or 0 for none" if row.zero else ""))
    return value


def _network(path: tuple[str, ...], value: Any, where: Located) -> str | list[str]:
    """Return a word, or destinations in their canonical form: another notation of the same must not count as another."""
    if not isinstance(value, list):
        try:
            return str(Containment(network=value).network)
        except PolicyError as error:
            where.refuse(path, str(error))
    made: list[str] = []
    for number, item in enumerate(value):
        try:
            made.append(network_grants.parse_grant(item))
        except ValueError as error:
            where.refuse((*path, number), f"{'.'.join(path)}: {error}")
        if made.index(made[-1]) != number:
            where.refuse((*path, number), f"{made[-1]!r} stands in {'.'.join(path)} twice")
    return made or "off"


def _list(path: tuple[str, ...], value: Any, where: Located) -> list[str]:
    key = ".".join(path)
    paths = SETTINGS[key].kind == "paths"
    wanted = (
        "absolute paths below /, or paths that begin with ~/" if paths else _WANTED.get(SETTINGS[key].kind, "names")
    )
    if not isinstance(value, list):
        where.refuse(path, f"{key} must be a list of {wanted}, not {value!r}")
    for number, item in enumerate(value):
        place: tuple[str | int, ...] = (*path, number)
        if not isinstance(item, str):
            where.refuse(place, f"{key} must be a list of {wanted}; this is {item!r}")
        try:
            if paths:
                Containment(read=(item.replace("~/", "/home/", 1) if item.startswith("~/") else item,))
            elif SETTINGS[key].kind in _WANTED:
                Containment(**{path[1]: (item,)})  # type: ignore[arg-type]  # the record says what is wrong
            else:
                SandboxConfig("/usr", **{CONFIG_FIELDS.get(key, key): (item,)})  # type: ignore[arg-type]
        except PolicyError as error:
            where.refuse(place, f"{key} must be a list of {wanted}; this is {item!r}" if paths else str(error))
        if SETTINGS[key].kind == "names" and "*" in item:
            where.refuse(place, f"{key} takes whole names, not {item!r}")
        if SETTINGS[key].kind == "agents" and not _AGENT.fullmatch(item):
            where.refuse(place, f"{key} takes {wanted}, not {item!r}")
        if value.index(item) != number:
            where.refuse(place, f"{item!r} stands in {key} twice")
    return value


def _rules(value: object, where: Located) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        where.refuse(("rule",), "rules are written as [[rule]]")
    if len(value) > MAX_RULES:
        where.refuse(("rule", MAX_RULES), f"more than {MAX_RULES} rules")
    rules: list[dict[str, Any]] = []
    count = 0
    for number, rule in enumerate(value):
        at = ("rule", number)
        for key in rule:
            if key not in RULE_KEYS:
                where.refuse((*at, key), f"a rule has no {key!r}{_known(key, RULE_KEYS)}")
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
            where.refuse((*at, "exact"), "exact is for rules that allow: one that refuses looks through options")
        count += _examples(rule, at, where)
        if count > MAX_EXAMPLES:
            where.refuse(at, f"more than {MAX_EXAMPLES} examples")
        if not rule.get(decision):
            where.refuse(at, f"a rule needs an example of what it decides, as in: {decision} = [{' '.join(words)!r}]")
        _refuse_unreachable(words, rule, rules, at, where)
        line, column = where.of(*at)
        rules.append({**rule, "words": words, "line": line, "column": column, "number": number})
    return rules


def _examples(rule: dict[str, Any], at: tuple[str, int], where: Located) -> int:
    seen: dict[str, str] = {}
    for key in DECISIONS:
        texts = rule.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            where.refuse((*at, key), f"{key} must be a list of commands, as examples")
        for number, text in enumerate(texts):
            if text in seen:
                where.refuse(
                    (*at, key, number), f"the example {text!r} stands here twice, as {seen[text]} and as {key}"
                )
            seen[text] = key
    return len(seen)


def _words(rule: dict[str, Any], at: tuple[str, int], where: Located) -> tuple[str, ...]:
    command = rule.get("command")
    words = command.split() if isinstance(command, str) else command
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        message = "command must be the first words of a command, as in 'git push' or ['git', 'push']"
        where.refuse((*at, "command"), message)
    for word in words:
        if _WORD.fullmatch(word) is None:
            where.refuse(
                (*at, "command"), f"command takes plain words, and {word!r} is none: no quotes, variables or patterns"
            )
    if "/" in words[0] or words[0].startswith("-") or "=" in words[0]:
        where.refuse((*at, "command"), f"command begins with a program's name, not with {words[0]!r}")
    return tuple(words)


def _refuse_unreachable(
    words: tuple[str, ...], rule: dict[str, Any], before: list[dict[str, Any]], at: tuple[str, int], where: Located
) -> None:
    for earlier in before:
        whole = earlier.get("exact") is True
        if words[: len(earlier["words"])] != earlier["words"] or (
            whole and not (rule.get("exact") and words == earlier["words"])
        ):
            continue
        named = f"the one for {' '.join(earlier['words'])!r} in line {earlier['line']}"
        if words == earlier["words"] and earlier["decision"] != rule["decision"]:
            where.refuse(at, f"this rule contradicts {named}, which says {earlier['decision']} to the same words")
        where.refuse(at, f"this rule is never reached: {named} decides first; put the longer one before it")


def _refuse_contradictions(settings: list[Setting], rules: list[dict[str, Any]], where: Located) -> None:
    values = {key: value for key, value, _, _ in settings}
    timeout, silence = values.get("timeout_seconds"), values.get("output.silence_seconds")
    if isinstance(timeout, (int, float)) and isinstance(silence, (int, float)) and 0 < timeout <= silence:
        where.refuse(
            ("output", "silence_seconds"), f"{silence} seconds of silence never pass: timeout_seconds is {timeout}"
        )
    if values.get("containment.backend") == "none" and values.get("profile") == "workspace":
        where.refuse(
            ("containment", "backend"),
            "workspace runs nothing that is not contained, and backend is 'none'; set profile = 'strict', or another backend",
        )
    refused: Any = values.get("denylist", ())
    for rule in rules:
        if rule["decision"] == "allow" and rule["words"][0] in refused:
            name = rule["words"][0]
            where.refuse(
                ("rule", rule["number"]), f"this rule allows {name}, and denylist refuses it; remove one of them"
            )

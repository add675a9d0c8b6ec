"""One policy file: its bytes to checked settings and rules. What is wrong is a PolicyError with file, line and column."""

from __future__ import annotations

import tomllib

from corral.config import Audit, Containment, Limits, Output, SandboxConfig
from corral.errors import PolicyError
from corral.pattern import pattern
from corral.rulebook import effects, group_names, profile_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Setting = tuple[str, object, int]  # dotted key, value, line

MAX_FILE_BYTES = 256 * 1024
DECISIONS = ("allow", "ask", "deny")
RULE_KEYS = ("command", "decision", "reason", "instead", "allow", "ask", "deny")
_TABLES: dict[str, Any] = {"containment": Containment, "limits": Limits, "output": Output, "audit": Audit}
_SIMPLE = ("profile", "timeout_seconds", "max_output_bytes", "denylist", "interpreters", "environment")
_HEADER = pattern(r"\s*\[(\[)?\s*([^\]]+?)\s*\]")
_KEY = pattern(r"""\s*("[^"]*"|'[^']*'|[\w.-]+)\s*=""")
_SYNTAX_PLACE = pattern(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$")


class Located:
    """A file's text, and where its keys stand."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._lines = text.splitlines()
        self._keys: dict[str, tuple[int, int]] = {}
        table, counts = "", {}  # type: ignore[var-annotated]
        for number, line in enumerate(self._lines, 1):
            header, key = _HEADER.match(line), _KEY.match(line)
            if header is not None and "=" not in line.partition("#")[0].partition("]")[0]:
                table = _bare(header.group(2))
                if header.group(1):
                    counts[table] = counts.get(table, -1) + 1
                    table = f"{table}.{counts[table]}"
                self._keys.setdefault(table, (number, len(line) - len(line.lstrip()) + 1))
            elif key is not None:
                dotted = _bare(key.group(1))
                self._keys.setdefault(f"{table}.{dotted}" if table else dotted, (number, key.start(1) + 1))

    def of(self, key: str) -> tuple[int, int]:
        """Return line and column of a dotted key, or of the nearest thing above it."""
        while key and key not in self._keys:
            key = key.rpartition(".")[0]
        return self._keys.get(key, (1, 1))

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raise with the place of a key."""
        line, column = self.of(key)
        raise PolicyError(f"{self.path}:{line}:{column}: {message}")


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def parse(data: bytes, path: str) -> dict[str, Any]:
    """Return `settings` (dotted key, value, line) and `rules` of a file, all of the right kind; plain data."""
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError(f"{path}: longer than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode()
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}:1:1: not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{path}:{_syntax(str(error), data)}") from None
    except RecursionError:
        raise PolicyError(f"{path}:1:1: nested too deeply") from None
    where = Located(path, text)
    settings: list[Setting] = []
    rules: list[dict[str, Any]] = []
    for key, value in tree.items():
        if key == "rule":
            rules = _rules(value, where)
        elif key in _SIMPLE:
            _check_simple(key, value, where)
            settings.append((key, value, where.of(key)[0]))
        elif key in ("effects", "groups", *_TABLES):
            settings += _table(key, value, where)
        else:
            known = ", ".join((*_SIMPLE, "effects", "groups", *_TABLES, "rule"))
            where.refuse(key, f"unknown key {key!r}; known: {known}")
    return {"settings": settings, "rules": rules}


def _syntax(message: str, data: bytes) -> str:
    match = _SYNTAX_PLACE.match(message)
    if match is None:
        return f"1:1: {message}"
    if match.group(2) is None:
        return f"{data.count(10) + 1}:1: {match.group(1)}"
    return f"{match.group(2)}:{match.group(3)}: {match.group(1)}"


def _check_simple(key: str, value: object, where: Located) -> None:
    if key in ("denylist", "interpreters", "environment"):
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            where.refuse(key, f"{key} must be a list of names")
        return
    if key == "profile" and value not in profile_names():
        where.refuse(key, f"profile must be one of {', '.join(profile_names())}, not {value!r}")
    if key == "timeout_seconds" and value == 0:
        return  # no limit, as on the command line
    try:
        SandboxConfig("/usr", **{key: value})  # type: ignore[arg-type]  # the record says what is wrong
    except PolicyError as error:
        where.refuse(key, str(error))


def _table(name: str, table: object, where: Located) -> list[Setting]:
    if not isinstance(table, dict):
        where.refuse(name, f"{name} must be a table")
    settings: list[Setting] = []
    for key, value in table.items():
        dotted = f"{name}.{key}"
        if name in _TABLES:
            _check_field(name, key, value, where)
        else:
            known = effects() if name == "effects" else group_names()
            if key not in known:
                where.refuse(dotted, f"{name} has no {key!r}; known: {', '.join(sorted(known))}")
            if value not in DECISIONS:
                where.refuse(dotted, f"{dotted} must be one of {', '.join(DECISIONS)}, not {value!r}")
        settings.append((dotted, value, where.of(dotted)[0]))
    return settings


def _check_field(name: str, key: str, value: object, where: Located) -> None:
    record = _TABLES[name]
    if key not in record._fields:
        where.refuse(f"{name}.{key}", f"{name} has no {key!r}; known: {', '.join(record._fields)}")
    try:
        record(**{key: value})
    except PolicyError as error:
        where.refuse(f"{name}.{key}", str(error))


def _rules(value: object, where: Located) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        where.refuse("rule", "rules are written as [[rule]]")
    rules: list[dict[str, Any]] = []
    for number, rule in enumerate(value):
        at = f"rule.{number}"
        for key in rule:
            if key not in RULE_KEYS:
                where.refuse(f"{at}.{key}", f"a rule has no {key!r}; known: {', '.join(RULE_KEYS)}")
        words = _words(rule.get("command"), at, where)
        if rule.get("decision") not in DECISIONS:
            where.refuse(f"{at}.decision", f"decision must be one of {', '.join(DECISIONS)}")
        for key in ("reason", "instead"):
            if not isinstance(rule.get(key, ""), str):
                where.refuse(f"{at}.{key}", f"{key} must be a text")
        for key in DECISIONS:
            texts = rule.get(key, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
                where.refuse(f"{at}.{key}", f"{key} must be a list of commands, as examples")
        if not any(rule.get(key) for key in DECISIONS):
            where.refuse(at, "a rule needs an example of what it decides, as in: deny = ['git push origin main']")
        _refuse_unreachable(words, rules, at, where)
        line, column = where.of(at)
        rules.append({**rule, "words": words, "line": line, "column": column})
    return rules


def _words(command: object, at: str, where: Located) -> tuple[str, ...]:
    words = command.split() if isinstance(command, str) else command
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        where.refuse(
            f"{at}.command", "command must be the first words of a command, as in 'git push' or ['git', 'push']"
        )
    return tuple(words)


def _refuse_unreachable(words: tuple[str, ...], before: list[dict[str, Any]], at: str, where: Located) -> None:
    for earlier in before:
        if words[: len(earlier["words"])] == earlier["words"]:
            where.refuse(
                at,
                f"this rule is never reached: the one for {' '.join(earlier['words'])!r} in line {earlier['line']} "
                "decides first; put the longer one before it",
            )

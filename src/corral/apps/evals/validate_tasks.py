"""Checks the data of a task. Pure: returns each mistake with its position."""

from __future__ import annotations

import base64
import re

from corral.apps.evals.outcome import OF_TRANSACTION
from corral.apps.evals.task import RECORDS, SETTINGS, config_of
from corral.apps.evals.transactions import DISCARD, KINDS, RENAMED, WAYS
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.containment.layers import LAYERS
from corral.model.errors import PolicyError
from corral.policy import settings
from corral.policy.merge import loosens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from corral.policy.config import SandboxConfig

    Path = tuple[str | int, ...]
    Problem = tuple[Path, str]  # the path of keys from the top of the task, and the message

CALL = ("argv", "shell", "cwd", "env", "stdin", "expect")
AFTER = ("files", "outside")
DEFAULTS = ("tags", "needs", *SETTINGS, *RECORDS, *AFTER, "transaction", "meanwhile")
TASK = ("id", "about", *DEFAULTS, "calls", *CALL)
TEXTS = ("stdout", "stderr", "reason")
MATCHES = ("equal", "contains", "lacks", "regex")
FILE = ("text", "base64", "link", "directory", "mode")
NEEDS = (*LAYERS, "root", "not-root")
STATES = ("exists", "absent")
# The keys of settings as a task spells them, to their keys in a policy file. A file cannot set what belongs to a single call.
POLICY_KEYS = {settings.CONFIG_FIELDS.get(key, key): key for key in settings.SETTINGS}
POLICY_KEYS = {name: key for name, key in POLICY_KEYS.items() if name.partition(".")[0] in (*SETTINGS, *RECORDS)}
AS_IN = ", as in: "  # precedes the TOML example at the end of a message


def problems(data: Mapping[str, Any]) -> list[Problem]:
    """Return the mistakes in a task, an empty list if it can run."""
    found = [*_unknown((), data, TASK, "a task"), *_identity(data), *_lists(data)]
    found += _tables((), data, (*RECORDS, *AFTER, "meanwhile", "expect", "env"))
    if found:
        return found
    found += [*_settings(data), *_transaction(data)]
    for name in (*AFTER, "meanwhile"):
        files = data.get(name, {})
        for path, given in files.items():
            found += _file((name, path), path, given, files)
    return [*found, *(_many(data) if "calls" in data else _one(data))]


def default_problems(data: object) -> list[Problem]:
    """Return the mistakes in the defaults of a task file."""
    if not isinstance(data, dict):
        return [((), "defaults must be a table")]
    found = [*_unknown((), data, DEFAULTS, "defaults"), *_lists(data)]
    return found or _tables((), data, (*RECORDS, *AFTER, "meanwhile"))


def _unknown(at: Path, data: Mapping[str, Any], known: Iterable[str], whose: str) -> Iterator[Problem]:
    for key in data:
        if key not in known:
            from difflib import get_close_matches  # noqa: PLC0415  only for a mistake

            near = get_close_matches(key, list(known), 1)
            meant = f", did you mean {near[0]!r}?" if near else ""
            yield (*at, key), f"{whose} has no {key!r}{meant}; known: {', '.join(known)}"


def _identity(data: Mapping[str, Any]) -> Iterator[Problem]:
    name = data.get("id")
    if name is None:
        yield (), f'a task needs an id{AS_IN}id = "reads-a-file"'
    elif not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.:/+-]{0,199}", name):
        yield ("id",), f"id must be up to 200 letters, digits and . : / + - _ without spaces, not {name!r}"
    if not isinstance(data.get("about", ""), str):
        yield ("about",), "about must be a string"


def _lists(data: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("tags", "needs"):
        given = data.get(name, [])
        if not isinstance(given, list) or not all(isinstance(word, str) and word for word in given):
            yield (name,), f'{name} must be a list of words{AS_IN}{name} = ["one"]'
        elif name == "needs":
            for number, need in enumerate(given):
                if need not in NEEDS:
                    yield (name, number), f"unknown layer {need!r}; known: {', '.join(NEEDS)}"


def _tables(at: Path, data: Mapping[str, Any], names: Iterable[str]) -> list[Problem]:
    return [((*at, name), f"{name} must be a table") for name in names if not isinstance(data.get(name, {}), dict)]


def _settings(data: Mapping[str, Any]) -> Iterator[Problem]:
    unknown = [problem for name in RECORDS for problem in _unknown((name,), data.get(name, {}), _fields(name), name)]
    yield from unknown
    if unknown:
        return
    try:
        config_of(data, process_temp_dir())
    except PolicyError as error:
        # The message begins with the field: limits.memory_bytes must be ...
        field = str(error).partition(" ")[0].rstrip(":").split(".")
        yield tuple(field) if field[0] in data else (), str(error)


def _fields(table: str) -> list[str]:
    return [name.partition(".")[2] for name in POLICY_KEYS if name.partition(".")[0] == table]


def loosening(data: Mapping[str, Any], present: SandboxConfig) -> list[str]:
    """Return the settings of a task that an untrusted policy file could not have, given the present policy."""
    config = config_of(data, process_temp_dir())
    named = {*data, *(f"{table}.{field}" for table in RECORDS for field in data.get(table, {}))}
    return [name for name, key in POLICY_KEYS.items() if name in named and loosens(key, config, present)]


def _transaction(data: Mapping[str, Any]) -> Iterator[Problem]:
    way, expect = data.get("transaction"), data.get("expect", {})
    if way is not None and way not in WAYS:
        yield ("transaction",), f"transaction must be one of {', '.join(WAYS)}, not {way!r}"
        return
    if way is None and "meanwhile" in data:
        yield ("meanwhile",), 'meanwhile edits the project during a transaction: add transaction = "apply"'
    for name in OF_TRANSACTION:
        if name in expect and way is None:
            yield ("expect", name), f'only a transaction has {name}: add transaction = "apply", or "discard"'
        elif name in expect and name != "changes" and way == DISCARD:
            yield ("expect", name), f'only an applied transaction has {name}: use transaction = "apply"'


def _file(at: Path, name: str, given: object, files: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _name(at, name)
    parts = name.split("/")
    for above in ("/".join(parts[:count]) for count in range(1, len(parts))):
        outer = files.get(above)
        if isinstance(outer, str) or (isinstance(outer, dict) and {"text", "base64"} & outer.keys()):
            yield at, f"{above!r} is a file here, so it cannot contain {name!r}"
    if isinstance(given, str):
        return
    if not isinstance(given, dict):
        yield at, "a file must be its text, or a table with text, base64, link or directory, and mode"
        return
    yield from _unknown(at, given, FILE, "a file")
    if sum(kind in given for kind in ("text", "base64", "link", "directory")) != 1:
        yield at, "give one of text, base64, link and directory"
    for kind in ("text", "base64", "link", "mode"):
        if not isinstance(given.get(kind, ""), str):
            yield (*at, kind), f"{kind} must be a string"
    if given.get("directory", True) is not True:
        yield (*at, "directory"), "directory must be true"
    mode = given.get("mode", "644")
    if isinstance(mode, str) and not re.fullmatch(r"[0-7]{3,4}", mode):
        yield (*at, "mode"), f'mode must be an octal number such as "755", not {mode!r}'
    try:
        base64.b64decode(given.get("base64", "") if isinstance(given.get("base64", ""), str) else "", validate=True)
    except ValueError:
        yield (*at, "base64"), "this is not base64"


def _name(at: Path, name: str) -> Iterator[Problem]:
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        yield at, f"a file name must be relative, without empty parts, . and .., not {name!r}"


def _one(data: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _call((), data)
    yield from _expect(("expect",), data.get("expect", {}), (*_CHECKS, *AFTER, *OF_TRANSACTION))
    if not data.get("expect"):
        yield (), f"a task needs an expectation: add an expect table{AS_IN}expect = {{ exit_code = 0 }}"


def _many(data: Mapping[str, Any]) -> Iterator[Problem]:
    calls = data["calls"]
    for key in CALL[:-1]:
        if key in data:
            yield (key,), f"a task with calls gives {key} for each of them"
    if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
        yield ("calls",), "calls must be a list of tables, each with argv or shell"
        return
    for number, call in enumerate(calls):
        at: Path = ("calls", number)
        yield from _unknown(at, call, CALL, "a call")
        yield from _tables(at, call, ("env", "expect"))
        yield from _call(at, call)
        if isinstance(call.get("expect", {}), dict):
            yield from _expect((*at, "expect"), call.get("expect", {}), tuple(_CHECKS))
    yield from _expect(("expect",), data.get("expect", {}), (*AFTER, *OF_TRANSACTION))
    if not data.get("expect") and not any(call.get("expect") for call in calls):
        yield ("calls",), "a task needs an expectation: add an expect table to a call"


def _call(at: Path, call: Mapping[str, Any]) -> Iterator[Problem]:
    if ("argv" in call) == ("shell" in call):
        yield at, "give argv or shell, not both" if "argv" in call else "argv or shell is missing"
    argv = call.get("argv", [])
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        yield (*at, "argv"), f'argv must be a list of strings{AS_IN}argv = ["ls", "-l"]'
    for key in ("shell", "cwd", "stdin"):
        if not isinstance(call.get(key, ""), str):
            yield (*at, key), f"{key} must be a string"
    env = call.get("env", {})
    if isinstance(env, dict) and not all(isinstance(value, str) for value in env.values()):
        yield (*at, "env"), "env must be a table of strings"


def _expect(at: Path, expect: Mapping[str, Any], known: Iterable[str]) -> Iterator[Problem]:
    yield from _unknown(at, expect, known, "expect")
    for key, value in expect.items():
        inner = (*at, key)
        if key in TEXTS:
            yield from _match(inner, value)
        elif key in AFTER:
            yield from _states(inner, value)
        elif key == "changes":
            yield from _changes(inner, value)
        else:
            check = _CHECKS.get(key, _list if key in OF_TRANSACTION else None)
            if check is not None and (said := check(value)):
                yield inner, f"{key} {said}"


def _match(at: Path, value: object) -> Iterator[Problem]:
    if isinstance(value, str):
        return
    if not isinstance(value, dict) or not value:
        yield at, f"{at[-1]} must be a string that it equals, or a table with {', '.join(MATCHES)}"
        return
    yield from _unknown(at, value, MATCHES, str(at[-1]))
    for kind, wanted in value.items():
        given = wanted if isinstance(wanted, list) and kind != "equal" else [wanted]
        if not all(isinstance(text, str) for text in given):
            yield (*at, kind), f"{kind} must be a string" + (", or a list of them" if kind != "equal" else "")
        elif kind == "regex":
            for text in given:
                try:
                    re.compile(text)
                except re.error as error:
                    yield (*at, kind), f"{text!r} is not a regular expression: {error}"


def _states(at: Path, value: object) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield at, f'{at[-1]} must be a table{AS_IN}{at[-1]} = {{ "a.txt" = "exists" }}'
        return
    for name, state in value.items():
        yield from _name((*at, name), name)
        if not isinstance(state, str):
            yield from _match((*at, name), state)
        elif state not in STATES:
            yield (*at, name), f"give {', '.join(STATES)} or a table with {', '.join(MATCHES)}, not {state!r}"


def _changes(at: Path, value: object) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield at, f'changes must be a table{AS_IN}changes = {{ "a.txt" = "added" }}'
        return
    for name, kind in value.items():
        yield from _name((*at, name), name)
        is_rename = isinstance(kind, str) and kind.startswith(RENAMED) and kind != RENAMED
        if kind not in KINDS and not is_rename:
            yield (*at, name), f"a change is one of {', '.join(KINDS)}, or renamed from a path, not {kind!r}"


def _is(kind: type, what: str) -> Callable[[object], str]:
    return lambda value: "" if type(value) is kind else f"must be {what}, not {value!r}"


def _of(*words: str) -> Callable[[object], str]:
    return lambda value: "" if value in words else f"must be one of {', '.join(words)}, not {value!r}"


def _list(value: object) -> str:
    fits = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return "" if fits else f"must be a list of words, not {value!r}"


# The expectations of a call. `_match` checks the texts.
_CHECKS: dict[str, Callable[[object], str] | None] = {
    "exit_code": _is(int, "a whole number"),
    "decision": _of("allow", "ask", "deny"),
    "rule": _is(str, "a rule id"),
    "rules": _list,
    "denied": _is(bool, "true or false"),
    "timed_out": _is(bool, "true or false"),
    "truncated": _is(bool, "true or false"),
    "violations": _list,
    "enforcement": _of("full", "partial", "none"),
    **dict.fromkeys(TEXTS),
}

"""What a task may say, as tables, and what is wrong with one that says something else. Pure: problems are returned, with their places."""

from __future__ import annotations

import base64
import re

from corral.apps.evals.outcome import OF_TRANSACTION
from corral.apps.evals.task import RECORDS, SETTINGS, config_of
from corral.apps.evals.transactions import DISCARD, KINDS, RENAMED, WAYS
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.containment.layers import LAYERS
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    Path = tuple[str | int, ...]
    Problem = tuple[Path, str]  # where, from the task's own top, and what

CALL = ("argv", "shell", "cwd", "env", "stdin", "expect")
TASK = (
    "id",
    "about",
    "tags",
    "needs",
    *SETTINGS,
    *RECORDS,
    "files",
    "outside",
    "transaction",
    "meanwhile",
    "calls",
    *CALL,
)
DEFAULTS = tuple(key for key in TASK if key not in ("id", "about", "calls", *CALL))
AFTER = ("files", "outside")
EXPECT = (
    *("exit_code", "decision", "rule", "rules", "denied", "timed_out", "truncated", "violations", "enforcement"),
    *("stdout", "stderr", "reason"),
)
MATCHES = ("equal", "contains", "lacks", "regex")
FILE = ("text", "base64", "link", "directory", "mode")
NEEDS = (*LAYERS, "root", "not-root")
STATES = ("exists", "absent")
AS_IN = ", as in: "  # before a line of TOML, with which a message ends


def problems(data: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with a task; nothing where it can run."""
    found = [*_unknown((), data, TASK, "a task"), *_identity(data), *_words((), data, ("tags", "needs"))]
    found += [(("needs", n), f"{need!r} is no layer; known: {', '.join(NEEDS)}") for n, need in _wrong_needs(data)]
    found += _tables((), data, (*RECORDS, *AFTER, "meanwhile", "expect", "env"))
    if found:
        return found
    found += [*_settings(data), *_transaction(data)]
    for name in (*AFTER, "meanwhile"):
        files = data.get(name, {})
        for path, given in files.items():
            found += [*_file((name, path), path, given), *_above((name, path), path, files)]
    return [*found, *(_many(data) if "calls" in data else _one(data))]


def default_problems(data: object) -> list[Problem]:
    """Return what is wrong with what a file gives for all its tasks."""
    if not isinstance(data, dict):
        return [((), "defaults must be a table")]
    found = [*_unknown((), data, DEFAULTS, "defaults"), *_words((), data, ("tags", "needs"))]
    return found or _tables((), data, (*RECORDS, *AFTER, "meanwhile"))


def _unknown(at: Path, data: Mapping[str, Any], known: Iterable[str], whose: str) -> list[Problem]:
    return [
        ((*at, key), f"{whose} has no {key!r}{_meant(key, known)}; known: {', '.join(known)}")
        for key in data
        if key not in known
    ]


def _meant(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  only for a slip of the pen

    near = get_close_matches(word, list(known), 1)
    return f", did you mean {near[0]!r}?" if near else ""


def _identity(data: Mapping[str, Any]) -> Iterator[Problem]:
    name = data.get("id")
    if name is None:
        yield (), f'a task needs an id{AS_IN}id = "reads-a-file"'
    elif not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.:/+-]{0,199}", name):
        yield ("id",), f"id must be up to 200 letters, digits and . : / + - _ without spaces, not {name!r}"
    if not isinstance(data.get("about", ""), str):
        yield ("about",), "about must be a string"


def _words(at: Path, data: Mapping[str, Any], names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        given = data.get(name, [])
        if not isinstance(given, list) or not all(isinstance(word, str) and word for word in given):
            yield (*at, name), f'{name} must be a list of words{AS_IN}{name} = ["one"]'


def _wrong_needs(data: Mapping[str, Any]) -> list[tuple[int, str]]:
    given = data.get("needs", [])
    return [(n, need) for n, need in enumerate(given) if need not in NEEDS] if isinstance(given, list) else []


def _tables(at: Path, data: Mapping[str, Any], names: Iterable[str]) -> list[Problem]:
    return [((*at, name), f"{name} must be a table") for name in names if not isinstance(data.get(name, {}), dict)]


def _settings(data: Mapping[str, Any]) -> Iterator[Problem]:
    for name, record in RECORDS.items():
        yield from _unknown((name,), data.get(name, {}), record._fields, name)
    if any(set(data.get(name, {})) - {*record._fields} for name, record in RECORDS.items()):
        return
    try:
        config_of(data, process_temp_dir())
    except PolicyError as error:
        # The message begins with the field: limits.memory_bytes must be ...
        field = str(error).partition(" ")[0].split(".")
        yield tuple(field) if field[0] in data else (), str(error)


def _transaction(data: Mapping[str, Any]) -> Iterator[Problem]:
    way, expect = data.get("transaction"), data.get("expect", {})
    if way is not None and way not in WAYS:
        yield ("transaction",), f"transaction must be one of {', '.join(WAYS)}, not {way!r}"
        return
    if way is None and "meanwhile" in data:
        yield ("meanwhile",), 'meanwhile is what changes beside a transaction: add transaction = "apply"'
    for name in OF_TRANSACTION:
        if name in expect and way is None:
            yield ("expect", name), f'{name} are a transaction\'s: add transaction = "apply", or "discard"'
        elif name in expect and name != "changes" and way == DISCARD:
            yield ("expect", name), f'{name} come of applying: use transaction = "apply"'


def _file(at: Path, name: str, given: object) -> Iterator[Problem]:
    yield from _name(at, name)
    if isinstance(given, str):
        return
    if not isinstance(given, dict):
        yield at, "a file is its text, or a table with text, base64, link or directory, and mode"
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


def _above(at: Path, name: str, files: Mapping[str, Any]) -> Iterator[Problem]:
    parts = name.split("/")
    for above in ("/".join(parts[:count]) for count in range(1, len(parts))):
        given = files.get(above)
        if isinstance(given, str) or (isinstance(given, dict) and {"text", "base64"} & given.keys()):
            yield at, f"{above!r} is a file here, so {name!r} cannot lie in it"


def _name(at: Path, name: str) -> Iterator[Problem]:
    parts = name.split("/")
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        yield at, f"the name of a file is relative, without empty parts, . and .., not {name!r}"


def _one(data: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _call((), data)
    yield from _expect(("expect",), data.get("expect", {}), (*EXPECT, *AFTER, *OF_TRANSACTION))
    if not data.get("expect"):
        yield (), f"a task expects something: add an expect table{AS_IN}expect = {{ exit_code = 0 }}"


def _many(data: Mapping[str, Any]) -> Iterator[Problem]:
    calls = data["calls"]
    for key in CALL[:-1]:
        if key in data:
            yield (key,), f"with calls, {key} belongs to each of them"
    if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
        yield ("calls",), "calls must be a list of tables, each with argv or shell"
        return
    for number, call in enumerate(calls):
        at: Path = ("calls", number)
        yield from _unknown(at, call, CALL, "a call")
        yield from _tables(at, call, ("env", "expect"))
        yield from _call(at, call)
        if isinstance(call.get("expect", {}), dict):
            yield from _expect((*at, "expect"), call.get("expect", {}), EXPECT)
    yield from _expect(("expect",), data.get("expect", {}), (*AFTER, *OF_TRANSACTION))
    if not data.get("expect") and not any(call.get("expect") for call in calls):
        yield ("calls",), "a task expects something: add an expect table to a call"


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
        check = _CHECKS.get(key)
        if check is not None and (said := check(value)):
            yield (*at, key), f"{key} {said}"
        if key in ("stdout", "stderr", "reason"):
            yield from _match((*at, key), value)
        if key in AFTER:
            yield from _states((*at, key), value)
        if key == "changes":
            yield from _changes((*at, key), value)


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
                    yield (*at, kind), f"{text!r} is no regular expression: {error}"


def _states(at: Path, value: object) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield at, f'{at[-1]} must be a table{AS_IN}{at[-1]} = {{ "a.txt" = "exists" }}'
        return
    for name, state in value.items():
        yield from _name((*at, name), name)
        if isinstance(state, str):
            if state not in STATES:
                yield (
                    (*at, name),
                    f"a file {' or '.join(STATES)}, or is a table with {', '.join(MATCHES)}; not {state!r}",
                )
        else:
            yield from _match((*at, name), state)


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


_CHECKS: dict[str, Callable[[object], str]] = {
    "exit_code": _is(int, "a whole number"),
    "decision": _of("allow", "ask", "deny"),
    "rule": _is(str, "a rule's id"),
    "rules": _list,
    "denied": _is(bool, "true or false"),
    "timed_out": _is(bool, "true or false"),
    "truncated": _is(bool, "true or false"),
    "violations": _list,
    "enforcement": _of("full", "partial", "none"),
    "conflicts": _list,
    "refused": _list,
}

"""Loads tasks from TOML and JSON lines files. Reports all mistakes in one error, each with file, line and column.

An agent may have written a task file. So a task may set what an untrusted corral.toml may set, and nothing looser.
"""

from __future__ import annotations

import json
import os
import re
import tomllib

from corral._lib.quoting import shell_join
from corral._lib.terminal import clip, printable
from corral.apps.evals.journal import NAME, place
from corral.apps.evals.outcome import parse_object
from corral.apps.evals.results import RESULTS
from corral.apps.evals.task import Task
from corral.apps.evals.validate_tasks import AS_IN, default_problems, loosening, problems
from corral.containment.filesystem.process_temp_dir import ProcessTempDir
from corral.model.errors import CorralError, PolicyError
from corral.policy import loader as policy_loader
from corral.policy.merge import Setting
from corral.policy.toml_positions import key_positions
from corral.policy.user_dirs import read_regular_file, refuse_inside_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

    from corral.apps.evals.validate_tasks import Path
    from corral.policy.config import SandboxConfig

    Where = Callable[[Path], tuple[int, int]]

MAX_FILE_BYTES = 64 * 1024 * 1024  # bounds the memory for a file that is not a task file
MAX_FIRST_LINE_BYTES = 1 << 24  # read to recognize the results of a run
MAX_VALUE_COLUMNS = 60  # of a setting in a message
MAX_PROBLEMS = 20  # shown at once; more would hide the first
FIXTURES = os.path.join(os.path.dirname(__file__), "tasks")
_SYNTAX_POSITION = re.compile(r"(?s)^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$")


class TaskError(CorralError, ValueError):
    """Task files have mistakes. The message has a line for each."""


class Loader:
    """Reads task files and collects their mistakes. `allowed` names the settings that a task may loosen."""

    def __init__(self, allowed: Collection[str] = (), root: str = "") -> None:
        self.tasks: list[Task] = []
        self.wrong: list[str] = []
        self.loosened: dict[str, None] = {}  # settings that were refused, in the order of the files
        self._allowed = frozenset(allowed)
        self._present = _user_policy(root)
        self._seen: dict[str, str] = {}

    def read(self, path: str) -> None:
        """Read one file."""
        try:
            # A command may have left a pipe among the task files, and a plain open would block on it.
            data, _ = read_regular_file(path, MAX_FILE_BYTES, follows=True)
        except OSError as error:
            self.wrong.append(f"{printable(path)}: {error.strerror}")
            return
        if len(data) > MAX_FILE_BYTES:
            self._fail(path, (1, 1), f"the file is longer than {MAX_FILE_BYTES >> 20} MiB")
            return
        try:
            # Editors on Windows write a byte order mark.
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self._fail(path, (line, error.start - data.rfind(b"\n", 0, error.start)), "this is not UTF-8")
            return
        if path.endswith((".jsonl", ".ndjson")):
            self._read_lines(path, text)
        elif path.endswith(".toml"):
            self._read_toml(path, text)
        else:
            self._fail(path, (1, 1), "the name of a task file must end in .toml or .jsonl")

    def _fail(self, path: str, position: tuple[int, int], message: str) -> None:
        message = message if path.endswith(".toml") else _with_json(message)
        self.wrong.append(f"{printable(path)}:{position[0]}:{position[1]}: {printable(message)}")

    def _read_toml(self, path: str, text: str) -> None:
        try:
            tree = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            match = _SYNTAX_POSITION.match(str(error))
            end = (text.count("\n") + 1, len(text) - text.rfind("\n"))
            position = end if match is None or match[2] is None else (int(match[2]), int(match[3]))
            self._fail(path, position, f"this is not TOML: {match[1] if match else error}")
            return
        found = key_positions(text)

        def where(at: Path) -> tuple[int, int]:
            while at and at not in found:
                at = at[:-1]
            return found.get(at, (1, 1))

        for key in tree:
            if key not in ("defaults", "task"):
                self._fail(path, where((key,)), f"unknown key {key!r}; a task file consists of [defaults] and [[task]]")
        tasks = tree.get("task", [])
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            self._fail(path, where(("task",)), "write each task as [[task]]")
            return
        if not tasks:
            self._fail(path, (1, 1), "this file has no [[task]]")
        defaults = self._defaults(path, tree.get("defaults", {}), lambda at: where(("defaults", *at)))
        for number, data in enumerate(tasks):
            self._add(path, data, defaults, lambda at, number=number: where(("task", number, *at)))  # type: ignore[misc]

    def _read_lines(self, path: str, text: str) -> None:
        defaults: dict[str, Any] = {}
        before = len(self.tasks) + len(self.wrong)
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line, object_pairs_hook=_object)
            except RecursionError:
                self._fail(path, (number, 1), "this is nested too deeply")
                continue
            except ValueError as error:
                position = (number, getattr(error, "colno", 1))
                self._fail(path, position, f"this is not JSON: {getattr(error, 'msg', error)}")
                continue
            where = _in_line(number, line)
            if not isinstance(data, dict):
                self._fail(path, (number, 1), "each line must be one task, a JSON object")
            elif data.keys() == {"defaults"}:
                defaults = self._defaults(path, data["defaults"], lambda at, where=where: where(("defaults", *at)))  # type: ignore[misc]
            else:
                self._add(path, data, defaults, where)
        if len(self.tasks) + len(self.wrong) == before:
            self._fail(path, (1, 1), "this file has no task")

    def _defaults(self, path: str, data: Any, where: Where) -> dict[str, Any]:
        wrong = default_problems(data)
        for at, message in wrong:
            self._fail(path, where(at), message)
        return {} if wrong else data

    def _add(self, path: str, own: dict[str, Any], defaults: dict[str, Any], where: Where) -> None:
        data = merged(defaults, own)
        wrong = problems(data)
        for at, message in wrong:
            self._fail(path, where(at), message)
        if wrong or not self._may_have(path, data, where):
            return
        source, name = f"{path.replace(FIXTURES, 'fixtures')}:{where(())[0]}", data["id"]
        if name in self._seen:
            self._fail(path, where(("id",)), f"{self._seen[name]} already has the id {name!r}; choose another")
            return
        self._seen[name] = source
        self.tasks.append(Task(name, data, source))

    def _may_have(self, path: str, data: dict[str, Any], where: Where) -> bool:
        """Return whether a task has only settings that it may have. Records the others."""
        if os.path.realpath(path).startswith(f"{os.path.realpath(FIXTURES)}/"):
            return True
        loose = [name for name in loosening(data, self._present) if name not in self._allowed]
        for name in loose:
            value = data
            for key in name.split("."):
                value = value[key]
            self.loosened[name] = None
            said = f"{name} = {clip(json.dumps(value), MAX_VALUE_COLUMNS, '…')} loosens your policy; a task file may only tighten it"
            self._fail(path, where(tuple(name.split("."))), said)
        grants = [
            Setting(f"containment.{kind}", data["containment"][kind], printable(path), line, column=column)
            for kind in ("read", "write")
            if kind in data.get("containment", {})
            for line, column in [where(("containment", kind))]
        ]
        try:
            policy_loader.refuse_grants(self._present, grants, os.environ)
        except PolicyError as error:
            self.wrong.append(printable(str(error)))
            return False
        return not loose


def _user_policy(root: str) -> SandboxConfig:
    """Return the user's own policy, without the file of any project."""
    path = policy_loader.user_policy_path(os.environ)
    if root and os.path.lexists(path):
        refuse_inside_project(path, root)
    with ProcessTempDir("corral-eval-policy-") as empty:
        return policy_loader.load(empty.path, os.environ).config


def merged(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return a task merged with the defaults of its file. Tables and tags are joined; other keys of the task replace the default."""
    data = {**defaults, **own}
    for key, value in defaults.items():
        if isinstance(value, dict) and isinstance(own.get(key), dict):
            data[key] = {**value, **own[key]}
        elif key == "tags" and isinstance(own.get(key), list):
            data[key] = list(dict.fromkeys([*value, *own[key]]))
    return data


def _with_json(message: str) -> str:
    """Return a message with its TOML example written as JSON."""
    said, found, example = message.rpartition(AS_IN)
    try:
        return f"{said}{found}{json.dumps(tomllib.loads(example))[1:-1]}" if found else message
    except tomllib.TOMLDecodeError:
        return message  # the separator was part of a quoted key or value


def _in_line(number: int, line: str) -> Where:
    def where(at: Path) -> tuple[int, int]:
        column = 0
        for key in at:
            found = line.find(json.dumps(key), column) if isinstance(key, str) else -1
            column = column if found < 0 else found
        return number, column + 1

    return where


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json.loads keeps only the last of two equal keys, so the expectation of the first would never be checked.
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return made


def load(paths: Iterable[str], *, allowed: Collection[str] = (), root: str = "") -> list[Task]:
    """Return the tasks of files and of all task files below directories. Reads a file once even if several paths lead to it.

    The user allows tasks to loosen the settings in `allowed`. Raises TaskError with all mistakes.
    """
    loader = Loader(allowed, root)
    paths = list(paths)
    files: dict[str, str] = {}
    for path in paths:
        for name in _files(path, loader):
            files.setdefault(os.path.realpath(name), name)
    for name in files.values():
        loader.read(name)
    if loader.wrong:
        more = len(loader.wrong) - MAX_PROBLEMS
        lines = [*loader.wrong[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
        if loader.loosened:
            names = sorted({*loader.loosened, *allowed})
            words = ["corral", "eval", *paths, *(word for name in names for word in ("--allow", name))]
            lines.append(f"If you have read these settings and want them, run: {printable(shell_join(words))}")
        raise TaskError("\n".join(lines))
    return loader.tasks


def _files(path: str, loader: Loader) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    # Leave out results of a run: `corral eval .` writes them below the tasks.
    found = sorted(
        os.path.join(above, name)
        for above, _, names in os.walk(path)
        if not os.path.exists(place(above, os.environ))
        for name in names
        if name.endswith((".toml", ".jsonl", ".ndjson")) and not _is_output(above, name)
    )
    if not found:
        loader.wrong.append(f"{printable(path)}: this directory has no .toml or .jsonl file")
    return found


def _is_output(above: str, name: str) -> bool:
    """Return True for the results or the journal of a run, for example in a copied directory. A task has other keys."""
    if name not in (NAME, RESULTS):
        return False
    try:
        data, _ = read_regular_file(os.path.join(above, name), MAX_FIRST_LINE_BYTES)
    except OSError:
        return False
    first = parse_object(data.partition(b"\n")[0]) or {}
    return {"status", "digest"} <= {*first} or "event" in first

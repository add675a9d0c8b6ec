"""Looks up the registries of a package manager that corral already knows: cheap enough for a hook, and without starting anything."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import resolve_links
from corral.broker.package_managers.addresses import Address, parse_address
from corral.broker.package_managers.facts import fact_key, read_fact
from corral.guard.path_zones import inside
from corral.guard.rules.loader import registries
from corral.guard.rules.registries import tool_of
from corral.model.grant import NETWORK, Grant
from corral.policy.config import LOADER_VARIABLES
from corral.runtime.environment import clean_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from corral.policy.config import SandboxConfig

MAX_SHEBANG_BYTES = 256
_PYTHONS = ("python", "pypy")
_KEPT_LOADERS = ("JAVA_HOME",)


def known_hosts(tool: str, program: str, environ: Mapping[str, str], *, config: SandboxConfig) -> tuple[Grant, ...]:
    """Return the configured hosts of a tool that was resolved before. Starts no process. Empty if there is no such fact."""
    lookup = Lookup.of(tool, program, environ, config)
    fact = None if lookup is None else read_fact(lookup.key, environ, config.project_root)
    return () if lookup is None or fact is None else lookup.certain_grants((*fact.found, *(fact.second or ())))


@frozen
class Program(Record):
    """A program that is safe to run outside: its path, and the words to start the tool with."""

    path: str
    words: tuple[str, ...]


@frozen
class Lookup(Record):
    """A tool, its row, the program that answers for it, and the user's environment without anything of the agent's."""

    tool: str
    row: Mapping[str, Any]
    program: Program
    environ: Mapping[str, str]
    config: SandboxConfig
    key: str
    is_certain: bool  # false if commands can write the user's configuration of the tool

    @classmethod
    def of(cls, tool: str, program: str, environ: Mapping[str, str], config: SandboxConfig) -> Lookup | None:
        """Return the lookup of a tool by its id, or by the name of one of its programs. None if there is no such tool."""
        tool = tool_of(tool)
        if not tool:
            return None
        row = registries()[tool]
        own = user_environment(environ, config, _place_variables(row))
        found = find_program(row, program, own, config)
        files = [path for path, _ in user_paths(row, own)]
        places = writable_places(config)
        is_certain = not any(is_writable(path, places) for path in files)
        # PATH decides which interpreter a script runs.
        variables = tool_variables(row, own) | {"PATH": own["PATH"]}
        key = fact_key(f"{tool} {is_certain}", found.path, files, variables)
        return cls(tool, row, found, own, config, key, is_certain)

    def certain_grants(self, pairs: Iterable[tuple[str, str]]) -> tuple[Grant, ...]:
        """Return a grant for each host of the given addresses and sources."""
        found: dict[str, str] = {}
        for address, source in parse_pairs(pairs):
            found.setdefault(address.destination, source)
        return tuple(Grant(NETWORK, target, source, self.is_certain) for target, source in found.items())


def parse_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[Address, str]]:
    """Return the addresses of a fact, with their sources."""
    found = ((parse_address(text), source) for text, source in pairs)
    return [(address, source) for address, source in found if address is not None]


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Say whether a variable matches one of the patterns, each with at most one `*`. Not by fnmatch, which loads `re`."""
    for pattern in patterns:
        head, star, tail = pattern.partition("*")
        if name == pattern or (
            star and name.startswith(head) and name.endswith(tail) and len(name) >= len(pattern) - 1
        ):
            return True
    return False


def writable_places(config: SandboxConfig) -> tuple[str, ...]:
    """Return the directories that commands can write, so that nothing in them may be run or believed outside."""
    containment = config.containment
    return (config.project_root, *map(os.path.realpath, (*containment.write, *containment.settings)))


def is_writable(path: str, places: tuple[str, ...]) -> bool:
    """Say whether a path, one of the links that it leads through, or its target is in a writable place."""
    links, real = resolve_links(path)
    return any(inside(each, place) for each in (os.path.normpath(path), *links, real) for place in places)


def user_environment(environ: Mapping[str, str], config: SandboxConfig, places: Iterable[str] = ()) -> dict[str, str]:
    """Return the user's variables without those that earlier commands exported, load code, or point into the project.

    Those named in `places` stay: the caller looks at where they lead.
    """
    writable = writable_places(config)
    kept = {
        name: value
        for name, value in environ.items()
        if name not in config.output.exported
        and (name in _KEPT_LOADERS or not name.startswith(LOADER_VARIABLES))
        and (name in places or not _leads_into(value, writable))
    }
    path = clean_path(environ.get("PATH", ""))
    return kept | {"PATH": ":".join(entry for entry in path.split(":") if not is_writable(entry, writable))}


def _leads_into(value: str, places: tuple[str, ...]) -> bool:
    """Say whether the value of a variable names a writable place, by its own path or through a link."""
    if any(place in value for place in places):
        return True
    return any(part.startswith("/") and is_writable(part, places) for part in value.split(":"))


def _place_variables(row: Mapping[str, Any]) -> set[str]:
    """Return the variables that say where the configuration files of a tool are."""
    paths = [path.partition("/")[0] for file in row["user"] for path in file["paths"]]
    return {"HOME", *(head[1:] for head in paths if head.startswith("$"))}


def tool_variables(row: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a tool reads its configuration from."""
    return {name: value for name, value in environ.items() if is_named(name, row["variables"])}


def find_program(row: Mapping[str, Any], program: str, environ: Mapping[str, str], config: SandboxConfig) -> Program:
    """Return the tool that a command would run, or the one on PATH if commands can write that one. Its path can be empty."""
    places = writable_places(config)
    name = program.rpartition("/")[2].rstrip("0123456789.")
    first = row["names"][0]
    if row["module"] and name in _PYTHONS and _is_runnable(program, places):
        return Program(program, (program, "-m", row["module"]))
    folders = [os.path.dirname(program)] if program.startswith("/") else []
    candidates = [program] if name == first else []
    candidates += [f"{folder}/{first}" for folder in (*folders, *environ.get("PATH", "").split(":")) if folder]
    candidates += [f"{folder}/{first}3" for folder in environ.get("PATH", "").split(":") if folder]
    found = next((path for path in candidates if path.startswith("/") and _is_runnable(path, places)), "")
    return Program(found, (found,))


def _is_runnable(path: str, places: tuple[str, ...]) -> bool:
    if not os.path.isfile(path) or not os.access(path, os.X_OK) or is_writable(path, places):
        return False
    try:
        with open(path, "rb") as file:
            first = file.read(MAX_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        # A program that can be executed and not read has no interpreter.
        return True
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    # A script outside can name an interpreter in the project's virtual environment.
    return not any(word.startswith("/") and is_writable(word, places) for word in words)


def user_paths(row: Mapping[str, Any], environ: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the places of the user's configuration files of a tool, whether they exist or not, and how to read each."""
    found: dict[str, dict[str, Any]] = {}
    for file in row["user"]:
        for path in file["paths"]:
            expanded = _expanded(path, environ)
            if expanded.startswith("/"):
                found.setdefault(expanded, file)
    return list(found.items())


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    """Return a path with `~` or a variable at its beginning replaced. Empty if the variable is not set."""
    head, _, rest = path.partition("/")
    if head == "~":
        head = environ.get("HOME", "")
    elif head.startswith("$"):
        head = environ.get(head[1:], "")
    else:
        return path
    return "" if not head.startswith("/") else os.path.normpath(f"{head}/{rest}" if rest else head)

"""Reads the addresses of registries from configuration and lock files. Files in a project are hostile: every parser is bounded."""

from __future__ import annotations

import os
import re
import tomllib
from configparser import Error as IniError
from configparser import RawConfigParser

from corral._lib.records import Record, frozen
from corral.broker.package_managers.addresses import Address, addresses_in
from corral.broker.package_managers.lookup import user_paths
from corral.guard.path_zones import inside
from corral.policy.user_dirs import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

MAX_SETTINGS_BYTES = 1 << 20
MAX_LOCK_BYTES = 1 << 24  # lock files of large projects have several megabytes; only `keys` reads so much
MAX_HOSTS = 8  # of one file: a question with more could not be read
_ADDRESS = r"((?:sparse\+|registry\+)?https?://[^\s\"'<>(),;|]{1,2048})"
_TAG_BLOCK = 100_000  # characters of one element of an XML file


@frozen
class FoundAddress(Record):
    """An address, the file or command that names it, and whether it replaces the tool's built-in registry."""

    address: Address
    source: str
    replaces: bool = False


def user_addresses(row: Mapping[str, Any], environ: Mapping[str, str]) -> list[FoundAddress]:
    """Return the addresses in the user's configuration files."""
    found: list[FoundAddress] = []
    for path, file in user_paths(row, environ):
        # The user may keep configuration in a repository of dotfiles, and link to it.
        found += _addresses(os.path.realpath(path), _shown(path, environ), file)
    return found


def project_addresses(row: Mapping[str, Any], root: str) -> list[FoundAddress]:
    """Return the addresses in the files of a project, as far as they are regular files inside it."""
    found: list[FoundAddress] = []
    for file in row["project"]:
        for name in file["paths"]:
            path = f"{root}/{name}"
            # A link of a command's making must not make corral read a file outside.
            if inside(os.path.realpath(path), root):
                found += _addresses(path, name, file)
    return found


def _shown(path: str, environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def _addresses(path: str, shown: str, file: Mapping[str, Any]) -> list[FoundAddress]:
    """Return the addresses in one file. A file that is damaged, too long or names too many hosts has none."""
    most = MAX_LOCK_BYTES if file["form"] == "keys" else MAX_SETTINGS_BYTES
    try:
        data, _ = read_regular_file(path, most)
    except OSError:
        return []
    if len(data) > most:
        return []
    text = data.decode("utf-8", "replace")
    read = _READERS[file["form"]]
    found: list[FoundAddress] = []
    try:
        for replaces, keys in ((True, file["keys"]), (False, file["more"])):
            if keys:
                values = read(text, keys)
                found += [FoundAddress(address, shown, replaces) for value in values for address in addresses_in(value)]
    except (ValueError, RecursionError, IniError):
        return []
    unique = list(dict.fromkeys(found))
    hosts = {each.address.destination for each in unique}
    return unique if len(hosts) <= MAX_HOSTS else []


def _ini_values(text: str, keys: Iterable[str]) -> Iterator[str]:
    parser = RawConfigParser(strict=False, allow_no_value=True)
    parser.read_string(text)
    for section in parser.sections():
        for key in keys:
            yield parser.get(section, key, fallback="") or ""


def _key_values(text: str, keys: Iterable[str]) -> list[str]:
    """Return the addresses that follow a key: `key=…`, `"key": "…"`, `key "…"`. This reads ini, YAML, JSON and lock files alike."""
    names = "|".join(re.escape(key).replace(r"\*", r"[^\s\"'=]{0,100}") for key in keys)
    pattern = rf"(?:^|[\s\"'{{,])(?:{names})[\s\"'=:(]{{1,12}}(?:uri\([\"'])?{_ADDRESS}"
    return list(dict.fromkeys(match[1] for match in re.finditer(pattern, text, re.MULTILINE)))


def _toml_values(text: str, keys: Iterable[str]) -> Iterator[str]:
    data = tomllib.loads(text)
    for key in keys:
        for value in _at(data, key.split(".")):
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def _at(data: object, parts: list[str]) -> Iterator[object]:
    """Return the values at a path of keys; `*` is every entry of a table or array."""
    if not parts:
        yield data
        return
    items: Iterable[object] = ()
    if parts[0] == "*":
        items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    elif isinstance(data, dict) and parts[0] in data:
        items = (data[parts[0]],)
    for item in items:
        yield from _at(item, parts[1:])


def _tag_values(text: str, keys: Iterable[str]) -> Iterator[str]:
    """Return the `<url>` of XML elements. Not by an XML parser: entities of a project's file could fill the memory."""
    text = "".join(part.partition("-->")[2] for part in f"-->{text}".split("<!--"))
    for key in keys:
        for after in text.split(f"<{key}>")[1:]:
            block = after[:_TAG_BLOCK].partition(f"</{key}>")[0]
            # Maven's own settings block addresses by a mirror that does not exist.
            if "<blocked>true</blocked>" not in block:
                yield block.partition("<url>")[2].partition("</url>")[0]


_READERS: dict[str, Callable[[str, Iterable[str]], Iterable[str]]] = {
    "ini": _ini_values,
    "keys": _key_values,
    "toml": _toml_values,
    "tags": _tag_values,
}

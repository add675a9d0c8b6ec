"""Checks that a host really calls an installed hook. A hook that is never called answers doctor's trial calls, but checks nothing.

An entry in a project's own settings file may come from the project's author. It is run only if it is exactly what corral writes.
"""

from __future__ import annotations

import json
import os
import re

from corral.guard.path_zones import inside
from corral.integrations.hooks import json_edit
from corral.integrations.hooks.hook_command import command
from corral.integrations.hooks.install import MAX_BYTES, plugin_text, read_settings
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.registry import hooks_in, settings_directory
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral.integrations.hooks.hosts import Host

    Installed = tuple[str, dict[str, Any], dict[str, Any]]  # the event, its entry, and the hook in the entry

_MATCH_ALL = (None, "", "*")
_COMMAND_KEYS = frozenset({"command", "args", "bash"})  # the user may run another corral; doctor tries it
_TIMEOUT_KEYS = frozenset({"timeout", "timeoutSec"})
_HARMLESS_KEYS = frozenset({"name", "description", "statusMessage", "comment", "sequential", "hooks", "matcher"})
MAX_SHOWN = 80


def why_unreached(
    host: Host, path: str, installed: Installed, root: str, environ: Mapping[str, str]
) -> tuple[str, bool]:
    """Return why a host would not call a hook, or not for every tool; and whether commands then run unchecked."""
    event, entry, hook = installed
    words = command(host.name, environ)
    is_of_project = inside(path, root) or inside(os.path.realpath(path), root)
    if host.entries is None:
        given = [hook["command"], *hook["args"]]
        if is_of_project and given != words:
            return "its command is not what corral writes, so it was not run", True
        is_intact = read_settings(path) == plugin_text(host, given)
        return ("", False) if is_intact else ("the plugin is not what corral writes", True)
    wanted = host.entries(words).get(event)
    if wanted is None:
        return f"its entry is for the event {_shown(event)}, which {host.title} does not send for commands", True
    ours = hooks_in(wanted)[0]
    if is_of_project and (hook != ours or entry.get("matcher") != wanted.get("matcher")):
        return "its entry is not what corral writes, so it was not run", True
    for key, value in _unexpected_keys({**entry, **hook}, ours):
        return f"its entry has {_shown(key)} = {_shown(json.dumps(value))}, which corral did not write", True
    missing = _missing_tools(entry.get("matcher"), wanted.get("matcher"))
    if missing:
        matcher = _shown(json.dumps(entry.get("matcher")))
        names = ", ".join(filter(None, missing)) or "calls"
        return f"its matcher {matcher} leaves out {names}", missing[0] == _tools(wanted.get("matcher"))[0]
    return "", False


def missing_events(host: Host, installed: list[Installed], environ: Mapping[str, str]) -> list[str]:
    """Return the events of a host for which no hook of ours is installed."""
    if host.entries is None:
        return []
    found = {event for event, _, _ in installed}
    return [event for event in host.entries(command(host.name, environ)) if event not in found]


def disabling_setting(host: Host, path: str, root: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the file that turns this hook off, and the setting in it, or None."""
    own = f"{settings_directory(host, environ)}/settings.json"
    managed = [environ.get(host.managed_variable, "")] if host.managed_variable else []
    places = [own, path, *(f"{root}/{name}" for name in host.switch_files), *managed, *_managed_files(host)]
    for place in dict.fromkeys(filter(None, places)) if host.switches else ():
        try:
            data, _ = user_dirs.read_regular_file(place, MAX_BYTES, follows=True)
            value = json_edit.parse(json_edit.decode(data, place), place, comments=True).value if data else {}
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, SettingsError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{place}:")
            return place, f"it cannot be read ({_shown(str(why))}), and may turn hooks off"
        if setting := _switch_in(host, value):
            return place, setting
    return None


def _managed_files(host: Host) -> Iterator[str]:
    for place in host.managed:
        if not place.endswith("/"):
            yield place
        elif os.access(place, os.R_OK):
            yield from (f"{place}{name}" for name in sorted(os.listdir(place)) if name.endswith(".json"))


def _switch_in(host: Host, settings: Any) -> str:
    for name, off in host.switches:
        value = settings
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, list) and "corral" in value:
            return f"{name} names corral's hook"
        # The host may read a value that is neither true nor false as either.
        if not isinstance(value, list) and value not in (None, not off):
            return f"{name} turns hooks off"
    return ""


def _unexpected_keys(given: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of an entry that could keep the host from calling the hook, or from obeying it."""
    for key, value in given.items():
        if key in _HARMLESS_KEYS or key in _COMMAND_KEYS or (key in wanted and value == wanted[key]):
            continue
        # The user may choose a longer timeout; after it, most hosts run the call.
        is_timeout = key in _TIMEOUT_KEYS and isinstance(value, (int, float)) and key in wanted
        if not is_timeout or value < wanted[key]:
            yield key, value


def _tools(matcher: Any) -> list[str]:
    return str(matcher or "").removeprefix("^(").removesuffix(")$").split("|")


def _missing_tools(given: Any, wanted: Any) -> list[str]:
    """Return the tools that the installed matcher leaves out."""
    if given in _MATCH_ALL or given == wanted:
        return []
    if wanted is None or not isinstance(given, str):
        return _tools(wanted)
    names = _tools(given)
    if all(name.replace("_", "a").isalnum() for name in names):
        return [tool for tool in _tools(wanted) if tool not in names]
    try:
        pattern = re.compile(given)
    except re.error:
        return _tools(wanted)
    return [tool for tool in _tools(wanted) if not pattern.search(tool)]


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"

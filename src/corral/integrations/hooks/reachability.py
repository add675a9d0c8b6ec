"""Whether a host comes to ask an installed hook at all: an entry that is never reached answers every trial, and judges nothing.

What stands in a project's own file is its author's word: it is compared with what corral would write, and not run unless it is that.
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
from corral.integrations.hooks.registry import Host, hooks_in, settings_directory
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    Installed = tuple[str, dict[str, Any], dict[str, Any]]  # the event, its entry, and the hook in that

_EVERYTHING = (None, "", "*")
_COMMAND = frozenset({"command", "args", "bash"})  # the owner may have another corral, which is tried
_TIMES = frozenset({"timeout", "timeoutSec"})
_HARMLESS = frozenset({"name", "description", "statusMessage", "comment", "sequential", "hooks", "matcher"})
MAX_SHOWN = 80


def is_of_project(path: str, root: str) -> bool:
    """Say whether a file is the project's word, by its name or by where it really lies."""
    return inside(path, root) or inside(os.path.realpath(path), root)


def why_unreached(
    host: Host, path: str, installed: Installed, root: str, environ: Mapping[str, str]
) -> tuple[str, bool]:
    """Return why a host would not ask a hook, or not about everything; and whether that leaves commands unjudged."""
    event, entry, hook = installed
    words = command(host.name, environ)
    if host.entries is None:
        return _why_plugin(path, words, hook, strictly=is_of_project(path, root))
    wanted = host.entries(words).get(event)
    if wanted is None:
        return f"it stands at {_shown(event)}, where {host.title} asks about no command", True
    ours = hooks_in(wanted)[0]
    if is_of_project(path, root) and (hook != ours or entry.get("matcher") != wanted.get("matcher")):
        return "its entry is not what corral writes, so it was not run", True
    for key, value in _odd({**entry, **hook}, ours):
        return f"its entry says {_shown(key)} = {_shown(json.dumps(value))}, which corral did not write", True
    left_out = _left_out(entry.get("matcher"), wanted.get("matcher"))
    if left_out:
        named = _shown(json.dumps(entry.get("matcher")))
        told = ", ".join(filter(None, left_out)) or "calls"
        return f"its matcher {named} leaves out {told}", left_out[0] == _tools(wanted.get("matcher"))[0]
    return "", False


def missing_events(host: Host, installed: list[Installed], environ: Mapping[str, str]) -> list[str]:
    """Return the events of a host at which corral wants to be asked, and is not."""
    if host.entries is None:
        return []
    found = {event for event, _, _ in installed}
    return [event for event in host.entries(command(host.name, environ)) if event not in found]


def disabling_setting(host: Host, path: str, root: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the file that keeps a host from running this hook, and what it says; None where there is none."""
    own = f"{settings_directory(host, environ)}/{'settings.json' if host.name != 'gemini' else host.file}"
    managed = [environ.get(host.managed_variable, "")] if host.managed_variable else []
    places = [own, path, *(f"{root}/{name}" for name in host.switch_files), *managed, *_managed(host)]
    for place in dict.fromkeys(filter(None, places)) if host.switch else ():
        try:
            data, _ = user_dirs.read_regular_file(place, MAX_BYTES, follows=True)
            value = json_edit.parse(json_edit.decode(data, place), place, comments=True).value if data else {}
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, SettingsError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{place}:")
            return place, f"it cannot be read ({_shown(str(why))}), and may turn hooks off"
        if said := _said_off(host, value):
            return place, said
    return None


def _managed(host: Host) -> Iterator[str]:
    for place in host.managed:
        if not place.endswith("/"):
            yield place
        elif os.access(place, os.R_OK):
            yield from (f"{place}{name}" for name in sorted(os.listdir(place)) if name.endswith(".json"))


def _said_off(host: Host, settings: Any) -> str:
    for switch in (host.switch, *host.other_switches):
        value = settings
        for name in switch:
            value = value.get(name) if isinstance(value, dict) else None
        named = ".".join(switch)
        if isinstance(value, list) and "corral" in value:
            return f"{named} names corral's hook"
        # What is neither yes nor no may be either to the host.
        if not isinstance(value, list) and value not in (None, not host.switch_value):
            return f"{named} turns hooks off"
    return ""


def _why_plugin(path: str, words: list[str], hook: dict[str, Any], *, strictly: bool) -> tuple[str, bool]:
    given = [hook["command"], *hook["args"]]
    if strictly and given != words:
        return "its command is not what corral writes, so it was not run", True
    text = read_settings(path)
    return ("", False) if text == plugin_text(given) else ("the plugin is not what corral writes", True)


def _odd(given: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Find what an entry says that could keep the host from asking, or from listening."""
    for key, value in given.items():
        if key in _HARMLESS or key in _COMMAND or (key in wanted and value == wanted[key]):
            continue
        # Longer is the owner's choice; when it is over, most hosts let the call run.
        is_time = key in _TIMES and isinstance(value, (int, float)) and key in wanted
        if not is_time or value < wanted[key]:
            yield key, value


def _tools(matcher: Any) -> list[str]:
    return str(matcher or "").removeprefix("^(").removesuffix(")$").split("|")


def _left_out(given: Any, wanted: Any) -> list[str]:
    """Return the tools that an owner's matcher leaves out, of those that corral asks for."""
    if given in _EVERYTHING or given == wanted:
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

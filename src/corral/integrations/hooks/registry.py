"""Collects the host records, and finds their settings files and the hooks in them. The hook itself does not import this."""

from __future__ import annotations

import os
import shlex
from importlib import import_module

from corral.integrations.hooks.hosts import FAIL_CLOSED_SHELL, Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PROGRAM = "/corral/integrations/hooks/program.py"
USER, PROJECT = "user", "project"
_FOLDER = os.path.join(os.path.dirname(__file__), "hosts")
HOSTS: dict[str, Host] = {
    file[:-3]: import_module(f"corral.integrations.hooks.hosts.{file[:-3]}").HOST
    for file in sorted(os.listdir(_FOLDER))
    if file.endswith(".py") and not file.startswith("_")
}


def settings_path(host: Host, level: str, root: str, environ: Mapping[str, str]) -> str:
    """Return the settings file that contains the hook."""
    if level == PROJECT:
        return f"{root}/{host.project_file}"
    return f"{settings_directory(host, environ)}/{host.file}"


def settings_directory(host: Host, environ: Mapping[str, str]) -> str:
    """Return the directory of the host's user settings."""
    moved = environ.get(host.variable, "") if host.variable else ""
    if moved.startswith("/"):
        return os.path.join(moved.rstrip("/") or "/", host.variable_folder).rstrip("/") or "/"
    base = environ.get("XDG_CONFIG_HOME", "") if host.folder.startswith(".config/") else ""
    if base.startswith("/"):
        return f"{base.rstrip('/')}/{host.folder.removeprefix('.config/')}"
    return f"{environ.get('HOME') or '/nonexistent'}/{host.folder}"


def is_host_present(host: Host, environ: Mapping[str, str]) -> bool:
    """Say whether the host seems to be installed: its settings directory exists and is not empty."""
    try:
        return bool(os.listdir(settings_directory(host, environ)))
    except OSError:
        return False


def command_words(hook: object) -> list[str]:
    """Return the words of a hook's command, without the shell around it; an empty list if it runs none."""
    if not isinstance(hook, dict):
        return []
    command, given = hook.get("bash", hook.get("command")), hook.get("args")
    if not isinstance(command, str):
        return []
    if isinstance(given, list):
        return [command, *map(str, given)]
    try:
        words = shlex.split(command)
    except ValueError:
        return command.split()
    size = len(FAIL_CLOSED_SHELL)
    return words[size:] if tuple(words[:size]) == FAIL_CLOSED_SHELL else words


def start_words(hook: dict[str, Any]) -> list[str]:
    """Return how the host starts a hook's command: directly, or through a shell."""
    if isinstance(hook.get("args"), list):
        return command_words(hook)
    return ["/bin/sh", "-c", hook.get("bash") or hook["command"]]


def runs_corral(hook: object) -> bool:
    """Say whether a hook runs corral, as this version or an older one wrote it."""
    words = command_words(hook)
    if any(word.endswith(PROGRAM) for word in words):
        return True
    return any(word.rpartition("/")[2] == "corral" and words[at + 1 :][:1] == ["hook"] for at, word in enumerate(words))


def hooks_in(entry: object) -> list[Any]:
    """Return the hooks of a settings entry: those of its group, or the entry itself."""
    group = entry.get("hooks") if isinstance(entry, dict) else None
    return group if isinstance(group, list) else [entry]

"""The hosts that corral can be hooked into: where each keeps its settings, and what the hook looks like there. Data only.

A host runs what it cannot ask about, so every entry says what the host knows of failing closed.
"""

from __future__ import annotations

import os
import shlex

from corral._lib.records import Record, frozen
from corral.integrations.hooks.hosts import claude, codex, cursor, gemini

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

PROGRAM = "/corral/integrations/hooks/program.py"
TIMEOUT_SECONDS = 10  # the hook itself gives up after 4, and refuses; below that a loaded machine would be let through
# Codex and Gemini CLI run the call where the hook's interpreter is gone or the hook is killed. This shell then answers in its place.
_SHELL = (
    "/bin/sh",
    "-c",
    '"$0" "$@" || { [ $? = 2 ] || echo "The corral hook failed, so this call is refused. Run: corral doctor" >&2; exit 2; }',
)
PLUGIN_LINE = "const COMMAND = "
USER, PROJECT = "user", "project"


@frozen
class Host(Record):
    """One host. `entries` makes what stands below `hooks` from the words of our command; a plugin has none."""

    name: str
    title: str
    variable: str  # of the environment, naming the host's directory
    folder: str  # relative to the home directory where the variable is not set
    file: str  # in that directory
    project_file: str
    entries: Callable[[list[str]], dict[str, dict[str, Any]]] | None
    skeleton: dict[str, Any]  # what the host wants in a file besides hooks
    switch: tuple[str, ...] = ()  # the setting that turns all hooks off, and its value that does
    switch_value: bool = True
    switch_files: tuple[str, ...] = ()  # where it may stand in a project, beside the file itself
    other_switches: tuple[tuple[str, ...], ...] = ()  # settings that keep only some hooks from running, ours among them
    managed: tuple[str, ...] = ()  # files of the machine's administrator, which overrule; a directory ends in /
    managed_variable: str = ""  # of the environment, naming another such file
    has_comments: bool = False
    rewrites: bool = True  # what is allowed runs contained
    note: str = ""  # what changes for the user, or is still to be done
    project_note: str = ""


def _claude(words: list[str]) -> dict[str, dict[str, Any]]:
    hook = {
        "type": "command",
        "command": words[0],
        "args": words[1:],
        "timeout": TIMEOUT_SECONDS,
        "onFailure": "block",
    }
    return {"PreToolUse": {"matcher": "|".join(claude.TOOLS), "hooks": [hook]}}


def _codex(words: list[str]) -> dict[str, dict[str, Any]]:
    hook = {"type": "command", "command": shlex.join((*_SHELL, *words)), "timeout": TIMEOUT_SECONDS}
    return {"PreToolUse": {"matcher": f"^({'|'.join(codex.TOOLS)})$", "hooks": [hook]}}


def _gemini(words: list[str]) -> dict[str, dict[str, Any]]:
    command = shlex.join((*_SHELL, *words))
    hook = {"name": "corral", "type": "command", "command": command, "timeout": TIMEOUT_SECONDS * 1000}
    return {"BeforeTool": {"matcher": f"^({'|'.join(gemini.TOOLS)})$", "hooks": [hook]}}


def _cursor(words: list[str]) -> dict[str, dict[str, Any]]:
    hook = {"command": shlex.join(words), "timeout": TIMEOUT_SECONDS, "failClosed": True}
    # Only the first event can ask about a command, and only the second sees every file that is read.
    others = [tool for tool in cursor.TOOLS if tool not in ("Shell", "Read")]
    return {
        "beforeShellExecution": hook,
        "beforeReadFile": hook,
        "preToolUse": {**hook, "matcher": "|".join(others)},
    }


def _copilot(words: list[str]) -> dict[str, dict[str, Any]]:
    return {"preToolUse": {"type": "command", "bash": shlex.join(words), "timeoutSec": TIMEOUT_SECONDS}}


HOSTS = {
    host.name: host
    for host in (
        Host(
            "claude",
            "Claude Code",
            "CLAUDE_CONFIG_DIR",
            ".claude",
            "settings.json",
            ".claude/settings.local.json",  # not settings.json, which is committed: the command is this machine's
            _claude,
            {},
            switch=("disableAllHooks",),
            switch_files=(".claude/settings.json", ".claude/settings.local.json"),
            other_switches=(("allowManagedHooksOnly",),),
            managed=("/etc/claude-code/managed-settings.json", "/etc/claude-code/managed-settings.d/"),
            note="Claude Code no longer asks before commands that corral allows: they run contained.",
        ),
        Host(
            "codex",
            "Codex",
            "CODEX_HOME",
            ".codex",
            "hooks.json",
            ".codex/hooks.json",
            _codex,
            {},
            note="Codex runs a hook only after you have trusted it: start codex, type /hooks and trust corral's. "
            'Until then nothing is judged. Then set sandbox_mode = "danger-full-access" in its config.toml: corral\'s '
            "sandbox holds every command, and cannot start inside Codex's own.",
            project_note="Codex reads a project's hooks only in projects that it trusts.",
        ),
        Host(
            "gemini",
            "Gemini CLI",
            "GEMINI_CLI_HOME",
            "",
            ".gemini/settings.json",
            ".gemini/settings.json",
            _gemini,
            {},
            switch=("hooksConfig", "enabled"),
            switch_value=False,
            switch_files=(".gemini/settings.json",),
            other_switches=(("hooksConfig", "disabled"), ("hooks", "disabled")),
            managed=("/etc/gemini-cli/settings.json", "/etc/gemini-cli/system-defaults.json"),
            managed_variable="GEMINI_CLI_SYSTEM_SETTINGS_PATH",
            has_comments=True,
            project_note="Gemini CLI reads a project's hooks only in folders that it trusts, and warns of a new one once.",
        ),
        Host(
            "cursor",
            "Cursor",
            "",
            ".cursor",
            "hooks.json",
            ".cursor/hooks.json",
            _cursor,
            {"version": 1},
            rewrites=False,
            note="Cursor cannot rewrite commands, so corral checks them and does not contain them. corral refuses a command "
            "that would need a question or the sandbox. If you answer Cursor's questions yourself, set "
            'host_questions = ["cursor"] in policy.toml.',
        ),
        Host(
            "opencode",
            "OpenCode",
            "OPENCODE_CONFIG_DIR",
            ".config/opencode",
            "plugins/corral.js",
            ".opencode/plugins/corral.js",
            None,
            {},
        ),
        Host(
            "copilot",
            "Copilot CLI",
            "COPILOT_HOME",
            ".copilot",
            "hooks/corral.json",
            ".github/hooks/corral.json",
            _copilot,
            {"version": 1},
            switch=("disableAllHooks",),
            switch_files=(".github/copilot/settings.json", ".github/copilot/settings.local.json"),
            note="corral refuses a command that would need a question. If you answer Copilot CLI's questions yourself, set "
            'host_questions = ["copilot"] in policy.toml.',
            project_note="Copilot CLI reads a project's hooks only in folders that it trusts.",
        ),
    )
}


def settings_path(host: Host, level: str, root: str, environ: Mapping[str, str]) -> str:
    """Return the file that the hook is written to."""
    if level == PROJECT:
        return f"{root}/{host.project_file}"
    return f"{settings_directory(host, environ)}/{host.file}"


def settings_directory(host: Host, environ: Mapping[str, str]) -> str:
    """Return the directory of a host's own settings."""
    moved = environ.get(host.variable, "") if host.variable else ""
    if moved.startswith("/"):
        return moved.rstrip("/") or "/"
    home = environ.get("HOME") or "/nonexistent"
    base = environ.get("XDG_CONFIG_HOME", "") if host.folder.startswith(".config/") else ""
    if base.startswith("/"):
        return f"{base.rstrip('/')}/{host.folder.removeprefix('.config/')}"
    return f"{home}/{host.folder}".rstrip("/")


def is_host_present(host: Host, environ: Mapping[str, str]) -> bool:
    """Say whether the host seems to be installed: its directory is there, and something is in it."""
    where = settings_directory(host, environ)
    try:
        return bool(os.listdir(f"{where}/.gemini" if host.name == "gemini" else where))
    except OSError:
        return False


def command_words(hook: object) -> list[str]:
    """Return the words of the command that an entry runs, without the shell around them; none where it runs none."""
    if not isinstance(hook, dict):
        return []
    command, given = hook.get("bash", hook.get("command")), hook.get("args")
    if not isinstance(command, str):
        return []
    if isinstance(given, list):
        return [command, *map(str, given)]
    try:
        words = shlex.split(command)
        return words[len(_SHELL) :] if tuple(words[: len(_SHELL)]) == _SHELL else words
    except ValueError:
        return command.split()


def start_words(hook: dict[str, Any]) -> list[str]:
    """Return how the host starts an entry's command: directly, or by a shell."""
    return (
        command_words(hook)
        if isinstance(hook.get("args"), list)
        else ["/bin/sh", "-c", hook.get("bash") or hook["command"]]
    )


def runs_corral(hook: object) -> bool:
    """Say whether an entry runs corral, in this or an older form."""
    words = command_words(hook)
    if any(word.endswith(PROGRAM) for word in words):
        return True
    return any(word.rpartition("/")[2] == "corral" and words[at + 1 :][:1] == ["hook"] for at, word in enumerate(words))


def hooks_in(entry: object) -> list[Any]:
    """Return the hooks of an entry: those of its group, or itself."""
    group = entry.get("hooks") if isinstance(entry, dict) else None
    return group if isinstance(group, list) else [entry]

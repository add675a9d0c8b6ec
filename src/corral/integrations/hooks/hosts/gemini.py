"""Gemini CLI, BeforeTool. Its documents know allow and deny; nothing but JSON may stand on stdout."""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    READ,
    SHELL,
    WRITE,
    Answer,
    Asked,
    BadPayload,
    Said,
    below,
    files_in,
    object_at,
    other_tool,
    refuse_others,
    searched,
    text_at,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_WRITES = ("write_file", "replace")
_READS: dict[str, tuple[str, ...]] = {
    "read_file": ("file_path", "absolute_path"),
    "read_many_files": ("include", "paths"),
    "search_file_content": ("dir_path", "path"),
    "grep_search": ("dir_path", "path"),
    "glob": ("dir_path", "path"),
    "list_directory": ("dir_path", "path"),
}
TOOLS = ("run_shell_command", *_WRITES, *_READS)


def read(payload: dict[str, Any], environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_others(payload)
    event = text_at(payload, "hook_event_name")
    if event in ("PreToolUse", "preToolUse", "beforeShellExecution"):
        raise BadPayload(f"{event} is an event of another host")
    if event != "BeforeTool":
        return None
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        other_tool(tool)
        return None
    given = object_at(payload, "tool_input")
    cwd = text_at(payload, "cwd")
    root = environ.get("GEMINI_PROJECT_DIR", "")
    if tool == "run_shell_command":
        folder = below(given.get("dir_path") or given.get("directory"), root or cwd)
        text = text_at(payload, "tool_input", "command")
        return Asked(SHELL, folder, root, text=text, given=given, rewrites=True, base=cwd)
    if tool in _WRITES:
        return Asked(WRITE, cwd, root, paths=files_in(given, ("file_path",), needed=True))
    keys = _READS[tool]
    paths = searched(given, keys) if tool == "glob" else files_in(given, keys, needed=False)
    return Asked(READ, cwd, root, paths=paths, are_patterns=tool == "read_many_files")


def render(answer: Answer, asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow":
        if not answer.command or asked is None:
            return Said()
        changed = {**asked.given, "command": answer.command}
        return Said(dumps({"decision": "allow", "hookSpecificOutput": {"tool_input": changed}}) + "\n")
    return Said(dumps({"decision": "deny", "reason": answer.reason}) + "\n", f"{answer.reason}\n", 2)

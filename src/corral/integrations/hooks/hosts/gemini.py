"""Gemini CLI, BeforeTool. Its documents know allow and deny; nothing but JSON may stand on stdout."""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    READ,
    SHELL,
    WRITE,
    Answer,
    BadPayload,
    HookOutput,
    ToolCall,
    object_at,
    paths_at,
    refuse_other_hosts,
    refuse_unknown_shell,
    resolve_directory,
    searched_directories,
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


def read(payload: dict[str, Any], environ: Mapping[str, str]) -> ToolCall | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_other_hosts(payload)
    event = text_at(payload, "hook_event_name")
    if event in ("PreToolUse", "preToolUse", "beforeShellExecution"):
        raise BadPayload(f"{event} is an event of another host")
    if event != "BeforeTool":
        return None
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        refuse_unknown_shell(tool)
        return None
    given = object_at(payload, "tool_input")
    cwd = text_at(payload, "cwd")
    root = environ.get("GEMINI_PROJECT_DIR", "")
    if tool == "run_shell_command":
        folder = resolve_directory(given.get("dir_path") or given.get("directory"), root or cwd)
        text = text_at(payload, "tool_input", "command")
        return ToolCall(SHELL, folder, root, text=text, given=given, rewrites=True, base=cwd)
    if tool in _WRITES:
        return ToolCall(WRITE, cwd, root, paths=paths_at(given, ("file_path",), needed=True))
    keys = _READS[tool]
    paths = searched_directories(given, keys) if tool == "glob" else paths_at(given, keys, needed=False)
    return ToolCall(READ, cwd, root, paths=paths, are_patterns=tool == "read_many_files")


def render(answer: Answer, asked: ToolCall | None) -> HookOutput:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow":
        if not answer.command or asked is None:
            return HookOutput()
        changed = {**asked.given, "command": answer.command}
        return HookOutput(dumps({"decision": "allow", "hookSpecificOutput": {"tool_input": changed}}) + "\n")
    return HookOutput(dumps({"decision": "deny", "reason": answer.reason}) + "\n", f"{answer.reason}\n", 2)

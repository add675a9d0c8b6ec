"""Cursor, beforeShellExecution, beforeReadFile and preToolUse. It cannot rewrite: what only the kernel makes harmless is asked about.

In Auto-review it answers questions itself, and its payload does not tell.

Its allow is an empty object: what corral does not contain, it does not approve in place of the host's own prompts.
"""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    READ,
    SHELL,
    UNKNOWN,
    WRITE,
    Answer,
    BadPayload,
    HookOutput,
    ToolCall,
    object_at,
    paths_at,
    refuse_other_hosts,
    refuse_unknown_shell,
    searched_directories,
    text_at,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_WRITES = ("Write", "Edit", "Delete", "MultiEdit")
_READS = ("Read", "Grep", "Glob", "LS")
_PATHS = ("file_path", "path", "target_file")
TOOLS = ("Shell", *_WRITES, *_READS)


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_other_hosts(payload, ("conversation_id", "workspace_roots", "cursor_version"))
    event = text_at(payload, "hook_event_name")
    if event in ("PreToolUse", "BeforeTool"):
        raise BadPayload(f"{event} is an event of another host")
    if event not in ("beforeShellExecution", "beforeReadFile", "preToolUse"):
        return None
    roots = payload.get("workspace_roots")
    root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""
    if event == "beforeShellExecution":
        return ToolCall(
            SHELL,
            _folder(payload.get("cwd"), root),
            root,
            text=text_at(payload, "command"),
            asks=UNKNOWN,
            host="cursor",
        )
    if event == "beforeReadFile":
        return ToolCall(READ, _folder(None, root), root, paths=paths_at(payload, _PATHS, needed=False))
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        refuse_unknown_shell(tool)
        return None
    given = object_at(payload, "tool_input")
    if tool == "Shell":
        # Of this event only allow and deny are honoured.
        cwd = _folder(given.get("cwd") or given.get("working_directory"), root)
        return ToolCall(SHELL, cwd, root, text=text_at(payload, "tool_input", "command"))
    if tool == "Glob":
        return ToolCall(READ, _folder(None, root), root, paths=searched_directories(given, _PATHS))
    kind = WRITE if tool in _WRITES else READ
    return ToolCall(kind, _folder(None, root), root, paths=paths_at(given, _PATHS, needed=kind == WRITE))


def _folder(given: object, root: str) -> str:
    # Cursor sends an empty text where it means the workspace.
    folder = given if isinstance(given, str) and given else root
    if not folder:
        raise BadPayload("the payload names neither a working directory nor a workspace")
    return folder


def render(answer: Answer, _asked: ToolCall | None) -> HookOutput:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow":
        return HookOutput("{}\n")
    reason = answer.reason
    said = dumps({"permission": answer.decision, "user_message": reason, "agent_message": reason}) + "\n"
    return HookOutput(said, f"{reason}\n", 2) if answer.decision == "deny" else HookOutput(said)

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
    Asked,
    BadPayload,
    Said,
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

_WRITES = ("Write", "Edit", "Delete", "MultiEdit")
_READS = ("Read", "Grep", "Glob", "LS")
_PATHS = ("file_path", "path", "target_file")
TOOLS = ("Shell", *_WRITES, *_READS)


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_others(payload, ("conversation_id", "workspace_roots", "cursor_version"))
    event = text_at(payload, "hook_event_name")
    if event in ("PreToolUse", "BeforeTool"):
        raise BadPayload(f"{event} is an event of another host")
    if event not in ("beforeShellExecution", "beforeReadFile", "preToolUse"):
        return None
    roots = payload.get("workspace_roots")
    root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""
    if event == "beforeShellExecution":
        return Asked(
            SHELL,
            _folder(payload.get("cwd"), root),
            root,
            text=text_at(payload, "command"),
            asks=UNKNOWN,
            host="cursor",
        )
    if event == "beforeReadFile":
        return Asked(READ, _folder(None, root), root, paths=files_in(payload, _PATHS, needed=False))
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        other_tool(tool)
        return None
    given = object_at(payload, "tool_input")
    if tool == "Shell":
        # Of this event only allow and deny are honoured.
        cwd = _folder(given.get("cwd") or given.get("working_directory"), root)
        return Asked(SHELL, cwd, root, text=text_at(payload, "tool_input", "command"))
    if tool == "Glob":
        return Asked(READ, _folder(None, root), root, paths=searched(given, _PATHS))
    kind = WRITE if tool in _WRITES else READ
    return Asked(kind, _folder(None, root), root, paths=files_in(given, _PATHS, needed=kind == WRITE))


def _folder(given: object, root: str) -> str:
    # Cursor sends an empty text where it means the workspace.
    folder = given if isinstance(given, str) and given else root
    if not folder:
        raise BadPayload("the payload names neither a working directory nor a workspace")
    return folder


def render(answer: Answer, _asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow":
        return Said("{}\n")
    reason = answer.reason
    said = dumps({"permission": answer.decision, "user_message": reason, "agent_message": reason}) + "\n"
    return Said(said, f"{reason}\n", 2) if answer.decision == "deny" else Said(said)

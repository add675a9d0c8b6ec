"""Claude Code, PreToolUse. Anything but an answer lets the call run there, so every refusal is JSON, stderr and exit code 2."""

from __future__ import annotations

import os

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    NOBODY,
    PERSON,
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
    searched_directories,
    text_at,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Who answers `ask`, by permission_mode. In bypassPermissions Claude Code 2.1.325 runs the call without asking; a mode that is not
# listed may do the same.
_ANSWERS = {
    "default": PERSON,
    "acceptEdits": PERSON,
    "plan": PERSON,
    "auto": NOBODY,
    "dontAsk": NOBODY,
    "bypassPermissions": NOBODY,
}
_SHELLS = ("Bash", "Monitor")
_WRITES = {"Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path"}
_READS = {"Read": "file_path", "NotebookRead": "notebook_path", "Grep": "path", "Glob": "path", "LS": "path"}
TOOLS = (*_SHELLS, "PowerShell", *_WRITES, *_READS)


def read(payload: dict[str, Any], environ: Mapping[str, str]) -> ToolCall | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_other_hosts(payload)
    event = text_at(payload, "hook_event_name")
    if event[:1].islower() or event == "BeforeTool":
        raise BadPayload(f"{event} is an event of another host")
    if event != "PreToolUse":
        return None
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        refuse_unknown_shell(tool)
        return None
    given = object_at(payload, "tool_input")
    cwd = text_at(payload, "cwd")
    root = environ.get("CLAUDE_PROJECT_DIR", "")
    mode = payload.get("permission_mode")
    asks = _ANSWERS.get(mode, NOBODY) if isinstance(mode, str) else NOBODY
    if tool in _SHELLS:
        # Its shell goes on where the last command left it, but not where one went on in the background.
        keeps = "" if given.get("run_in_background") or tool != "Bash" else "directory"
        text = text_at(payload, "tool_input", "command")
        return ToolCall(SHELL, cwd, root, text=text, given=given, rewrites=True, asks=asks, keeps=keeps)
    if tool == "PowerShell":
        raise BadPayload("PowerShell is not read by corral")
    if tool == "Glob":
        return ToolCall(READ, cwd, root, paths=searched_directories(given, ("path",)))
    if tool in _READS:
        return ToolCall(READ, cwd, root, paths=paths_at(given, (_READS[tool],), needed=False))
    paths = paths_at(given, (_WRITES[tool],), needed=True)
    return (
        None
        if all(_is_own_note(path, environ) for path in paths)
        else ToolCall(WRITE, cwd, root, paths=paths, asks=asks)
    )


def _is_own_note(path: str, environ: Mapping[str, str]) -> bool:
    """Say whether a file is one of the plans and memories that Claude Code keeps for itself, as text."""
    own = f"{os.path.realpath(environ.get('HOME') or '/nonexistent')}/.claude"
    real = os.path.realpath(path)
    # What goes up is another file to who follows links first than to who does not.
    if not path.startswith("/") or ".." in path or not real.endswith(".md"):
        return False
    return real.startswith(f"{own}/plans/") or (real.startswith(f"{own}/projects/") and "/memory/" in real)


def render(answer: Answer, asked: ToolCall | None) -> HookOutput:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow" and not answer.command:
        return HookOutput()
    body: dict[str, object] = {"hookEventName": "PreToolUse", "permissionDecision": answer.decision}
    if answer.reason:
        body["permissionDecisionReason"] = answer.reason
    if answer.command and asked is not None:
        body["updatedInput"] = {**asked.given, "command": answer.command}
    said = dumps({"hookSpecificOutput": body}) + "\n"
    return HookOutput(said, f"{answer.reason}\n", 2) if answer.decision == "deny" else HookOutput(said)

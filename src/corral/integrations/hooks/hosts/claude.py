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


def read(payload: dict[str, Any], environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_others(payload)
    event = text_at(payload, "hook_event_name")
    if event[:1].islower() or event == "BeforeTool":
        raise BadPayload(f"{event} is an event of another host")
    if event != "PreToolUse":
        return None
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        other_tool(tool)
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
        return Asked(SHELL, cwd, root, text=text, given=given, rewrites=True, asks=asks, keeps=keeps)
    if tool == "PowerShell":
        raise BadPayload("PowerShell is not read by corral")
    if tool == "Glob":
        return Asked(READ, cwd, root, paths=searched(given, ("path",)))
    if tool in _READS:
        return Asked(READ, cwd, root, paths=files_in(given, (_READS[tool],), needed=False))
    paths = files_in(given, (_WRITES[tool],), needed=True)
    return (
        None if all(_is_own_note(path, environ) for path in paths) else Asked(WRITE, cwd, root, paths=paths, asks=asks)
    )


def _is_own_note(path: str, environ: Mapping[str, str]) -> bool:
    """Say whether a file is one of the plans and memories that Claude Code keeps for itself, as text."""
    own = f"{os.path.realpath(environ.get('HOME') or '/nonexistent')}/.claude"
    real = os.path.realpath(path)
    # What goes up is another file to who follows links first than to who does not.
    if not path.startswith("/") or ".." in path or not real.endswith(".md"):
        return False
    return real.startswith(f"{own}/plans/") or (real.startswith(f"{own}/projects/") and "/memory/" in real)


def render(answer: Answer, asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow" and not answer.command:
        return Said()
    body: dict[str, object] = {"hookEventName": "PreToolUse", "permissionDecision": answer.decision}
    if answer.reason:
        body["permissionDecisionReason"] = answer.reason
    if answer.command and asked is not None:
        body["updatedInput"] = {**asked.given, "command": answer.command}
    said = dumps({"hookSpecificOutput": body}) + "\n"
    return Said(said, f"{answer.reason}\n", 2) if answer.decision == "deny" else Said(said)

"""Claude Code, PreToolUse. Anything but an answer lets the call run there, so every refusal is JSON, stderr and exit code 2."""

from __future__ import annotations

from corral.integrations.hooks.envelope import SHELL, WRITE, Answer, Asked, BadPayload, Said, dumps, text_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REWRITES = ASKS = True
KEEPS_DIRECTORY = True  # its shell goes on where the last command left it
_FILES = {"Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path"}


def read(payload: dict[str, Any], environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    if text_at(payload, "hook_event_name") != "PreToolUse":
        return None
    tool = text_at(payload, "tool_name")
    cwd = text_at(payload, "cwd")
    root = environ.get("CLAUDE_PROJECT_DIR", "")
    if tool == "Bash":
        return Asked(SHELL, text_at(payload, "tool_input", "command"), cwd, root, payload)
    if tool == "PowerShell":
        raise BadPayload("PowerShell is not read by corral")
    if tool in _FILES:
        return Asked(WRITE, text_at(payload, "tool_input", _FILES[tool]), cwd, root, payload)
    return None


def render(answer: Answer, asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow" and not answer.command:
        return Said()
    body: dict[str, object] = {"hookEventName": "PreToolUse", "permissionDecision": answer.decision}
    if answer.reason:
        body["permissionDecisionReason"] = answer.reason
    if answer.command and asked is not None:
        body["updatedInput"] = {**asked.payload["tool_input"], "command": answer.command}
    said = dumps({"hookSpecificOutput": body}) + "\n"
    return Said(said, f"{answer.reason}\n", 2) if answer.decision == "deny" else Said(said)

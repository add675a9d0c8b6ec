"""Codex, PreToolUse. A key that it does not know, an `ask` or a bare `allow` lets the call run there; silence is its allow."""

from __future__ import annotations

from corral.integrations.hooks.envelope import SHELL, WRITE, Answer, Asked, Said, dumps, text_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REWRITES = True
ASKS = False
KEEPS_DIRECTORY = False
_FILE_HEADS = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    if text_at(payload, "hook_event_name") != "PreToolUse":
        return None
    tool = text_at(payload, "tool_name")
    cwd = text_at(payload, "cwd")
    if tool == "Bash":
        return Asked(SHELL, text_at(payload, "tool_input", "command"), cwd, "", payload)
    if tool in ("apply_patch", "Write", "Edit"):
        text = text_at(payload, "tool_input", "command")
        files = [line[len(head) :] for line in text.splitlines() for head in _FILE_HEADS if line.startswith(head)]
        return Asked(WRITE, "\n".join(files), cwd, "", payload)
    return None


def render(answer: Answer, asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow" and not answer.command:
        return Said()
    body: dict[str, object] = {"hookEventName": "PreToolUse", "permissionDecision": answer.decision}
    if answer.decision == "allow" and asked is not None:
        body["updatedInput"] = {**asked.payload["tool_input"], "command": answer.command}
        return Said(dumps({"hookSpecificOutput": body}) + "\n")
    reason = answer.reason or "corral refused the call."
    body["permissionDecision"] = "deny"
    body["permissionDecisionReason"] = reason
    return Said(dumps({"hookSpecificOutput": body}) + "\n", f"{reason}\n", 2)

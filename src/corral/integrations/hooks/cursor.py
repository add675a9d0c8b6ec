"""Cursor, beforeShellExecution and preToolUse. It cannot rewrite: what only the kernel makes harmless is asked about."""

from __future__ import annotations

from corral.integrations.hooks.envelope import SHELL, WRITE, Answer, Asked, BadPayload, Said, dumps, text_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REWRITES = False
ASKS = True
KEEPS_DIRECTORY = False


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    event = text_at(payload, "hook_event_name")
    roots = payload.get("workspace_roots")
    root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""
    if event == "beforeShellExecution":
        return Asked(SHELL, text_at(payload, "command"), _folder(payload.get("cwd"), root), root, payload)
    if event != "preToolUse":
        return None
    tool = text_at(payload, "tool_name")
    given = payload.get("tool_input")
    given = given if isinstance(given, dict) else {}
    if tool == "Shell":
        cwd = _folder(given.get("cwd") or given.get("working_directory"), root)
        return Asked(SHELL, text_at(payload, "tool_input", "command"), cwd, root, payload)
    if tool == "Write":
        path = given.get("file_path") or given.get("path")
        if not isinstance(path, str):
            raise BadPayload("the payload has no text at tool_input.file_path")
        return Asked(WRITE, path, _folder(None, root), root, payload)
    return None


def _folder(given: object, root: str) -> str:
    # Cursor sends an empty text where it means the workspace.
    folder = given if isinstance(given, str) and given else root
    if not folder:
        raise BadPayload("the payload names neither a working directory nor a workspace")
    return folder


def render(answer: Answer, _asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow":
        return Said(dumps({"permission": "allow"}) + "\n")
    reason = answer.reason or "corral refused the call."
    said = dumps({"permission": answer.decision, "user_message": reason, "agent_message": reason}) + "\n"
    return Said(said, f"{reason}\n", 2) if answer.decision == "deny" else Said(said)

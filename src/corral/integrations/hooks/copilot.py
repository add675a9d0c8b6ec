"""Copilot CLI, preToolUse. Its tool arguments are JSON inside a text; a timeout of the hook lets the call run there."""

from __future__ import annotations

from corral.integrations.hooks.envelope import SHELL, WRITE, Answer, Asked, BadPayload, Said, dumps, loads, text_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REWRITES = True
ASKS = True
KEEPS_DIRECTORY = True  # its shells are sessions


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    tool = text_at(payload, "toolName")
    if tool not in ("bash", "shell", "edit", "create", "write"):
        return None
    given = payload.get("toolArgs")
    if isinstance(given, str):
        given = loads(given.encode("utf-8", "surrogatepass"))
    if not isinstance(given, dict):
        raise BadPayload("the payload has no object at toolArgs")
    cwd = payload.get("cwd")
    if not isinstance(cwd, str) or not cwd:
        raise BadPayload("the payload has no text at cwd")
    payload = {**payload, "toolArgs": given}
    if tool in ("bash", "shell"):
        return Asked(SHELL, text_at(given, "command"), cwd, "", payload)
    return Asked(WRITE, text_at(given, "path"), cwd, "", payload)


def render(answer: Answer, asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow" and not answer.command:
        return Said()
    body: dict[str, object] = {"permissionDecision": answer.decision}
    if answer.reason:
        body["permissionDecisionReason"] = answer.reason
    if answer.command and asked is not None:
        body["modifiedArgs"] = {**asked.payload["toolArgs"], "command": answer.command}
    said = dumps(body) + "\n"
    return Said(said, f"{answer.reason}\n", 2) if answer.decision == "deny" else Said(said)

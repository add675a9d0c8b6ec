"""OpenCode. Its plugin, which corral installs, asks this program and throws where the answer is no; the protocol is ours."""

from __future__ import annotations

from corral.integrations.hooks.envelope import SHELL, WRITE, Answer, Asked, BadPayload, Said, dumps, text_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REWRITES = True
ASKS = False  # its `permission.ask` is declared and never called
KEEPS_DIRECTORY = False


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    tool = text_at(payload, "tool_name")
    if tool not in ("bash", "write", "edit"):
        return None
    cwd = text_at(payload, "cwd")
    given = payload.get("tool_input")
    if not isinstance(given, dict):
        raise BadPayload("the payload has no object at tool_input")
    if tool == "bash":
        folder = given.get("workdir")
        if isinstance(folder, str) and folder:
            cwd = folder if folder.startswith("/") else f"{cwd}/{folder}"
        return Asked(SHELL, text_at(payload, "tool_input", "command"), cwd, "", payload)
    return Asked(WRITE, text_at(payload, "tool_input", "filePath"), cwd, "", payload)


def render(answer: Answer, _asked: Asked | None) -> Said:
    """Return the answer in the protocol of the plugin."""
    if answer.decision == "allow":
        return Said(dumps({"decision": "allow", "command": answer.command}) + "\n" if answer.command else "")
    reason = answer.reason or "corral refused the call."
    return Said(dumps({"decision": "deny", "reason": reason}) + "\n", f"{reason}\n", 2)

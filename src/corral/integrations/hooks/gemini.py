"""Gemini CLI, BeforeTool. Its documents know allow and deny; nothing but JSON may stand on stdout."""

from __future__ import annotations

from corral.integrations.hooks.envelope import SHELL, WRITE, Answer, Asked, Said, dumps, text_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REWRITES = True
ASKS = False
KEEPS_DIRECTORY = False


def read(payload: dict[str, Any], environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    if text_at(payload, "hook_event_name") != "BeforeTool":
        return None
    tool = text_at(payload, "tool_name")
    cwd = text_at(payload, "cwd")
    root = environ.get("GEMINI_PROJECT_DIR", "")
    if tool == "run_shell_command":
        given = payload.get("tool_input", {})
        folder = given.get("dir_path") or given.get("directory") if isinstance(given, dict) else None
        if isinstance(folder, str) and folder:
            cwd = folder if folder.startswith("/") else f"{root or cwd}/{folder}"
        return Asked(SHELL, text_at(payload, "tool_input", "command"), cwd, root, payload)
    if tool in ("write_file", "replace"):
        return Asked(WRITE, text_at(payload, "tool_input", "file_path"), cwd, root, payload)
    return None


def render(answer: Answer, asked: Asked | None) -> Said:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow":
        if not answer.command or asked is None:
            return Said()
        changed = {**asked.payload["tool_input"], "command": answer.command}
        return Said(dumps({"decision": "allow", "hookSpecificOutput": {"tool_input": changed}}) + "\n")
    reason = answer.reason or "corral refused the call."
    return Said(dumps({"decision": "deny", "reason": reason}) + "\n", f"{reason}\n", 2)

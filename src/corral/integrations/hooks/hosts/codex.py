"""Codex, PreToolUse. A key that it does not know, an `ask` or a bare `allow` lets the call run there; silence is its allow."""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    SHELL,
    WRITE,
    Answer,
    BadPayload,
    HookOutput,
    ToolCall,
    object_at,
    patched_files,
    refuse_other_hosts,
    refuse_unknown_shell,
    text_at,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_SHELLS = frozenset((place, name) for place in ("", "/bin", "/usr/bin") for name in ("bash", "sh", "zsh"))
TOOLS = ("Bash", "apply_patch", "Write", "Edit")


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_other_hosts(payload, ("turn_id",))
    event = text_at(payload, "hook_event_name")
    if event[:1].islower() or event == "BeforeTool":
        raise BadPayload(f"{event} is an event of another host")
    if event != "PreToolUse":
        return None
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        refuse_unknown_shell(tool)
        return None
    cwd = text_at(payload, "cwd")
    text = text_at(payload, "tool_input", "command")
    if tool == "Bash":
        shell = object_at(payload, "tool_input").get("shell") or "bash"
        # No version seen so far tells; one that does must not start a program of the project in place of a shell.
        if not isinstance(shell, str) or shell.rpartition("/")[::2] not in _SHELLS:
            raise BadPayload(f"{str(shell)[:200]} is no shell of the system's")
        return ToolCall(SHELL, cwd, text=text, given=object_at(payload, "tool_input"), rewrites=True)
    return ToolCall(WRITE, cwd, paths=patched_files(text))


def render(answer: Answer, asked: ToolCall | None) -> HookOutput:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow" and not answer.command:
        return HookOutput()
    body: dict[str, object] = {"hookEventName": "PreToolUse", "permissionDecision": answer.decision}
    if answer.decision == "allow" and asked is not None:
        body["updatedInput"] = {**asked.given, "command": answer.command}
        return HookOutput(dumps({"hookSpecificOutput": body}) + "\n")
    body["permissionDecision"] = "deny"
    body["permissionDecisionReason"] = answer.reason
    return HookOutput(dumps({"hookSpecificOutput": body}) + "\n", f"{answer.reason}\n", 2)

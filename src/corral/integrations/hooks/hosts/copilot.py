"""Copilot CLI, preToolUse. Its tool arguments are JSON inside a text; a timeout of the hook lets the call run there.

With --allow-all it answers questions itself, and its payload does not tell.
"""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    READ,
    SHELL,
    UNKNOWN,
    WRITE,
    Answer,
    BadPayload,
    HookOutput,
    ToolCall,
    loads,
    patched_files,
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

_SHELLS = ("bash", "shell")
_WRITES = ("edit", "create", "write", "str_replace_editor")
_READS = ("view", "grep", "glob")
TOOLS = (*_SHELLS, "write_bash", *_WRITES, "apply_patch", *_READS)


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_other_hosts(payload)
    tool = text_at(payload, "toolName")
    if tool not in TOOLS:
        refuse_unknown_shell(tool)
        return None
    cwd = text_at(payload, "cwd")
    if not cwd:
        raise BadPayload("the payload has no text at cwd")
    given = payload.get("toolArgs")
    if tool == "apply_patch" and isinstance(given, str):
        return ToolCall(WRITE, cwd, paths=patched_files(given), asks=UNKNOWN, host="copilot")
    if isinstance(given, str):
        given = loads(given.encode("utf-8", "surrogatepass"))
    if not isinstance(given, dict):
        raise BadPayload("the payload has no object at toolArgs")
    if tool in _SHELLS:
        # Its shells are sessions: they keep all that a command sets. One that is not waited for is left alone with that.
        keeps = "exports" if given.get("mode", "sync") == "sync" else ""
        text = text_at(given, "command")
        return ToolCall(SHELL, cwd, text=text, given=given, rewrites=True, asks=UNKNOWN, host="copilot", keeps=keeps)
    if tool == "write_bash":
        # Typed into a session: nobody knows whether a contained program reads it, or the session's own shell.
        return ToolCall(SHELL, cwd, text=text_at(given, "input"), asks=UNKNOWN, host="copilot", is_typed=True)
    if tool in _READS or (tool == "str_replace_editor" and given.get("command") == "view"):
        paths = searched_directories(given, ("path",)) if tool == "glob" else paths_at(given, ("path",), needed=False)
        return ToolCall(READ, cwd, paths=paths)
    if tool == "apply_patch":
        return ToolCall(WRITE, cwd, paths=patched_files(text_at(given, "patch")), asks=UNKNOWN, host="copilot")
    return ToolCall(WRITE, cwd, paths=paths_at(given, ("path",), needed=True), asks=UNKNOWN, host="copilot")


def render(answer: Answer, asked: ToolCall | None) -> HookOutput:
    """Return the answer in the host's protocol."""
    if answer.decision == "allow" and not answer.command:
        return HookOutput()
    body: dict[str, object] = {"permissionDecision": answer.decision}
    if answer.reason:
        body["permissionDecisionReason"] = answer.reason
    if answer.command and asked is not None:
        body["modifiedArgs"] = {**asked.given, "command": answer.command}
    said = dumps(body) + "\n"
    return HookOutput(said, f"{answer.reason}\n", 2) if answer.decision == "deny" else HookOutput(said)

"""Claude Code, event PreToolUse. It runs the call unless the hook answers, so a refusal is JSON, stderr and exit code 2."""

from __future__ import annotations

import os

from corral.integrations.hooks import protocol
from corral.integrations.hooks.hosts import TIMEOUT_SECONDS, Host
from corral.integrations.hooks.protocol import Answer, BadPayload, HookOutput, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# The answerer of `ask`, by permission_mode. In bypassPermissions Claude Code 2.1.325 runs the call without asking. A mode that is not
# listed may do the same.
_ANSWERS = {
    "default": protocol.PERSON,
    "acceptEdits": protocol.PERSON,
    "plan": protocol.PERSON,
    "auto": protocol.NOBODY,
    "dontAsk": protocol.NOBODY,
    "bypassPermissions": protocol.NOBODY,
}
_SHELLS = ("Bash", "Monitor")
_FILE, _NOTEBOOK, _PATH = ("file_path",), ("notebook_path",), ("path",)
_WRITES = {"Write": _FILE, "Edit": _FILE, "MultiEdit": _FILE, "NotebookEdit": _NOTEBOOK}
_READS = {"Read": _FILE, "NotebookRead": _NOTEBOOK, "Grep": _PATH, "Glob": _PATH, "LS": _PATH}
_TOOLS = (*_SHELLS, "PowerShell", *_WRITES, *_READS)


def _read(payload: dict[str, Any], environ: Mapping[str, str]) -> ToolCall | None:
    protocol.refuse_other_hosts(payload)
    if not protocol.is_own_event(payload, HOST.event):
        return None
    tool = protocol.text_at(payload, "tool_name")
    if not protocol.is_judged(tool, _TOOLS):
        return None
    given = protocol.object_at(payload, "tool_input")
    cwd = protocol.text_at(payload, "cwd")
    root = environ.get(HOST.root_variable, "")
    mode = payload.get("permission_mode")
    asks = _ANSWERS.get(mode, protocol.NOBODY) if isinstance(mode, str) else protocol.NOBODY
    if tool in _SHELLS:
        # Its shell keeps the working directory for the next command, but not that of a background command.
        keeps = "" if given.get("run_in_background") or tool != "Bash" else "directory"
        text = protocol.text_at(given, "command")
        return ToolCall(protocol.SHELL, cwd, root, text=text, given=given, rewrites=True, asks=asks, keeps=keeps)
    if tool == "PowerShell":
        raise BadPayload("corral does not read PowerShell")
    call = protocol.file_call(tool, given, (cwd, root), _WRITES, _READS, asks=asks)
    call = call.replace(given=given, rewrites=tool not in ("Grep", "Glob", "LS"))
    return None if tool in _WRITES and all(_is_note(path, environ) for path in call.paths) else call


def _is_note(path: str, environ: Mapping[str, str]) -> bool:
    """Say whether a file is one of the plans and memories that Claude Code keeps for itself as text."""
    home = environ.get("HOME") or "/nonexistent"
    own = f"{os.path.realpath(home)}/.claude"
    real = os.path.realpath(path)
    # `..` after a symlink resolves differently lexically and on disk, so reject it. A command may swap a link in the project.
    if not path.startswith((f"{home}/.claude/", f"{own}/")) or ".." in path or not real.endswith(".md"):
        return False
    return real.startswith(f"{own}/plans/") or (real.startswith(f"{own}/projects/") and "/memory/" in real)


def _render(answer: Answer, call: ToolCall | None) -> HookOutput:
    if answer.decision == "allow" and not answer.command and not answer.moved:
        return HookOutput()
    body: dict[str, object] = {"hookEventName": HOST.event, "permissionDecision": answer.decision}
    if answer.reason:
        body["permissionDecisionReason"] = answer.reason
    if answer.command and call is not None:
        body["updatedInput"] = {**call.given, "command": answer.command}
    if answer.moved and call is not None:
        paths = {key: answer.moved.get(str(call.given.get(key)), "") for key in (*_FILE, *_NOTEBOOK)}
        body["updatedInput"] = {**call.given, **{key: to for key, to in paths.items() if to}}
        names = ", ".join(f"{to} (commands see it as {path})" for path, to in answer.moved.items())
        body["additionalContext"] = f"corral: commands have a /tmp of their own, so the tool uses {names}."
    return protocol.json_output({"hookSpecificOutput": body}, answer)


def _payload(event: str, given: dict[str, Any], root: str) -> dict[str, Any]:
    return {"hook_event_name": event, "cwd": root, "tool_name": "Bash", "tool_input": given}


def _entries(words: list[str]) -> dict[str, dict[str, Any]]:
    command = {"type": "command", "command": words[0], "args": words[1:]}
    hook = {**command, "timeout": TIMEOUT_SECONDS, "onFailure": "block"}
    return {HOST.event: {"matcher": "|".join(_TOOLS), "hooks": [hook]}}


HOST = Host(
    name="claude",
    title="Claude Code",
    tools=_TOOLS,
    event="PreToolUse",
    read=_read,
    render=_render,
    payload=_payload,
    variable="CLAUDE_CONFIG_DIR",
    folder=".claude",
    file="settings.json",
    project_file=".claude/settings.local.json",  # not settings.json, which is committed: the command is for this machine
    entries=_entries,
    root_variable="CLAUDE_PROJECT_DIR",
    protected=(".claude/**", ".mcp.json"),
    private=(".claude/**", ".claude.json"),
    notes=(".claude/",),
    secrets=(".credentials.json", "session-env", "shell-snapshots", "file-history", "paste-cache"),
    questions="person",
    switches=(("disableAllHooks", True), ("allowManagedHooksOnly", True)),
    switch_files=(".claude/settings.json", ".claude/settings.local.json"),
    managed=("/etc/claude-code/managed-settings.json", "/etc/claude-code/managed-settings.d/"),
    note="Claude Code no longer asks before commands that corral allows: they run in the sandbox.",
)

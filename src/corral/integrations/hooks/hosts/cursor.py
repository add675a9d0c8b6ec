"""Cursor, events beforeShellExecution, beforeReadFile and preToolUse.

Cursor cannot rewrite a command, so corral refuses or asks about a command that is safe only in the sandbox. In Auto-review it
answers questions itself, and its payload does not say so. corral's allow is an empty object, which leaves Cursor's own prompts on:
corral does not approve a command that it does not confine.
"""

from __future__ import annotations

from corral._lib.quoting import shell_join
from corral.integrations.hooks import protocol
from corral.integrations.hooks.hosts import TIMEOUT_SECONDS, Host
from corral.integrations.hooks.protocol import Answer, BadPayload, HookOutput, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_PATHS = ("file_path", "path", "target_file")
_WRITES = dict.fromkeys(("Write", "Edit", "Delete", "MultiEdit"), _PATHS)
_READS = dict.fromkeys(("Read", "Grep", "Glob", "LS"), _PATHS)
_TOOLS = ("Shell", *_WRITES, *_READS)


def _read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    protocol.refuse_other_hosts(payload, ("conversation_id", "workspace_roots", "cursor_version"))
    if not protocol.is_own_event(payload, "beforeShellExecution", "beforeReadFile", "preToolUse"):
        return None
    event = payload["hook_event_name"]
    roots = payload.get("workspace_roots")
    root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""
    if event == "beforeShellExecution":
        cwd = _directory(payload.get("cwd"), root)
        return ToolCall(protocol.SHELL, cwd, root, text=protocol.text_at(payload, "command"), asks=protocol.UNKNOWN)
    if event == "beforeReadFile":
        return ToolCall(
            protocol.READ, _directory(None, root), root, paths=protocol.paths_at(payload, _PATHS, needed=False)
        )
    tool = protocol.text_at(payload, "tool_name")
    if not protocol.is_judged(tool, _TOOLS):
        return None
    given = protocol.object_at(payload, "tool_input")
    if tool == "Shell":
        # Cursor honours only allow and deny for this event, so a question would be ignored.
        cwd = _directory(given.get("cwd") or given.get("working_directory"), root)
        return ToolCall(protocol.SHELL, cwd, root, text=protocol.text_at(payload, "tool_input", "command"))
    return protocol.file_call(tool, given, (_directory(None, root), root), _WRITES, _READS)


def _directory(given: object, root: str) -> str:
    # Cursor sends an empty string for the workspace root.
    folder = given if isinstance(given, str) and given else root
    if not folder:
        raise BadPayload("the payload names neither a working directory nor a workspace")
    return folder


def _render(answer: Answer, _call: ToolCall | None) -> HookOutput:
    if answer.decision == "allow":
        return HookOutput("{}\n")
    reason = answer.reason
    return protocol.json_output(
        {"permission": answer.decision, "user_message": reason, "agent_message": reason}, answer
    )


def _payload(event: str, given: dict[str, Any], root: str) -> dict[str, Any]:
    return {"hook_event_name": event, "cwd": root, "workspace_roots": [root], **given}


def _file_trials(event: str, root: str) -> dict[str, dict[str, Any]]:
    secret, plain = "~/.ssh/id_ed25519", f"{root}/notes.txt"
    if event == "beforeReadFile":
        names = {f"reading {secret}": secret, "reading notes.txt": plain}
        return {name: _payload(event, {"file_path": path}, root) for name, path in names.items()}
    if event == "preToolUse":
        names = {"writing .envrc": f"{root}/.envrc", "writing notes.txt": plain}
        tools = {name: {"tool_name": "Write", "tool_input": {"file_path": path}} for name, path in names.items()}
        return {name: _payload(event, tool, root) for name, tool in tools.items()}
    return {}


def _entries(words: list[str]) -> dict[str, dict[str, Any]]:
    hook = {"command": shell_join(words), "timeout": TIMEOUT_SECONDS, "failClosed": True}
    # Only beforeShellExecution can ask about a command, and only beforeReadFile sees every file that is read.
    others = [tool for tool in _TOOLS if tool not in ("Shell", "Read")]
    return {
        "beforeShellExecution": hook,
        "beforeReadFile": hook,
        "preToolUse": {**hook, "matcher": "|".join(others)},
    }


HOST = Host(
    name="cursor",
    title="Cursor",
    tools=_TOOLS,
    event="beforeShellExecution",
    read=_read,
    render=_render,
    payload=_payload,
    file_trials=_file_trials,
    folder=".cursor",
    file="hooks.json",
    project_file=".cursor/hooks.json",
    entries=_entries,
    protected=(".cursor/**", ".cursorrules"),
    private=(".cursor/**",),
    notes=(".cursor/",),
    secrets=(),
    questions="unknown",
    skeleton={"version": 1},
    rewrites=False,
    note="Cursor cannot rewrite commands, so corral checks them and does not confine them. corral refuses a command "
    "that would need a question or the sandbox. If you answer Cursor's questions yourself, set "
    'host_questions = ["cursor"] in policy.toml.',
)

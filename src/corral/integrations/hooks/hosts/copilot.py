"""Copilot CLI, event preToolUse. Its tool arguments are JSON inside a string, and it runs the call when the hook times out.

With --allow-all it answers questions itself, and its payload does not say so.
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

_SHELLS = ("bash", "shell")
_PATH = ("path",)
_WRITES = dict.fromkeys(("edit", "create", "write", "str_replace_editor"), _PATH)
_READS = dict.fromkeys(("view", "grep", "glob"), _PATH)
_TOOLS = (*_SHELLS, "write_bash", *_WRITES, "apply_patch", *_READS)


def _read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    protocol.refuse_other_hosts(payload)
    tool = protocol.text_at(payload, "toolName")
    if not protocol.is_judged(tool, _TOOLS):
        return None
    cwd = protocol.text_at(payload, "cwd")
    if not cwd:
        raise BadPayload("the payload has no string at cwd")
    given = payload.get("toolArgs")
    if tool == "apply_patch" and isinstance(given, str):
        return ToolCall(protocol.WRITE, cwd, paths=protocol.patched_files(given), asks=protocol.UNKNOWN)
    if isinstance(given, str):
        given = protocol.loads(given.encode("utf-8", "surrogatepass"))
    if not isinstance(given, dict):
        raise BadPayload("the payload has no object at toolArgs")
    if tool in _SHELLS:
        # Its shells are sessions that keep the exports of a command. An asynchronous command has a session of its own.
        keeps = "exports" if given.get("mode", "sync") == "sync" else ""
        text = protocol.text_at(given, "command")
        return ToolCall(protocol.SHELL, cwd, text=text, given=given, rewrites=True, asks=protocol.UNKNOWN, keeps=keeps)
    if tool == "write_bash":
        # Either a confined program or the session's own shell may read this text, and the payload does not say which.
        return ToolCall(
            protocol.SHELL, cwd, text=protocol.text_at(given, "input"), asks=protocol.UNKNOWN, is_typed=True
        )
    if tool == "apply_patch":
        return ToolCall(
            protocol.WRITE, cwd, paths=protocol.patched_files(protocol.text_at(given, "patch")), asks=protocol.UNKNOWN
        )
    is_view = tool == "str_replace_editor" and given.get("command") == "view"
    return protocol.file_call("view" if is_view else tool, given, (cwd, ""), _WRITES, _READS, asks=protocol.UNKNOWN)


def _render(answer: Answer, call: ToolCall | None) -> HookOutput:
    if answer.decision == "allow" and not answer.command:
        return HookOutput()
    body: dict[str, object] = {"permissionDecision": answer.decision}
    if answer.reason:
        body["permissionDecisionReason"] = answer.reason
    if answer.command and call is not None:
        body["modifiedArgs"] = {**call.given, "command": answer.command}
    return protocol.json_output(body, answer)


def _payload(_event: str, given: dict[str, Any], root: str) -> dict[str, Any]:
    from json import dumps  # noqa: PLC0415  only doctor and tests need it

    return {"sessionId": "1", "timestamp": 0, "cwd": root, "toolName": "bash", "toolArgs": dumps(given)}


def _entries(words: list[str]) -> dict[str, dict[str, Any]]:
    return {HOST.event: {"type": "command", "bash": shell_join(words), "timeoutSec": TIMEOUT_SECONDS}}


HOST = Host(
    name="copilot",
    title="Copilot CLI",
    tools=_TOOLS,
    event="preToolUse",
    read=_read,
    render=_render,
    payload=_payload,
    variable="COPILOT_HOME",
    folder=".copilot",
    file="hooks/corral.json",
    project_file=".github/hooks/corral.json",
    entries=_entries,
    protected=(".github/hooks/**", ".github/copilot/**", ".github/mcp.json"),
    private=(".copilot/**",),
    notes=(".copilot/",),
    secrets=("config.json",),
    questions="unknown",
    skeleton={"version": 1},
    switches=(("disableAllHooks", True),),
    switch_files=(".github/copilot/settings.json", ".github/copilot/settings.local.json"),
    note="corral refuses a command that would need a question. If you answer Copilot CLI's questions yourself, set "
    'host_questions = ["copilot"] in policy.toml.',
    project_note="Copilot CLI reads a project's hooks only in folders that it trusts.",
)

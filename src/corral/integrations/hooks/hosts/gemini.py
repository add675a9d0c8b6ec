"""Gemini CLI, event BeforeTool. It documents only allow and deny, and requires that stdout holds nothing but JSON."""

from __future__ import annotations

from corral._lib.quoting import shell_join
from corral.integrations.hooks import protocol
from corral.integrations.hooks.hosts import FAIL_CLOSED_SHELL, TIMEOUT_SECONDS, Host
from corral.integrations.hooks.protocol import Answer, HookOutput, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_FILE, _DIRECTORY = ("file_path",), ("dir_path", "path")
_WRITES = {"write_file": _FILE, "replace": _FILE}
_READS: dict[str, tuple[str, ...]] = {
    "read_file": ("file_path", "absolute_path"),
    "read_many_files": ("include", "paths"),
    **dict.fromkeys(("search_file_content", "grep_search", "glob", "list_directory"), _DIRECTORY),
}
_TOOLS = ("run_shell_command", *_WRITES, *_READS)


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
    if tool == "run_shell_command":
        folder = protocol.resolve_directory(given.get("dir_path") or given.get("directory"), root or cwd)
        text = protocol.text_at(payload, "tool_input", "command")
        return ToolCall(protocol.SHELL, folder, root, text=text, given=given, rewrites=True, base=cwd)
    call = protocol.file_call(tool, given, (cwd, root), _WRITES, _READS)
    return call.replace(are_patterns=True) if tool == "read_many_files" else call


def _render(answer: Answer, call: ToolCall | None) -> HookOutput:
    if answer.decision == "allow":
        if not answer.command or call is None:
            return HookOutput()
        changed = {**call.given, "command": answer.command}
        return protocol.json_output({"decision": "allow", "hookSpecificOutput": {"tool_input": changed}}, answer)
    return protocol.json_output({"decision": "deny", "reason": answer.reason}, Answer("deny", answer.reason))


def _payload(event: str, given: dict[str, Any], root: str) -> dict[str, Any]:
    return {"hook_event_name": event, "cwd": root, "tool_name": "run_shell_command", "tool_input": given}


def _entries(words: list[str]) -> dict[str, dict[str, Any]]:
    command = shell_join((*FAIL_CLOSED_SHELL, *words))
    hook = {"name": "corral", "type": "command", "command": command, "timeout": TIMEOUT_SECONDS * 1000}
    return {HOST.event: {"matcher": f"^({'|'.join(_TOOLS)})$", "hooks": [hook]}}


HOST = Host(
    name="gemini",
    title="Gemini CLI",
    tools=_TOOLS,
    event="BeforeTool",
    read=_read,
    render=_render,
    payload=_payload,
    variable="GEMINI_CLI_HOME",
    variable_folder=".gemini",
    folder=".gemini",
    file="settings.json",
    project_file=".gemini/settings.json",
    entries=_entries,
    root_variable="GEMINI_PROJECT_DIR",
    protected=(".gemini/**",),
    private=(".gemini/**",),
    notes=(".gemini/",),
    secrets=("oauth_creds.json", "mcp-oauth-tokens.json"),
    questions="nobody",
    switches=(("hooksConfig.enabled", False), ("hooksConfig.disabled", False), ("hooks.disabled", False)),
    switch_files=(".gemini/settings.json",),
    managed=("/etc/gemini-cli/settings.json", "/etc/gemini-cli/system-defaults.json"),
    managed_variable="GEMINI_CLI_SYSTEM_SETTINGS_PATH",
    has_comments=True,
    project_note="Gemini CLI reads a project's hooks only in folders that it trusts, and warns of a new one once.",
)

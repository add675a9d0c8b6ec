"""Codex, event PreToolUse. It runs the call after an unknown key, an `ask` or a bare `allow`; no output means allow."""

from __future__ import annotations

import os

from corral._lib.quoting import shell_join
from corral.integrations.hooks import protocol
from corral.integrations.hooks.hosts import FAIL_CLOSED_SHELL, TIMEOUT_SECONDS, Host
from corral.integrations.hooks.protocol import Answer, BadPayload, HookOutput, ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_SHELLS = frozenset((place, name) for place in ("", "/bin", "/usr/bin") for name in ("bash", "sh", "zsh"))
_TOOLS = ("Bash", "apply_patch", "Write", "Edit")
_OPEN_SANDBOX = "danger-full-access"  # the Codex setting that turns its own sandbox off


def _read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    protocol.refuse_other_hosts(payload, ("turn_id",))
    if not protocol.is_own_event(payload, HOST.event):
        return None
    tool = protocol.text_at(payload, "tool_name")
    if not protocol.is_judged(tool, _TOOLS):
        return None
    cwd = protocol.text_at(payload, "cwd")
    text = protocol.text_at(payload, "tool_input", "command")
    if tool != "Bash":
        return ToolCall(protocol.WRITE, cwd, paths=protocol.patched_files(text))
    given = protocol.object_at(payload, "tool_input")
    shell = given.get("shell") or "bash"
    # No Codex version seen so far sends `shell`. A later version must not start a program of the project instead of a shell.
    if not isinstance(shell, str) or shell.rpartition("/")[::2] not in _SHELLS:
        raise BadPayload(f"{str(shell)[:200]} is not a shell of the system")
    return ToolCall(protocol.SHELL, cwd, text=text, given=given, rewrites=True)


def _render(answer: Answer, call: ToolCall | None) -> HookOutput:
    if answer.decision == "allow" and not answer.command:
        return HookOutput()
    body: dict[str, object] = {"hookEventName": HOST.event, "permissionDecision": answer.decision}
    if answer.decision == "allow" and call is not None:
        body["updatedInput"] = {**call.given, "command": answer.command}
        return protocol.json_output({"hookSpecificOutput": body}, answer)
    body["permissionDecision"] = "deny"
    body["permissionDecisionReason"] = answer.reason
    return protocol.json_output({"hookSpecificOutput": body}, Answer("deny", answer.reason))


def _payload(event: str, given: dict[str, Any], root: str) -> dict[str, Any]:
    return {"hook_event_name": event, "cwd": root, "tool_name": "Bash", "tool_input": given, "turn_id": "1"}


def _entries(words: list[str]) -> dict[str, dict[str, Any]]:
    hook = {"type": "command", "command": shell_join((*FAIL_CLOSED_SHELL, *words)), "timeout": TIMEOUT_SECONDS}
    return {HOST.event: {"matcher": f"^({'|'.join(_TOOLS)})$", "hooks": [hook]}}


def _checks(path: str, folder: str) -> Iterator[tuple[str, str, str, str]]:
    """Check Codex's config.toml: Codex runs only hooks that the user trusted, and its own sandbox keeps corral's from starting."""
    from tomllib import TOMLDecodeError, load  # noqa: PLC0415  the hook does not need it

    settings = f"{folder}/config.toml"
    try:
        with open(settings, "rb") as file:
            config = load(file)
    except (OSError, TOMLDecodeError):
        config = {}
    trusted = _table(_table(config, "hooks"), "state").items()
    keys = (f"{path}:", f"{os.path.realpath(path)}:")
    is_open = config.get("sandbox_mode") == _OPEN_SANDBOX
    if not any(
        isinstance(entry, dict) and entry.get("trusted_hash") and key.startswith(keys) for key, entry in trusted
    ):
        means = "Codex runs a hook only after you have trusted it. Start codex, type /hooks and trust corral's hook."
        # Without its own sandbox, nothing confines its commands.
        yield "fail" if is_open else "warn", f"{settings} does not list the hook as trusted", means, "codex"
    elif not is_open:
        means = (
            f'corral\'s sandbox cannot start inside it, and commands fail. Set sandbox_mode = "{_OPEN_SANDBOX}" there.'
        )
        yield "warn", f"{settings} leaves Codex's own sandbox on", means, ""


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


HOST = Host(
    name="codex",
    title="Codex",
    tools=_TOOLS,
    event="PreToolUse",
    read=_read,
    render=_render,
    payload=_payload,
    variable="CODEX_HOME",
    folder=".codex",
    file="hooks.json",
    project_file=".codex/hooks.json",
    entries=_entries,
    protected=(".codex/**", ".agents/**"),
    private=(".codex/**", ".agents/**"),
    notes=(".codex/",),
    secrets=("auth.json", "config.toml"),
    questions="nobody",
    checks=_checks,
    note="Codex runs a hook only after you have trusted it: start codex, type /hooks and trust corral's hook. "
    'Until then corral checks nothing. Then set sandbox_mode = "danger-full-access" in its config.toml: corral\'s '
    "sandbox confines every command, and cannot start inside Codex's own.",
    project_note="Codex reads a project's hooks only in projects that it trusts.",
)

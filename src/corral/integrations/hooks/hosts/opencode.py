"""OpenCode. Its plugin, which corral installs, asks this program and throws where the answer is no; the protocol is ours."""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    READ,
    SHELL,
    WRITE,
    Answer,
    HookOutput,
    ToolCall,
    object_at,
    patched_files,
    paths_at,
    refuse_other_hosts,
    refuse_unknown_shell,
    resolve_directory,
    searched_directories,
    text_at,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_WRITES = ("write", "edit", "multiedit")
_READS: dict[str, tuple[str, ...]] = {"read": ("filePath",), "grep": ("path",), "glob": ("path",), "list": ("path",)}
TOOLS = ("bash", *_WRITES, "patch", "apply_patch", *_READS)


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_other_hosts(payload)
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        refuse_unknown_shell(tool)
        return None
    cwd = text_at(payload, "cwd")
    given = object_at(payload, "tool_input")
    if tool == "bash":
        # Its permission.ask is declared, and never called: nobody can be asked.
        folder = resolve_directory(given.get("workdir"), cwd)
        text = text_at(payload, "tool_input", "command")
        return ToolCall(SHELL, folder, text=text, given=given, rewrites=True, base=cwd)
    if tool in ("patch", "apply_patch"):
        return ToolCall(WRITE, cwd, paths=patched_files(text_at(payload, "tool_input", "patchText")))
    if tool in _WRITES:
        return ToolCall(WRITE, cwd, paths=paths_at(given, ("filePath",), needed=True))
    keys = _READS[tool]
    return ToolCall(
        READ, cwd, paths=searched_directories(given, keys) if tool == "glob" else paths_at(given, keys, needed=False)
    )


def render(answer: Answer, _asked: ToolCall | None) -> HookOutput:
    """Return the answer in the protocol of the plugin."""
    if answer.decision == "allow":
        return HookOutput(dumps({"decision": "allow", "command": answer.command}) + "\n" if answer.command else "")
    return HookOutput(dumps({"decision": "deny", "reason": answer.reason}) + "\n", f"{answer.reason}\n", 2)

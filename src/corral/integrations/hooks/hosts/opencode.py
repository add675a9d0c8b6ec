"""OpenCode. Its plugin, which corral installs, asks this program and throws where the answer is no; the protocol is ours."""

from __future__ import annotations

from corral._lib.json_text import dumps
from corral.integrations.hooks.protocol import (
    READ,
    SHELL,
    WRITE,
    Answer,
    Asked,
    Said,
    below,
    files_in,
    object_at,
    other_tool,
    patched_files,
    refuse_others,
    searched,
    text_at,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_WRITES = ("write", "edit", "multiedit")
_READS: dict[str, tuple[str, ...]] = {"read": ("filePath",), "grep": ("path",), "glob": ("path",), "list": ("path",)}
TOOLS = ("bash", *_WRITES, "patch", "apply_patch", *_READS)


def read(payload: dict[str, Any], _environ: Mapping[str, str]) -> Asked | None:
    """Return what is asked, or None where it is nothing that corral judges."""
    refuse_others(payload)
    tool = text_at(payload, "tool_name")
    if tool not in TOOLS:
        other_tool(tool)
        return None
    cwd = text_at(payload, "cwd")
    given = object_at(payload, "tool_input")
    if tool == "bash":
        # Its permission.ask is declared, and never called: nobody can be asked.
        folder = below(given.get("workdir"), cwd)
        text = text_at(payload, "tool_input", "command")
        return Asked(SHELL, folder, text=text, given=given, rewrites=True, base=cwd)
    if tool in ("patch", "apply_patch"):
        return Asked(WRITE, cwd, paths=patched_files(text_at(payload, "tool_input", "patchText")))
    if tool in _WRITES:
        return Asked(WRITE, cwd, paths=files_in(given, ("filePath",), needed=True))
    keys = _READS[tool]
    return Asked(READ, cwd, paths=searched(given, keys) if tool == "glob" else files_in(given, keys, needed=False))


def render(answer: Answer, _asked: Asked | None) -> Said:
    """Return the answer in the protocol of the plugin."""
    if answer.decision == "allow":
        return Said(dumps({"decision": "allow", "command": answer.command}) + "\n" if answer.command else "")
    return Said(dumps({"decision": "deny", "reason": answer.reason}) + "\n", f"{answer.reason}\n", 2)

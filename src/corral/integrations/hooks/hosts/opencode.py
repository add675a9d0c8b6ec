"""OpenCode. corral installs a plugin (opencode.js) that runs the hook and throws on a refusal; the protocol is our own."""

from __future__ import annotations

from corral.integrations.hooks import protocol
from corral.integrations.hooks.hosts import Host
from corral.integrations.hooks.protocol import ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_FILE, _PATH = ("filePath",), ("path",)
_WRITES = {"write": _FILE, "edit": _FILE, "multiedit": _FILE}
_READS = {"read": _FILE, "grep": _PATH, "glob": _PATH, "list": _PATH}
_TOOLS = ("bash", *_WRITES, "patch", "apply_patch", *_READS)


def _read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    protocol.refuse_other_hosts(payload)
    tool = protocol.text_at(payload, "tool_name")
    if not protocol.is_judged(tool, _TOOLS):
        return None
    cwd = protocol.text_at(payload, "cwd")
    given = protocol.object_at(payload, "tool_input")
    if tool == "bash":
        # OpenCode declares a permission.ask hook and never calls it, so a question would be ignored.
        folder = protocol.resolve_directory(given.get("workdir"), cwd)
        text = protocol.text_at(payload, "tool_input", "command")
        return ToolCall(protocol.SHELL, folder, text=text, given=given, rewrites=True, base=cwd)
    if tool in ("patch", "apply_patch"):
        return ToolCall(
            protocol.WRITE, cwd, paths=protocol.patched_files(protocol.text_at(payload, "tool_input", "patchText"))
        )
    return protocol.file_call(tool, given, (cwd, ""), _WRITES, _READS)


HOST = Host(
    name="opencode",
    title="OpenCode",
    tools=_TOOLS,
    event="tool.execute.before",
    read=_read,
    render=protocol.plugin_output,
    payload=protocol.plugin_payload,
    variable="OPENCODE_CONFIG_DIR",
    folder=".config/opencode",
    file="plugins/corral.js",
    project_file=".opencode/plugins/corral.js",
    entries=None,
    plugin="opencode.js",
    protected=(".opencode/**", "opencode.json", "opencode.jsonc"),
    private=(".config/opencode/**", ".opencode/**", ".local/share/opencode/**"),
    notes=(".config/opencode/", ".local/share/opencode/"),
    secrets=("auth.json",),
    questions="nobody",
)

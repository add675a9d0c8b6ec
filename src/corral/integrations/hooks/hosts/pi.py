"""pi. corral installs an extension (pi.js) that runs the hook and blocks the call on a refusal; the protocol is our own."""

from __future__ import annotations

from corral.integrations.hooks import protocol
from corral.integrations.hooks.hosts import Host
from corral.integrations.hooks.protocol import ToolCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_PATH = ("path",)
_WRITES = {"write": _PATH, "edit": _PATH}
_READS = dict.fromkeys(("read", "grep", "find", "ls"), _PATH)
_TOOLS = ("bash", *_WRITES, *_READS)


def _read(payload: dict[str, Any], _environ: Mapping[str, str]) -> ToolCall | None:
    protocol.refuse_other_hosts(payload)
    tool = protocol.text_at(payload, "tool_name")
    if not protocol.is_judged(tool, _TOOLS):
        return None
    cwd = protocol.text_at(payload, "cwd")
    given = protocol.object_at(payload, "tool_input")
    if tool == "bash":
        text = protocol.text_at(payload, "tool_input", "command")
        return ToolCall(protocol.SHELL, cwd, text=text, given=given, rewrites=True)
    return protocol.file_call(tool, given, (cwd, ""), _WRITES, _READS)


HOST = Host(
    name="pi",
    title="pi",
    tools=_TOOLS,
    event="tool_call",
    read=_read,
    render=protocol.plugin_output,
    payload=protocol.plugin_payload,
    variable="PI_CODING_AGENT_DIR",
    folder=".pi/agent",
    file="extensions/corral.js",
    project_file=".pi/extensions/corral.js",
    entries=None,
    plugin="pi.js",
    protected=(".pi/**",),
    private=(".pi/**",),
    notes=(".pi/agent/",),
    secrets=("auth.json",),
    questions="nobody",
)

"""The gate of tool names: what is not listed does not pass. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from corral.integrations.gates.model import Refusal, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.integrations.gates.model import ToolCall

MAX_NAMED = 20  # tools that a refusal lists; a model needs no more to choose


class ToolAllowlist:
    """Lets through the tools of these names; `*`, `?` and `[…]` stand for what they do in a shell, upper case for itself."""

    name = "tools"

    def __init__(self, *tools: str) -> None:
        self.tools = names("the tools of an allowlist", tools)

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse a tool that no name fits."""
        if any(fnmatchcase(call.tool, tool) for tool in self.tools):
            return None
        listed = ", ".join(self.tools[:MAX_NAMED]) + (", …" if len(self.tools) > MAX_NAMED else "")
        instead = f"Use one of these: {listed}." if listed else "Do without tools; none may be used here."
        return Refusal("gate-tool", f"The tool {call.tool[:100]!r} is not on the list of tools.", instead)

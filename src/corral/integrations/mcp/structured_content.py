"""Moves a tool's record into `_meta` for clients that would show it to their model instead of the text, or beside it.

The client chooses its own name, so the name decides only the form of an answer.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

RECORD_KEY = "corral/record"  # in the result's _meta, which these clients do not show to a model
_REPLACES = "Shows the model the structured content and drops the text."
# By the exact name that a client gives itself. docs/mcp.md says how each row was found.
SHOWS_RECORD = {
    "claude-code": _REPLACES,
    "codex-mcp-client": _REPLACES,
    "copilot-cli": "Shows the model the text, then the structured content.",
    "Visual Studio Code": _REPLACES,
    "Visual Studio Code - Insiders": _REPLACES,
}


async def choose_record_form(ctx: "ServerRequestContext[Any, Any]", call_next: "CallNext") -> "HandlerResult":
    """Answer a request. A client that shows records gets no output schemas, and the record in `_meta`."""
    result = await call_next(ctx)
    params = ctx.session.client_params
    if params is None or params.client_info.name not in SHOWS_RECORD or not isinstance(result, dict):
        return result
    if ctx.method == "tools/list":
        # A client that knows the schema reports an answer without structured content as an error.
        tools = [{key: value for key, value in tool.items() if key != "outputSchema"} for tool in result["tools"]]
        return {**result, "tools": tools}
    if ctx.method == "tools/call" and "structuredContent" in result:
        rest = {key: value for key, value in result.items() if key != "structuredContent"}
        return {**rest, "_meta": {**result.get("_meta", {}), RECORD_KEY: result["structuredContent"]}}
    return result

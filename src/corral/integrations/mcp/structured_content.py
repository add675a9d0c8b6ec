"""Moves a tool's record aside for clients that would show it to their model in place of the text, or beside it.

A client's name is its own claim. It chooses the form of an answer and nothing else.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

RECORD_KEY = "corral/record"  # in the result's _meta, which these clients do not show to a model
# By the exact name that a client gives itself. docs/mcp.md says how each row was found.
SHOWS_RECORD = {
    "claude-code": "Shows the model the structured content and drops the text.",
    "codex-mcp-client": "Shows the model the structured content and drops the text.",
    "copilot-cli": "Shows the model the text, then the structured content.",
    "Visual Studio Code": "Shows the model the structured content and drops the text.",
    "Visual Studio Code - Insiders": "Shows the model the structured content and drops the text.",
}


async def choose_record_form(ctx: "ServerRequestContext[Any, Any]", call_next: "CallNext") -> "HandlerResult":
    """Answer a request; for a client that shows records, without output schemas and with the record in `_meta`."""
    result = await call_next(ctx)
    params = ctx.session.client_params
    if params is None or params.client_info.name not in SHOWS_RECORD or not isinstance(result, dict):
        return result
    if ctx.method == "tools/list":
        # A client that knows the schema takes an answer without structured content for an error.
        tools = [{key: value for key, value in tool.items() if key != "outputSchema"} for tool in result["tools"]]
        return {**result, "tools": tools}
    if ctx.method == "tools/call" and "structuredContent" in result:
        rest = {key: value for key, value in result.items() if key != "structuredContent"}
        return {**rest, "_meta": {**result.get("_meta", {}), RECORD_KEY: result["structuredContent"]}}
    return result

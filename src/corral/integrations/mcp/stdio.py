"""Serves an MCP client over this process's pipes. A request that the SDK cannot parse gets an error, not silence."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

if TYPE_CHECKING:
    from mcp.server import MCPServer

NOT_TEXT = "Parse error: the message is not JSON, or a text in it has half of a surrogate pair"


async def serve_pipes(server: "MCPServer[Any]") -> None:
    """Serve until the client closes its end."""
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        sender, messages = anyio.create_memory_object_stream[Any](0)
        tasks.start_soon(_forward, read, sender, write)
        # The server's own method for this takes no streams.
        low = server._lowlevel_server
        await low.run(messages, write, low.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _forward(read: Any, sender: Any, write: Any) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with sender:
            async for item in read:
                answer = _answer(item) if isinstance(item, ValidationError) else None
                await (sender.send(item) if answer is None else write.send(SessionMessage(answer)))


def _answer(error: ValidationError) -> JSONRPCError | None:
    """Return the answer to a line that the SDK cannot parse, or None if the line is no request."""
    problem = error.errors(include_url=False)[0]
    # Python's parser accepts half of a surrogate pair, and so finds the id of a message with one.
    with suppress(ValueError, TypeError, RecursionError):
        data = json.loads(problem["input"]) if problem["type"] == "json_invalid" else None
        if isinstance(data, dict) and "method" in data and type(data.get("id")) in (int, str):
            # An id with half of a pair cannot be repeated. The protocol then wants null.
            is_text = str(data["id"]) == str(data["id"]).encode("utf-8", "replace").decode()
            name = data["id"] if is_text else None
            return JSONRPCError(jsonrpc="2.0", id=name, error=ErrorData(code=PARSE_ERROR, message=NOT_TEXT))
    return None

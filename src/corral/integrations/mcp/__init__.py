"""`corral mcp`: an MCP server whose tools check commands, run them in the sandbox and log them. Only this folder imports the SDK."""

from corral.integrations.extras import missing_extra

try:
    from mcp.server import MCPServer as MCPServer  # version 1 of the SDK does not have it
except ImportError as error:
    raise missing_extra("mcp", error) from error

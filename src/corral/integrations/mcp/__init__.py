"""`corral mcp`: commands of any MCP client, judged, contained and logged as all others. Only this folder imports the SDK, which takes a second."""

from corral.integrations.extras import missing_extra

try:
    from mcp.server import MCPServer as MCPServer  # what version 2 of the SDK has and version 1 has not
except ImportError as error:
    raise missing_extra("mcp", error) from error

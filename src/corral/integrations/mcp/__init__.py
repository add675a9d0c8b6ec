"""`corral mcp`: commands of any MCP client, judged, contained and logged as all others. Only this folder imports the SDK, which takes a second."""

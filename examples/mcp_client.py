"""The MCP server, driven by the SDK's own client over stdio: pip install '.[mcp]' in a clone of corral."""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters


async def main() -> None:
    """Start `corral mcp` as a client's settings would, list its tools, call two."""
    command = [sys.executable, "-m", "corral", "mcp", "--root", "."]
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with Client(server) as client:
        print([tool.name for tool in (await client.list_tools()).tools])
        ran = await client.call_tool("run_command", {"shell": "sort notes.txt | head -1"})
        print(ran.structured_content["exit_code"], ran.structured_content["stdout"].strip())
        refused = await client.call_tool("run_command", {"argv": ["sudo", "id"]})
        print(refused.structured_content["denied"], refused.structured_content["instead"])


asyncio.run(main())

"""`corral mcp`: an MCP server for one client on its pipes, or for clients of this machine over HTTP."""

from __future__ import annotations

import os

from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


class MissingError(CorralError):
    """The extra is not installed."""


def main(options: argparse.Namespace) -> int:
    """Serve until the client hangs up, or the server is told to end."""
    try:
        from corral.integrations.mcp import server  # noqa: PLC0415  it takes a second
    except ImportError as error:
        if (error.name or "").startswith("corral"):
            raise
        from corral.integrations.extras import MissingExtraError  # noqa: PLC0415  only a message needs it

        raise MissingError(str(MissingExtraError("corral mcp", "mcp", error))) from None
    if options.http is None:
        server.serve_stdio(options.root, os.environ, profile=options.profile)
    else:
        server.serve_http(
            options.root, os.environ, options.http, profile=options.profile, token_file=options.token_file
        )
    return 0

"""`corral mcp`: serves one MCP client on its pipes, or clients on this machine over HTTP."""

from __future__ import annotations

import os

from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.guard.rules.loader import profile_names
from corral.integrations.extras import MissingExtraError
from corral.model.errors import CorralError

TYPE_CHECKING = False


VERB = Verb(
    "agents",
    "Serve MCP clients: run and check commands as tools.",
    examples="""\
corral mcp                           serve the client that starts corral
corral mcp --root ~/code             serve a client that names its roots; they must be below this one
corral mcp --http 8765               serve clients on this machine; prints the token once on stderr
""",
    notes="""\
Most clients take these settings: {"mcpServers": {"corral": {"command": "corral", "args": ["mcp", "--root", "DIR"]}}}

This needs the extra corral[mcp]. Without it, the error names the command to run. docs/mcp.md describes the tools.
""",
    exit_codes="0 the client disconnected, 125 corral itself failed",
    has_json=False,
    arguments=(
        argument(
            "--root DIR",
            "Use this project, or allow the client to name any project below this directory (default: .).",
            default=".",
        ),
        argument(
            "--profile NAME",
            f"Judge by this profile unless the policy is tighter: {' or '.join(profile_names())}.",
            choices=profile_names(),
        ),
        argument("--http [HOST:]PORT", "Listen on this machine's loopback instead of stdin."),
        argument(
            "--token-file FILE", "Read the token from this file, which must have mode 600, instead of printing one."
        ),
    ),
)


def check_arguments(options: Options, _: list[str]) -> None:
    """Refuse a token without a server that asks for it."""
    if options.token_file and not options.http:
        raise UsageError("--token-file needs --http")


def main(options: Options) -> int:
    """Serve until the client disconnects or a signal ends the server."""
    try:
        from corral.integrations.mcp import server  # noqa: PLC0415  takes a second
    except ImportError as error:
        if (error.name or "").startswith("corral"):
            raise
        raise CorralError(str(MissingExtraError("corral mcp", "mcp", error))) from None
    if options.http is None:
        server.serve_stdio(options.root, os.environ, profile=options.profile)
    else:
        server.serve_http(
            options.root, os.environ, options.http, profile=options.profile, token_file=options.token_file
        )
    return 0

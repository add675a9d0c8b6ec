"""`corral session`: starts the user's own session of a project."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.arguments import ROOT
from corral.apps.cli.session.own_session import OWN, start_own_session
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.render_result import json_text
from corral.policy.loader import load
from corral.sessions.queries import running_sessions

VERB = Verb(
    "run",
    "Start a session: one sandbox for all `corral run` of this project.",
    examples="""\
corral session start
corral session start --root ../other
""",
    notes="""\
`corral run --background` starts processes in it, `corral ps` lists them, and `corral stop` ends them and the session.

Commands of a session share the loopback network, /tmp, HOME and the processes that were started with --background. Each
command is judged as without a session, and ends with all that it started. A command that needs an answer or an opening
runs in a sandbox of its own, as without a session. The session ends with `corral stop`, or after 15 minutes without use.
""",
    exit_codes="0; 125 corral itself failed",
    arguments=(argument("action ACTION", "Only `start` exists.", choices=("start",), completes=("start",)), ROOT),
)


def main(options: Options) -> int:
    """Start the session, unless it runs already."""
    config = load(options.root, os.environ).config
    path = start_own_session(config)
    (session,) = [one for one in running_sessions(os.environ, config.project_root) if one.path == path]
    if options.json:
        print(json_text(session.to_dict()))
    else:
        print(f"corral: the session of {config.project_root} runs ({OWN}, process {session.pid})", file=sys.stderr)
    return 0

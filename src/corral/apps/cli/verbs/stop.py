"""`corral stop`: ends a process of a session, or the sessions of a project with all that runs in them."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.arguments import ROOT
from corral.apps.cli.session.own_session import command_text, find_process, refuse_inside_sandbox
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.sessions import protocol
from corral.sessions.queries import ask, await_end, running_sessions

VERB = Verb(
    "run",
    "End a process of a session, or the sessions of this project.",
    examples="""\
corral stop 3f2a             end this process, and all that it started
corral stop                  end the sessions of this project
corral stop --all            end all sessions
""",
    notes="""\
The next command of an agent starts a new session, if your policy says `sessions = true`.
""",
    exit_codes="0; 125 corral itself failed",
    arguments=(
        argument("id ID", "The process; `corral ps` lists them.", nargs="?", default=""),
        argument("--all", "End the sessions of all projects."),
        ROOT,
    ),
)


def check_arguments(options: Options, _: list[str]) -> None:
    """Require at most one of a process and --all."""
    if options.all and options.id:
        raise UsageError("give only one of: ID, --all")


def main(options: Options) -> int:
    """End one process, or sessions."""
    refuse_inside_sandbox()
    if options.id:
        session, process = find_process(options.id)
        answer = ask(session.path, (protocol.STOP, process["id"]))
        if answer is None or answer[0] != protocol.FACTS:
            raise PolicyError(f"the process {process['id']} cannot be ended: its session does not answer")
        ended, text = [process["id"]], f"ended {process['id']}: {command_text(process)}"
    else:
        sessions = running_sessions(os.environ, "" if options.all else checked_root(options.root))
        for each in sessions:
            ask(each.path, (protocol.STOP,))
        left = [each.pid for each in sessions if not await_end(each.pid)]
        if left:
            raise PolicyError(f"the process {left[0]} of a session does not end; end it with: kill -9 {left[0]}")
        ended = [each.session for each in sessions]
        text = f"ended {', '.join(ended)}" if ended else "no session runs here"
    if options.json:
        print(json_text(ended))
    else:
        print(f"corral: {text}", file=sys.stderr)
    return 0

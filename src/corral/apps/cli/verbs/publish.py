"""`corral publish`: makes a port of a running session reachable from this machine. Only the user at a terminal can do this."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable
from corral.apps.cli.arguments import ROOT, own_port
from corral.apps.cli.questions.terminal_prompt import why_not_owner
from corral.apps.cli.session.publish import (
    choose_session,
    log_publishing,
    publish,
    published_text,
)
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy.loader import load
from corral.sessions.queries import SessionFacts, running_sessions

VERB = Verb(
    "run",
    "Make a port of a running session reachable from your browser.",
    examples="""\
corral publish 3000
corral publish 3000 --at 8080
corral publish --end 3000
corral publish               lists the published ports
""",
    notes="""\
A server in a session listens on the session's own loopback. This forwards the same port of this machine's loopback to
it, or the next free one, and prints the address. Nothing outside this machine can connect, but every user of the machine
can. It ends with the session. Without a session: `corral run --publish PORT`. To publish in each session, set
`publish` in your policy. An agent's command cannot publish a port.
""",
    exit_codes="0; 1 the port was not published; 125 corral itself failed",
    arguments=(
        argument("port PORT", "The port on which a process of the session listens.", nargs="?", type=own_port),
        argument("--at PORT", "The port of this machine (default: the same, or the next that is free).", type=own_port),
        argument("--end", "Stop publishing the port."),
        argument("--session NAME", "The session, as `corral ps` lists it, if several run here.", default=""),
        ROOT,
    ),
)


def check_arguments(options: Options, _: list[str]) -> None:
    """Require a port where something is done with it."""
    if options.port is None and (options.end or options.at):
        raise UsageError("give a port")
    if options.end and options.at:
        raise UsageError("give only one of: --end, --at")


def main(options: Options) -> int:
    """Publish a port, stop that, or list what is published."""
    config = load(options.root, os.environ).config
    sessions = running_sessions(os.environ, config.project_root)
    if options.session:
        sessions = [session for session in sessions if session.session == options.session]
        if not sessions:
            raise PolicyError(f"no session here has the name {printable(options.session)}; list them: corral ps")
    if options.port is None:
        return _list(sessions, options)
    if options.end:
        return _end(sessions, options)
    if why := why_not_owner(os.environ):
        raise PolicyError(f"only a person at a terminal can publish a port, and {why}; set publish in your own policy")
    session = choose_session(sessions, options.port)
    log_publishing(config, options.port)
    facts = publish(session.path, options.port, options.at or 0)
    print(json_text(facts) if options.json else printable(published_text(facts)))
    if options.port not in session.ports and not options.json:
        print("corral: no process of the session listens on it yet", file=sys.stderr)
    return 0


def _end(sessions: list[SessionFacts], options: Options) -> int:
    ended = [publish(each.path, options.port, 0, ends=True)["was_published"] for each in sessions]
    if options.json:
        print(json_text({"port": options.port, "ended": any(ended)}))
    else:
        text = "is no longer published" if any(ended) else "was not published"
        print(f"corral: port {options.port} {text}", file=sys.stderr)
    return 0 if any(ended) else 1


def _list(sessions: list[SessionFacts], options: Options) -> int:
    if options.json:
        print(json_text([{"session": each.session, **facts} for each in sessions for facts in each.published]))
        return 0
    lines = [f"{each.session}  {text}" for each in sessions for text in each.published_texts()]
    print("\n".join(map(printable, lines or ["No port of a session is published here."])))
    return 0

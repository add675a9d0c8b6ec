"""`corral ps`: lists the sessions of this user and the processes in them."""

from __future__ import annotations

import os
import sys
from time import time

from corral._lib.terminal import clip, printable, terminal_of
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.session.own_session import command_text
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.paused import paused_since
from corral.sessions.queries import running_sessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from corral._lib.terminal import Terminal
    from corral.sessions.queries import SessionFacts

VERB = Verb(
    "inspect",
    "List the sessions, and the processes that run in them.",
    examples="""\
corral ps
corral ps --all              of all projects
corral ps --json | jq -r '.[].processes[].id'
""",
    notes="""\
A session is named by its agent's host and the host's id of it; `user` is the one of `corral session start`. A process is
`waited for` if a program waits for its output, such as the agent's host. The others were started with --background.
""",
    exit_codes="0; 125 corral itself failed",
    arguments=(argument("--all", "List the sessions of all projects."), ROOT),
)


def main(options: Options) -> int:
    """List the sessions."""
    found = running_sessions(os.environ, "" if options.all else checked_root(options.root))
    if options.json:
        print(json_text([session.to_dict() for session in found]))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    if paused_since(checked_root(options.root), os.environ):
        print("This project is paused: agents run commands here outside the sandbox. To guard it again: corral resume")
    lines = [line for session in found for line in _lines(session, terminal)]
    print("\n".join(lines or ["No session runs here."]))
    return 0


def _lines(session: SessionFacts, terminal: Terminal) -> Iterator[str]:
    dot = terminal.sign("dot")
    ports = f" {dot} ports {', '.join(map(str, session.ports))}" if session.ports else ""
    head = terminal.paint("head", printable(session.session))
    yield f"{head} {dot} {printable(session.root)} {dot} process {session.pid}{ports}"
    for text in session.published_texts():
        yield f"  published: {printable(text)}"
    for process in session.processes:
        head = f"  {process['id']}  {_state(dict(process)):<12} {_age(float(process['started_at'])):>6}  "
        yield head + clip(command_text(dict(process)), max(terminal.columns - len(head), 20), terminal.sign("cut"))


def _state(process: dict[str, Any]) -> str:
    if not process["background"]:
        return "waited for"
    return "background" if process["running"] else f"ended {process['exit_code']}"


def _age(started_at: float) -> str:
    seconds = max(int(time() - started_at), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"

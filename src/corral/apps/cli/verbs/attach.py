"""`corral attach`: connects this terminal to a background process of a session."""

from __future__ import annotations

from corral.apps.cli.session.own_session import find_process, refuse_inside_sandbox
from corral.apps.cli.session.process_output import show_output
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.errors import PolicyError

VERB = Verb(
    "run",
    "Connect to a background process: its output is shown, and what you type goes to its input.",
    examples="""\
corral attach 3f2a
""",
    notes="""\
Ctrl-C disconnects, and the process runs on. `corral stop ID` ends it. The process has pipes, not a terminal.
""",
    exit_codes="the process's own, if it ends meanwhile; 130 after Ctrl-C; 125 corral itself failed",
    has_json=False,
    arguments=(argument("id ID", "The process; `corral ps` lists them."),),
)


def main(options: Options) -> int:
    """Show output and pass input on until the process ends."""
    refuse_inside_sandbox()
    session, process = find_process(options.id)
    if not process["background"]:
        raise PolicyError("a program waits for this process, so nothing else can be connected to it")
    return show_output(session.path, process["id"], follow=True, takes_input=True)

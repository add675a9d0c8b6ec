"""`corral logs`: prints what a background process of a session has printed."""

from __future__ import annotations

import sys

from corral.apps.cli.session.own_session import find_process
from corral.apps.cli.session.process_output import show_output
from corral.apps.cli.verb import Options, Verb, argument

VERB = Verb(
    "inspect",
    "Print the output of a background process.",
    examples="""\
corral logs 3f2a
corral logs -f 3f2a          until the process ends, or Ctrl-C
""",
    notes="""\
A session keeps the latest output of each process, up to a limit. The output is printed as it is. Use `corral logs ID | cat -v` if a process
that you do not trust could send control characters to your terminal.
""",
    exit_codes="0; with -f the process's own; 125 corral itself failed",
    has_json=False,
    arguments=(
        argument("id ID", "The process; `corral ps` lists them."),
        argument("-f --follow", "Go on until the process ends."),
    ),
)


def main(options: Options) -> int:
    """Print the output, and follow it if the user wants that."""
    session, process = find_process(options.id)
    if process["background"]:
        return show_output(session.path, process["id"], follow=options.follow, takes_input=False)
    print("corral: its output goes to the program that waits for it", file=sys.stderr)
    return 0

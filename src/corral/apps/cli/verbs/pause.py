"""`corral pause`: stops guarding one project until `corral resume`. Only the user at a terminal can do this."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.questions.terminal_prompt import YES, TerminalPrompt, why_not_owner
from corral.apps.cli.verb import Options, Verb
from corral.audit.audit_log import Log
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.paused import pause, paused_since

DECLINED_STATUS = 1
VERB = Verb(
    "agents",
    "Stop guarding this project, until `corral resume`.",
    examples="""\
corral pause
corral pause --root ../other
""",
    notes="""\
Hooks then let every call of an agent in this project pass: not judged, not in the sandbox, with the host's own questions
only. `corral run` and the library still judge and contain. `corral status`, `corral doctor` and `corral ps` say that the
project is paused, and the log has a line for each call. corral asks you, and refuses in an agent's shell.
""",
    exit_codes="0; 1 you said no; 125 corral itself failed",
    arguments=(ROOT,),
)


def main(options: Options) -> int:
    """Pause the project if the user agrees."""
    root = checked_root(options.root)
    if paused_since(root, os.environ):
        return _report(options, root, f"{root} is paused already.")
    if why := why_not_owner(os.environ):
        raise PolicyError(f"only a person at a terminal can pause a project, and {why}")
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        prompt.write(
            f"\n{printable(root)}\nAgents will run commands here outside the sandbox, and corral judges none of them.\n\n"
        )
        if prompt.ask(terminal.paint("head", "Pause until corral resume? [y]es, [N]o") + " > ") not in YES:
            print("Nothing was changed.", file=sys.stderr)
            return DECLINED_STATUS
        # Logged first: if the log cannot be written, nothing is paused.
        Log(event="trust").note({"files": [root], "decision": "allow", "reason": "the user paused the project"})
        pause(root, os.environ)
        return _report(options, root, "Paused. To guard the project again: corral resume")
    return DECLINED_STATUS  # interrupted


def _report(options: Options, root: str, text: str) -> int:
    if options.json:
        print(json_text({"root": root, "paused": True}))
    else:
        print(printable(text), file=sys.stderr)
    return 0

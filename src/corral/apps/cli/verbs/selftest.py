"""`corral selftest`: a battery of attempts on the sandbox that `run` would use. Leaves nothing behind, also when interrupted."""

from __future__ import annotations

import os
import sys
from signal import SIGHUP, SIGTERM, default_int_handler, signal

from corral._lib.terminal import terminal_of
from corral.apps.selftest.attacks import all_attacks
from corral.apps.selftest.report import GROUPS, heading, outcome_text, status, summary, to_dict
from corral.apps.selftest.run_attacks import Outcome, Selftest
from corral.model.render_result import json_text
from corral.policy.config import Containment, SandboxConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Make the attempts; 0 only if all held."""
    for number in (SIGTERM, SIGHUP):
        # As Ctrl-C: an exception, so that everything is closed on the way out.
        signal(number, default_int_handler)
    terminal = terminal_of(sys.stdout, os.environ)
    config = SandboxConfig(
        options.root, profile=options.profile, containment=Containment(backend=options.backend, scratch="project")
    )
    outcomes: list[Outcome] = []
    with Selftest(config) as test:
        if not options.json:
            print(heading(test.setting, len(all_attacks()), terminal), flush=True)
        for outcome in test.outcomes():
            if not options.json:
                if not outcomes or outcomes[-1].attempt.group != outcome.attempt.group:
                    print(f"\n{terminal.paint('head', GROUPS[outcome.attempt.group])}")
                print(outcome_text(outcome, terminal), flush=True)
            outcomes.append(outcome)
        if options.json:
            print(json_text(to_dict(test.setting, outcomes)))
        else:
            print(f"\n{summary(outcomes, terminal)}")
    return status(outcomes)

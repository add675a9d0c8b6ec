"""`corral selftest`: attacks the sandbox that `corral run` would start. Leaves nothing behind, even when interrupted."""

from __future__ import annotations

import os
import sys

from corral._lib.signals import raise_on_termination
from corral._lib.terminal import terminal_of
from corral.apps.cli.arguments import BACKEND, DEFAULT_PROFILE, ROOT, profile
from corral.apps.cli.verb import Options, Verb
from corral.apps.selftest.attacks import all_attacks
from corral.apps.selftest.report import GROUPS, heading, outcome_text, status, summary, to_dict
from corral.apps.selftest.run_attacks import Outcome, Selftest
from corral.model.render_result import json_text
from corral.policy.config import Containment, SandboxConfig

TYPE_CHECKING = False


VERB = Verb(
    "machine",
    "Attack the sandbox harmlessly and show which attacks failed.",
    examples="""\
corral selftest
corral selftest --profile strict --json
""",
    notes="""\
corral makes each attempt twice: in a sandbox as `corral run` starts it, where it must fail, and outside one on a target
of its own, where it must succeed. An attempt that fails outside too proves nothing. corral creates the targets and
removes them.
""",
    exit_codes="0 all held, 1 something did not, 3 nothing got out but something could not be shown, 125 corral itself failed",
    arguments=(profile(), ROOT, BACKEND),
)


def main(options: Options) -> int:
    """Make the attempts. Returns 0 only if all were held."""
    raise_on_termination()
    terminal = terminal_of(sys.stdout, os.environ)
    containment = Containment(backend=options.backend, scratch="project")
    config = SandboxConfig(options.root, profile=options.profile or DEFAULT_PROFILE, containment=containment)
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

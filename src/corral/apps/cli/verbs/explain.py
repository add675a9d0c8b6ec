"""`corral explain`: the whole reasoning about one call. Runs nothing."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import terminal_of
from corral.apps.cli.verbs.check import call_of, config_of, machine_of
from corral.guard.evaluate import trace, vet
from corral.guard.rules.loader import effects
from corral.model.render_result import CHECK_STATUS, Explanation, explain_text, json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Show how the call is judged; the exit code is the decision."""
    config, call = config_of(options), call_of(options)
    axis_of = {key: str(row["axis"]) for key, row in effects().items()}
    machine = machine_of(config)
    verdict = vet(call, config, machine)
    reasoning = Explanation(
        call, verdict, trace(call, config, machine), axis_of, config.rules.name, config.project_root
    )
    if options.json:
        print(json_text(reasoning.to_dict()))
    else:
        print(explain_text(reasoning, terminal_of(sys.stdout, os.environ)))
    return CHECK_STATUS[verdict.decision]

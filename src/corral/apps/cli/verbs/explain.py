"""`corral explain`: prints how the guard judges one call, part by part. Runs nothing."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import terminal_of
from corral.apps.cli.arguments import call_arguments, call_usage, check_call
from corral.apps.cli.call import call_of, config_of, machine_of
from corral.apps.cli.verb import Options, Verb
from corral.guard.evaluate import trace, vet
from corral.guard.rules.loader import effects
from corral.model.render_result import CHECK_STATUS, Explanation, explain_text, json_text

TYPE_CHECKING = False


VERB = Verb(
    "run",
    "Show how the guard judges a command, part by part. Runs nothing.",
    examples="""\
corral explain -- python3 -c 'print(1)'
corral explain --profile strict --shell 'cd src && cat ../../secret'
corral explain --json -- git clean -fdx
""",
    exit_codes="0 allow, 3 ask, 126 deny, 125 corral itself failed",
    usage=call_usage("explain"),
    command_after="",
    arguments=(*call_arguments(),),
)


check_arguments = check_call


def main(options: Options) -> int:
    """Print the explanation and return the exit code of the verdict."""
    config, call = config_of(options), call_of(options)
    axis_of = {key: str(row["axis"]) for key, row in effects().items()}
    machine = machine_of(config)
    verdict = vet(call, config, machine)
    steps = trace(call, config, machine)
    explanation = Explanation(call, verdict, steps, axis_of, config.rules.name, config.project_root)
    if options.json:
        print(json_text(explanation.to_dict()))
    else:
        print(explain_text(explanation, terminal_of(sys.stdout, os.environ)))
    return CHECK_STATUS[verdict.decision]

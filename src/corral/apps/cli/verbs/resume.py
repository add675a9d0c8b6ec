"""`corral resume`: guards a project again that `corral pause` has paused."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.verb import Options, Verb
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.paused import resume

VERB = Verb(
    "agents",
    "Guard this project again, after `corral pause`.",
    examples="""\
corral resume
""",
    exit_codes="0; 125 corral itself failed",
    arguments=(ROOT,),
)


def main(options: Options) -> int:
    """End the pause of the project."""
    root = checked_root(options.root)
    was_paused = resume(root, os.environ)
    if options.json:
        print(json_text({"root": root, "paused": False}))
    else:
        text = f"corral guards {root} again." if was_paused else f"{root} is not paused."
        print(printable(text), file=sys.stderr)
    return 0

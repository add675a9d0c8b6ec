"""`corral discard`: deletes the pending changes of a transaction. The project stays as it is."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.arguments import ROOT
from corral.apps.cli.transactions import TRANSACTION_ID, log_transaction, refuse_inside_sandbox
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.render_result import json_text
from corral.policy.loader import load
from corral.transactions.transaction import log_fields
from corral.transactions.workspace import pending, waiting

TYPE_CHECKING = False


VERB = Verb(
    "review",
    "Delete the pending changes of a transaction. The project stays as it is.",
    examples="""\
corral discard
corral discard 3f2a91c0
corral discard --all              discard everything that is pending in this project
""",
    exit_codes="0; 125 corral itself failed",
    arguments=(TRANSACTION_ID, argument("--all", "Discard all pending transactions of this project."), ROOT),
)


def main(options: Options) -> int:
    """Discard one pending transaction, or all."""
    refuse_inside_sandbox()
    config = load(options.root, os.environ).config
    root = config.project_root
    places = pending(root, os.environ) if options.all and not options.id else [waiting(root, os.environ, options.id)]
    for place in places:
        place.remove()
        log_transaction(config, log_fields(place.id, "discarded"))
    if options.json:
        found = [{"id": place.id, "outcome": "discarded"} for place in places]
        print(json_text(found if options.all else found[0]))
    else:
        named = ", ".join(place.id for place in places) or "nothing"
        print(f"corral: discarded {named}; the project is unchanged", file=sys.stderr)
    return 0

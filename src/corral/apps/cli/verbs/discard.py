"""`corral discard`: forgets what a transaction has left waiting. The project stays as it is."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.verbs.try_ import note, refuse_inside
from corral.model.render_result import json_text
from corral.policy.loader import load
from corral.transactions.transaction import log_fields
from corral.transactions.workspace import pending, waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Discard what waits: one, or all."""
    refuse_inside()
    config = load(options.root, os.environ).config
    root = config.project_root
    places = pending(root, os.environ) if options.all and not options.id else [waiting(root, os.environ, options.id)]
    for place in places:
        place.remove()
        note(config, log_fields(place.id, "discarded"))
    if options.json:
        found = [{"id": place.id, "outcome": "discarded"} for place in places]
        print(json_text(found if options.all else found[0]))
    else:
        named = ", ".join(place.id for place in places) or "nothing"
        print(f"corral: discarded {named}; the project is as it was", file=sys.stderr)
    return 0

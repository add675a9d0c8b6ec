"""`corral discard`: forgets what a transaction has left waiting. The project stays as it is."""

from __future__ import annotations

import os
import sys

from corral.cli.trying import note, refuse_inside
from corral.policy import load
from corral.record import json_text
from corral.transaction import noted
from corral.transactions.place import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Discard what waits."""
    refuse_inside()
    config = load(options.root, os.environ).config
    place = waiting(config.project_root, os.environ, options.id)
    place.remove()
    note(config, noted(place.id, "discarded"))
    if options.json:
        print(json_text({"id": place.id, "outcome": "discarded"}))
    else:
        print(f"corral: {place.id} is discarded; the project is as it was", file=sys.stderr)
    return 0

"""`corral apply`: writes to the project what a transaction has left waiting."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.verbs.try_ import TAKE_BACK, note, refuse_agents, told
from corral.containment.state import ContainmentState
from corral.policy.loader import load
from corral.transactions.apply import Look, apply
from corral.transactions.transaction import log_fields
from corral.transactions.workspace import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Apply what waits; 125 where something in the project stands in the way, and it goes on waiting."""
    refuse_agents("what an agent's command changed is the owner's to apply")
    config = load(options.root, os.environ).config
    place = waiting(config.project_root, os.environ, options.id)
    holding = ContainmentState(config)
    facts = place.facts()
    try:
        with Look(config.project_root, place, holding.kept(), holding.programs()) as look:
            applied = apply(look, os.environ, options.paths or None, facts["commands"])
        if applied.ok and not options.paths:
            place.remove()
    finally:
        place.release()
    became = "applied" if applied.ok else "conflict"
    note(config, log_fields(place.id, became, applied.changes, applied, in_part=applied.ok and bool(options.paths)))
    status = told(applied, "applied", TAKE_BACK, as_json=options.json)
    if not applied.ok and not options.json:
        here = f"corral apply {place.id} PATH…"
        print(f"corral: it goes on waiting. A part of it: {here}; or corral discard {place.id}", file=sys.stderr)
    return status

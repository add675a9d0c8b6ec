"""`corral apply`: writes to the project what a transaction has left waiting."""

from __future__ import annotations

import os
import sys

from corral.cli.changetext import applied_lines
from corral.cli.trying import note, refuse_inside
from corral.cli.waiting import why_not_ours
from corral.containment.holding import Holding
from corral.errors import TransactionError
from corral.policy import load
from corral.record import FAILURE_STATUS, json_text
from corral.terminal import terminal_of
from corral.transactions.applying import Look, apply
from corral.transactions.place import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Apply what waits; 125 where something in the project stands in the way, and it goes on waiting."""
    refuse_inside()
    why = why_not_ours(os.environ)
    if why:
        raise TransactionError(f"what an agent's command changed is the owner's to apply, and {why}")
    config = load(options.root, os.environ).config
    place = waiting(config.project_root, os.environ, options.id)
    holding = Holding(config)
    facts = place.facts()
    try:
        with Look(config.project_root, place, holding.kept(), holding.programs()) as look:
            applied = apply(look, os.environ, options.paths or None, facts["commands"])
        if applied.ok and not options.paths:
            place.remove()
    finally:
        place.release()
    note(config, place.id, "applied" if applied.ok else "conflict", applied)
    if options.json:
        print(json_text(applied.to_dict()))
    else:
        lines = applied_lines(applied, terminal_of(sys.stderr, os.environ), "applied; to take it back: corral undo")
        print("\n".join(lines), file=sys.stderr)
    return 0 if applied.ok else FAILURE_STATUS

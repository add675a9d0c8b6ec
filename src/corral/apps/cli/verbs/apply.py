"""`corral apply`: writes the pending changes of a transaction to the project."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.arguments import ROOT
from corral.apps.cli.transactions import TRANSACTION_ID, UNDO_HINT, log_transaction, print_applied, refuse_agent_shell
from corral.apps.cli.verb import Options, Verb, argument
from corral.containment.state import ContainmentState
from corral.policy.loader import load
from corral.transactions.apply import LayerView, apply
from corral.transactions.transaction import log_fields
from corral.transactions.workspace import waiting

VERB = Verb(
    "review",
    "Write the pending changes of a transaction to the project.",
    examples="""\
corral apply                      apply the only transaction that is pending here
corral apply 3f2a91c0             apply this one; `corral history` lists the ids
corral apply 3f2a91c0 src docs    apply only the changes below these paths; the rest stays pending
""",
    notes="""\
corral refuses this in an agent's shell and inside a sandbox.
""",
    exit_codes="0 applied, 125 a file was changed in the meantime or corral itself failed, and nothing was applied",
    usage=("apply [options] [ID [PATH ...]]",),
    arguments=(TRANSACTION_ID, argument("paths PATH", "Apply only the changes below this path.", nargs="*"), ROOT),
)


def main(options: Options) -> int:
    """Apply the changes. On a conflict, apply nothing, keep the transaction pending and return 125."""
    refuse_agent_shell("apply")
    config = load(options.root, os.environ).config
    place = waiting(config.project_root, os.environ, options.id)
    holding = ContainmentState(config)
    facts = place.facts()
    try:
        with LayerView(config.project_root, place, holding.kept()) as look:
            applied = apply(look, os.environ, options.paths or None, facts["commands"])
        if applied.ok and not options.paths:
            place.remove()
    finally:
        place.release()
    outcome = "applied" if applied.ok else "conflict"
    in_part = applied.ok and bool(options.paths)
    log_transaction(config, log_fields(place.id, outcome, applied.changes, applied, in_part=in_part))
    status = print_applied(applied, "applied", UNDO_HINT, as_json=options.json)
    if not applied.ok and not options.json:
        print(
            f"corral: the transaction is still pending. Apply a part of it: corral apply {place.id} PATH; "
            f"or discard it: corral discard {place.id}",
            file=sys.stderr,
        )
    return status

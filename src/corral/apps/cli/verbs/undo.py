"""`corral undo`: restores the files as they were before a transaction was applied, unless one was changed since."""

from __future__ import annotations

import os

from corral.apps.cli.arguments import ROOT
from corral.apps.cli.transactions import log_transaction, print_applied, refuse_agent_shell
from corral.apps.cli.verb import Options, Verb, argument
from corral.policy.loader import load
from corral.transactions.transaction import log_fields
from corral.transactions.undo import undo

TYPE_CHECKING = False


VERB = Verb(
    "review",
    "Undo the transaction that was applied last.",
    examples="""\
corral undo                       undo the last one
corral undo 3f2a91c0              undo another one, by its id or the start of it
""",
    notes="""\
corral restores contents, modes, links and times exactly. If one of the files was changed since, it undoes nothing.
""",
    exit_codes="0 undone, 125 a file was changed since or corral itself failed, and nothing was undone",
    arguments=(
        argument(
            "id ID",
            "Use this transaction; the start of its id is enough (default: the one applied last).",
            nargs="?",
            default="",
        ),
        ROOT,
    ),
)


def main(options: Options) -> int:
    """Undo the last applied transaction, or the one named. Returns 125 if a file was changed since; nothing is undone then."""
    refuse_agent_shell("undo")
    config = load(options.root, os.environ).config
    done = undo(config.project_root, os.environ, options.id)
    # A transaction that was applied in parts has one id per part; each begins with the transaction's id.
    transaction = done.id.partition("-")[0]
    log_transaction(config, log_fields(transaction, "undone" if done.ok else "not undone", done.changes, done))
    return print_applied(done, f"undone {done.id}", "the project is as it was before", as_json=options.json)

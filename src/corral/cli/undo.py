"""`corral undo`: restores what was there before a transaction was applied, unless somebody has changed it since."""

from __future__ import annotations

import os
import sys

from corral.cli.changetext import applied_lines
from corral.cli.trying import note, refuse_inside
from corral.cli.waiting import why_not_ours
from corral.errors import TransactionError
from corral.policy import load
from corral.record import FAILURE_STATUS, json_text
from corral.terminal import terminal_of
from corral.transactions.applying import undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Undo the last application, or the one that is named; 125 where something was changed since, and nothing was undone."""
    refuse_inside()
    why = why_not_ours(os.environ)
    if why:
        raise TransactionError(f"what was applied is the owner's to undo, and {why}")
    config = load(options.root, os.environ).config
    done = undo(config.project_root, os.environ, options.id)
    note(config, done.id, "undone" if done.ok else "conflict", done)
    if options.json:
        print(json_text(done.to_dict()))
    else:
        lines = applied_lines(
            done, terminal_of(sys.stderr, os.environ), f"undone: {done.id}; the project is as it was before"
        )
        print("\n".join(lines), file=sys.stderr)
    return 0 if done.ok else FAILURE_STATUS

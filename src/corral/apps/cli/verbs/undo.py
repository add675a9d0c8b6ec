"""`corral undo`: restores what was there before a transaction was applied, unless somebody has changed it since."""

from __future__ import annotations

import os

from corral.apps.cli.verbs.try_ import note, refuse_agents, told
from corral.policy.loader import load
from corral.transactions.apply import undo
from corral.transactions.transaction import log_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Undo the last application, or the one that is named; 125 where something was changed since, and nothing was undone."""
    refuse_agents("what was applied is the owner's to undo")
    config = load(options.root, os.environ).config
    done = undo(config.project_root, os.environ, options.id)
    # What was applied in parts has an id for each, which begins with the transaction's.
    note(config, log_fields(done.id.partition("-")[0], "undone" if done.ok else "not undone", done.changes, done))
    return told(done, f"undone {done.id}", "the project is as it was before", as_json=options.json)

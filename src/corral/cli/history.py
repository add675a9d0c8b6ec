"""`corral history`: the transactions of a project, those that wait and those that were applied or undone. Changes nothing."""

from __future__ import annotations

import os
import sys

from corral.cli.changetext import change_line
from corral.cli.trying import refuse_inside
from corral.clock import utc
from corral.config import checked_root
from corral.record import json_text
from corral.terminal import clip, terminal_of, visible
from corral.transactions.applying import history
from corral.transactions.changes import Change, summary
from corral.transactions.place import pending

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral.terminal import Terminal

STYLES = {"applied": "allow", "undone": "dim", "waits": "ask", "kept": "deny"}


def main(options: argparse.Namespace) -> int:
    """Show them, the latest first."""
    refuse_inside()
    root = checked_root(options.root)
    waiting = []
    for place in pending(root, os.environ):
        facts = place.facts()
        waiting.append(
            {
                "id": place.id,
                "state": "waits",
                "applied_at": place.begun_ns / 1e9,
                "commands": facts["commands"],
                "changes": [],
            }
        )
        place.release()
    entries = [*reversed(waiting), *(entry.to_dict() for entry in history(root, os.environ))]
    if options.json:
        print(json_text(entries))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    for entry in entries:
        print("\n".join(_lines(entry, terminal, verbose=options.verbose)))
    if not entries:
        print("corral: no transaction was applied here, and none waits", file=sys.stderr)
    return 0


def _lines(entry: dict[str, object], terminal: Terminal, *, verbose: bool) -> list[str]:
    state, commands = str(entry["state"]), entry["commands"]
    changes = [Change(**change) for change in entry["changes"]]  # type: ignore[attr-defined]  # as it was written
    words = visible("; ".join(commands)) if isinstance(commands, list) else ""
    told = f"corral apply {entry['id']}" if state == "waits" else summary(changes)
    when = utc(float(str(entry["applied_at"])))[:19].replace("T", " ")
    lines = [f"{terminal.paint(STYLES[state], f'{state:8}')} {entry['id']!s:17}  {when}  {told}"]
    lines.append(terminal.paint("dim", clip(f"         {words}", terminal.columns, terminal.sign("cut"))))
    return lines + ([change_line(change, terminal) for change in changes] if verbose else [])

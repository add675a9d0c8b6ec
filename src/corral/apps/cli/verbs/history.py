"""`corral history`: lists the transactions of a project: pending, applied and undone. Changes nothing."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import Terminal, clip, printable, terminal_of
from corral._lib.timestamps import format_utc
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.transactions import change_line, diff_lines, refuse_inside_sandbox
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.errors import TransactionError
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.transactions.apply import LayerView
from corral.transactions.changes import Change, summary
from corral.transactions.undo import history
from corral.transactions.workspace import Place, pending

STYLES = {"applied": "allow", "undone": "dim", "waits": "ask", "kept": "deny"}
VERB = Verb(
    "review",
    "List the transactions of this project.",
    examples="""\
corral history
corral history --verbose          list every path too
corral history 3f2a91c0           show one transaction, with its diff while it is pending
corral history --json | jq -r '.[] | select(.state == "waits") | .id'
""",
    notes="""\
Lists pending transactions, and those that were applied or undone in the last 30 days, the latest first.
""",
    exit_codes="0; 125 corral itself failed",
    arguments=(
        argument("id ID", "Show only this transaction, with its diff while it is pending.", nargs="?", default=""),
        argument("-v --verbose", "List every changed path."),
        ROOT,
    ),
)


def main(options: Options) -> int:
    """Print the transactions, the latest first."""
    refuse_inside_sandbox()
    root = checked_root(options.root)
    places = pending(root, os.environ)
    try:
        entries = [
            *(_pending_entry(place) for place in reversed(places)),
            *(each.to_dict() for each in history(root, os.environ)),
        ]
        shown = [entry for entry in entries if str(entry["id"]).startswith(options.id)]
        if options.id and not shown:
            raise TransactionError(f"no transaction of {root} has an id that begins with {options.id!r}")
        if options.id and len(shown) == 1:
            for place in places:
                if place.id == shown[0]["id"]:
                    shown[0]["diff"] = _diff(root, place)
    finally:
        for place in places:
            place.release()
    if options.json:
        print(json_text(shown))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    for entry in shown:
        print("\n".join(_lines(entry, terminal, verbose=options.verbose or bool(options.id))))
        if "diff" in entry:
            print("\n".join(["", *diff_lines(str(entry["diff"]), terminal)]))
    if places and not options.id:
        hint = "to see pending changes: corral history ID; then corral apply ID or corral discard ID"
        print(f"corral: {hint}", file=sys.stderr)
    if not shown:
        print("corral: this project has no transactions", file=sys.stderr)
    return 0


def _pending_entry(place: Place) -> dict[str, object]:
    facts = place.facts()
    return {
        "id": place.id,
        "state": "waits",
        "applied_at": place.begun_ns / 1e9,
        "commands": facts["commands"],
        "changes": facts["changes"],
    }


def _diff(root: str, place: Place) -> str:
    from corral.containment.state import ContainmentState  # noqa: PLC0415  only a diff needs it
    from corral.policy.loader import load  # noqa: PLC0415

    holding = ContainmentState(load(root, os.environ).config)
    with LayerView(root, place, holding.kept()) as look:
        return look.diff()


def _lines(entry: dict[str, object], terminal: Terminal, *, verbose: bool) -> list[str]:
    state, commands = str(entry["state"]), entry["commands"]
    changes = [Change(**change) for change in entry["changes"]]  # type: ignore[attr-defined]  # a list of dicts
    text = printable("; ".join(commands)) if isinstance(commands, list) else ""
    when = format_utc(float(str(entry["applied_at"])))[:19].replace("T", " ")
    lines = [f"{terminal.paint(STYLES[state], f'{state:8}')} {entry['id']!s:17}  {when}  {summary(changes)}"]
    lines.append(terminal.paint("dim", clip(f"         {text}", terminal.columns, terminal.sign("cut"))))
    return lines + ([change_line(change, terminal) for change in changes] if verbose else [])

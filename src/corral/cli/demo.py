"""`corral demo`: the battery as a table for people and as JSON. Fails if any outcome is not as expected."""

from __future__ import annotations

import os
import sys

from corral.demo import CASES, Outcome, row_text, run_demo
from corral.record import json_text
from corral.terminal import terminal_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Run the demo; 0 only if every outcome is as expected."""
    if options.what == "agent":
        from corral.cli import agentdemo  # noqa: PLC0415  it needs an extra

        return agentdemo.main(options)
    terminal = terminal_of(sys.stderr, os.environ)
    outcomes: list[Outcome] = []
    if not options.json:
        print(f"{len(CASES)} calls in a temporary project, under the profile strict", file=sys.stderr)
    for outcome in run_demo():
        if not options.json:
            if not outcomes or outcomes[-1].case.group != outcome.case.group:
                print(f"\n{terminal.paint('head', outcome.case.group)}", file=sys.stderr)
            print(row_text(outcome, terminal), file=sys.stderr, flush=True)
        outcomes.append(outcome)
    right = sum(outcome.as_expected for outcome in outcomes)
    if not options.json:
        said = f"{right} of {len(CASES)} outcomes are as expected"
        print(f"\n{terminal.paint('allow' if right == len(CASES) else 'deny', said)}\n", file=sys.stderr)
    print("[" + ",\n ".join(json_text(outcome.to_dict()) for outcome in outcomes) + "]")
    return 0 if right == len(CASES) else 1

"""`corral policy`: what holds in a project and where it comes from, whether the examples hold, and the schema of the files."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import terminal_of, visible
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.examples import outcomes
from corral.policy.json_schema import schema
from corral.policy.loader import load, owner_file, project_file, read
from corral.policy.parser import parse
from corral.policy.render_policy import lines, to_dict

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral._lib.terminal import Terminal
    from corral.policy.examples import Outcome

FAILED_STATUS = 1


def main(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    return {"show": _show, "test": _test, "schema": _schema}[options.action](options)


def _show(options: argparse.Namespace) -> int:
    policy = load(options.root, os.environ, profile=options.profile)
    if options.json:
        print(json_text(to_dict(policy)))
    else:
        print("\n".join(lines(policy, terminal_of(sys.stdout, os.environ))))
    return 0


def _test(options: argparse.Namespace) -> int:
    """Judge every example of both files; all are told, and one that does not hold fails."""
    root = checked_root(options.root)
    terminal = terminal_of(sys.stdout, os.environ)
    told: list[tuple[str, Outcome]] = []
    for level, path in (("owner", owner_file(os.environ)), ("project", project_file(root))):
        data = read(path, root, level)
        if data is not None:
            told += [(path, outcome) for outcome in outcomes(parse(data, path))]
    if options.json:
        print(json_text([_facts(path, outcome) for path, outcome in told]))
    for path, outcome in [] if options.json else told:
        print("\n".join(_lines(path, outcome, terminal)))
    wrong = sum(bool(outcome.wrong) for _, outcome in told)
    if not wrong:
        # What only shows when the files are merged: grants, contradictions.
        load(root, os.environ, profile=options.profile)
    if not options.json:
        held = "no policy file has examples" if not told else f"{len(told) - wrong} of {len(told)} examples hold"
        print(held, file=sys.stderr)
    return FAILED_STATUS if wrong else 0


def _facts(path: str, outcome: Outcome) -> dict[str, object]:
    return {
        "path": path,
        "line": outcome.line,
        "column": outcome.column,
        "rule": outcome.words,
        "example": outcome.text,
        "wanted": str(outcome.wanted),
        "decision": str(outcome.decision),
        "wrong": outcome.wrong,
    }


def _lines(path: str, outcome: Outcome, terminal: Terminal) -> list[str]:
    place = terminal.paint("dim", f"{visible(path)}:{outcome.line}:{outcome.column}")
    if not outcome.wrong:
        sign = terminal.paint("allow", terminal.sign("allow"))
        return [f"{sign} {place} {outcome.decision!s:5} {visible(outcome.text)}"]
    return [f"{terminal.paint('deny', terminal.sign('deny'))} {place} {visible(outcome.wrong)}"]


def _schema(_: argparse.Namespace) -> int:
    import json  # noqa: PLC0415  indented, for a file

    print(json.dumps(schema(), indent=2))
    return 0

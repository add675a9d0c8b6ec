"""`corral policy`: what holds in a project and where it comes from, whether the examples hold, and the schema of the files."""

from __future__ import annotations

import os
import sys

from corral import model
from corral._lib.terminal import printable, terminal_of
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.loader import load, project_policy_path, read_policy_file, user_policy_path
from corral.policy.parser import parse
from corral.policy.render_policy import policy_lines, to_dict
from corral.policy.rule_examples import judge_examples

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral._lib.terminal import Terminal
    from corral.policy.rule_examples import ExampleResult

FAILED_STATUS = 1


def main(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    return {"show": _show, "test": _test, "schema": _schema}[options.action](options)


def _show(options: argparse.Namespace) -> int:
    policy = load(options.root, os.environ, profile=options.profile)
    if options.json:
        print(json_text(to_dict(policy)))
    else:
        print("\n".join(policy_lines(policy, terminal_of(sys.stdout, os.environ))))
    return 0


def _test(options: argparse.Namespace) -> int:
    """Judge every example of both files; all are told, and one that does not hold fails."""
    root = checked_root(options.root)
    terminal = terminal_of(sys.stdout, os.environ)
    told: list[tuple[str, ExampleResult]] = []
    for level, path in (("owner", user_policy_path(os.environ)), ("project", project_policy_path(root))):
        data = read_policy_file(path, root, level)
        if data is not None:
            told += [(path, outcome) for outcome in judge_examples(parse(data, path))]
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


def _facts(path: str, outcome: ExampleResult) -> dict[str, object]:
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


def _lines(path: str, outcome: ExampleResult, terminal: Terminal) -> list[str]:
    place = terminal.paint("dim", f"{printable(path)}:{outcome.line}:{outcome.column}")
    if not outcome.wrong:
        sign = terminal.paint("allow", terminal.sign("allow"))
        return [f"{sign} {place} {outcome.decision!s:5} {printable(outcome.text)}"]
    return [f"{terminal.paint('deny', terminal.sign('deny'))} {place} {printable(outcome.wrong)}"]


def _schema(_: argparse.Namespace) -> int:
    with open(f"{os.path.dirname(model.__file__)}/schemas/policy.schema.json", encoding="utf-8") as file:
        print(file.read(), end="")
    return 0

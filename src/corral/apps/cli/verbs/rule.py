"""`corral rule`: one rule's page, or the ids of all rules."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.spelling import MAX_MATCHES, edit_distance
from corral.apps.rule_pages import page_of, rule_ids
from corral.model.call import Axis
from corral.model.render_result import FAILURE_STATUS, QUESTION, json_text, labelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from corral._lib.terminal import Terminal
    from corral.apps.rule_pages import Page


def main(options: argparse.Namespace) -> int:
    """Print what was asked for; an unknown id is an error that names its neighbours."""
    if options.id is None:
        ids = sorted({*rule_ids(), *_owners(options.root)})
        print(json_text(ids) if options.json else "\n".join(map(printable, ids)))
        return 0
    if options.id.startswith("policy-"):
        return _owner_pages(options)
    page = page_of(options.id)
    if page is None:
        print(f"corral: there is no rule {printable(options.id)}", file=sys.stderr)
        for match in _neighbours(options.id):
            print(f"  did you mean {match}?", file=sys.stderr)
        print("Try: corral rule, which lists all", file=sys.stderr)
        return FAILURE_STATUS
    if options.json:
        print(json_text(page.to_dict()))
    else:
        print("\n".join(page_lines(page, terminal_of(sys.stdout, os.environ))))
    return 0


def _owners(root: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rules of the policy files that hold here, by their ids; most ids are one rule's."""
    from corral.policy.loader import load  # noqa: PLC0415  the built-in ones need no file
    from corral.policy.render_policy import to_dict  # noqa: PLC0415

    found: dict[str, list[dict[str, Any]]] = {}
    for rule in to_dict(load(root, os.environ))["rules"]:  # type: ignore[attr-defined]  # a list of them
        found.setdefault(rule["id"], []).append(rule)
    return found


def _owner_pages(options: argparse.Namespace) -> int:
    known = _owners(options.root)
    rules = known.get(options.id)
    if rules is None:
        print(f"corral: no policy file that holds here has a rule {printable(options.id)}", file=sys.stderr)
        for match in known:
            print(f"  there is {printable(match)}", file=sys.stderr)
        return FAILURE_STATUS
    if options.json:
        print(json_text(rules))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    for rule in rules:
        words = " ".join(rule["command"])
        behind = "and nothing behind it" if rule["exact"] else "whatever stands behind it"
        print(terminal.paint("head", printable(rule["id"])))
        lines = labelled("what", f"a rule of a policy file: {rule['decision']} {words}, {behind}", terminal)
        lines += labelled("where", f"{rule['path']}:{rule['line']}", terminal)
        lines += labelled("why", rule["reason"], terminal) if rule["reason"] else []
        lines += labelled("instead", rule["instead"], terminal) if rule["instead"] else []
        lines += labelled("lifts", ", ".join(rule["lifts"]), terminal) if rule["lifts"] else []
        print("\n".join(lines))
    return 0


def _neighbours(rule: str) -> list[str]:
    """Return the ids that need the fewest slips of the pen to become this one; the axis may have been left out."""
    axis, _, rest = rule.partition("-")
    command = rest.rpartition("-")[0] if axis == "argv" else ""
    known_ids = [known.replace("COMMAND", command) if command else known for known in rule_ids()]
    distances = {
        known: min(edit_distance(rule, known), edit_distance(rule, known.partition("-")[2])) for known in known_ids
    }
    least = min(distances.values())
    if least > max(len(rest or rule) // 3, 1):
        return []
    return sorted(known for known, edit_distance in distances.items() if edit_distance == least)[:MAX_MATCHES]


def page_lines(page: Page, terminal: Terminal) -> list[str]:
    """Return a rule's page for people."""
    axis = Axis[page.axis.upper()]
    lines = [terminal.paint("head", page.id), *labelled("axis", f"{axis}: {QUESTION[axis]}", terminal)]
    lines += labelled("what", page.what, terminal) + labelled("instead", page.instead, terminal)
    lines += labelled("profile", ", ".join(f"{name}: {decision}" for name, decision in page.profiles), terminal)
    for label, examples in (("refused", page.refused), ("allowed", page.allowed)):
        for example in examples:
            lines += labelled(label, example, terminal)
            label = ""  # noqa: PLW2901  the label stands once, beside the first
    return lines

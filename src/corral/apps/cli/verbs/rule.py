"""`corral rule`: shows the page of one rule, or lists the ids of all rules."""

from __future__ import annotations

import os
import sys

from corral._lib.spelling import nearest
from corral._lib.terminal import Terminal, printable, terminal_of
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.verb import Options, Verb, argument
from corral.apps.rule_pages import Page, page_of, rule_ids
from corral.model.call import Axis
from corral.model.render_result import FAILURE_STATUS, QUESTION, json_text, labelled
from corral.policy.loader import load
from corral.policy.render_policy import to_dict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


VERB = Verb(
    "help",
    "Show a rule's page, or list the ids of all rules.",
    examples="""\
corral rule name-rm          show what the rule refuses, why, and what to do instead
corral rule                  list the ids of all rules
""",
    notes="""\
Every finding names its rule.
""",
    exit_codes="0; 125 there is no such rule or corral itself failed",
    arguments=(argument("id ID", "Show this rule.", nargs="?", completes="rules"), ROOT),
)


def main(options: Options) -> int:
    """Print the ids, or one page. For an unknown id, print the nearest ids and return 125."""
    if options.id is None:
        ids = sorted({*rule_ids(), *_policy_rules(options.root)})
        print(json_text(ids) if options.json else "\n".join(map(printable, ids)))
        return 0
    if options.id.startswith("policy-"):
        return _show_policy_rules(options)
    page = page_of(options.id)
    if page is None:
        print(f"corral: there is no rule {printable(options.id)}", file=sys.stderr)
        for match in _nearest_ids(options.id):
            if match == options.id:
                continue  # the id names no rule of its own
            print(f"  did you mean {match}?", file=sys.stderr)
        print("Try: corral rule, which lists all rules", file=sys.stderr)
        return FAILURE_STATUS
    if options.json:
        print(json_text(page.to_dict()))
    else:
        print("\n".join(page_lines(page, terminal_of(sys.stdout, os.environ))))
    return 0


def _policy_rules(root: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rules of the policy files in force, by id. Several rules can have one id."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rule in to_dict(load(root, os.environ))["rules"]:  # type: ignore[attr-defined]  # a list of dicts
        found.setdefault(rule["id"], []).append(rule)
    return found


def _show_policy_rules(options: Options) -> int:
    known = _policy_rules(options.root)
    rules = known.get(options.id)
    if rules is None:
        print(f"corral: no policy file in force has a rule {printable(options.id)}", file=sys.stderr)
        for match in known:
            print(f"  there is {printable(match)}", file=sys.stderr)
        return FAILURE_STATUS
    if options.json:
        print(json_text(rules))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    for rule in rules:
        arguments = "without arguments" if rule["exact"] else "with any arguments"
        what = f"a rule of a policy file: {rule['decision']} {' '.join(rule['command'])}, {arguments}"
        rows = {"what": what, "where": f"{rule['path']}:{rule['line']}", "why": rule["reason"]}
        rows |= {"instead": rule["instead"], "lifts": ", ".join(rule["lifts"])}
        print(terminal.paint("head", printable(rule["id"])))
        print("\n".join(line for label, text in rows.items() if text for line in labelled(label, text, terminal)))
    return 0


def _nearest_ids(rule: str) -> list[str]:
    """Return the known ids nearest to this one. The user may have left out the axis."""
    axis, _, rest = rule.partition("-")
    command = rest.rpartition("-")[0] if axis == "argv" else ""
    known = [each.replace("COMMAND", command) if command else each for each in rule_ids()]
    if found := nearest(rule, known):
        return found
    found = nearest(rule, [each.partition("-")[2] for each in known])
    return [each for each in known if each.partition("-")[2] in found]


def page_lines(page: Page, terminal: Terminal) -> list[str]:
    """Return the lines of a rule's page."""
    axis = Axis[page.axis.upper()]
    lines = [terminal.paint("head", page.id), *labelled("axis", f"{axis}: {QUESTION[axis]}", terminal)]
    lines += labelled("what", page.what, terminal) + labelled("instead", page.instead, terminal)
    lines += labelled("profile", ", ".join(f"{name}: {decision}" for name, decision in page.profiles), terminal)
    for name, examples in (("refused", page.refused), ("allowed", page.allowed)):
        for number, example in enumerate(examples):
            lines += labelled("" if number else name, example, terminal)
    return lines

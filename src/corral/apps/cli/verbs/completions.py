"""`corral completions`: what a shell can complete, read from the parsers themselves, so that no list can go stale."""

from __future__ import annotations

import argparse
import os

from corral._lib.records import Record, frozen
from corral.apps.cli.arguments import verb_parser
from corral.apps.cli.help import CALLS, VERBS
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SHELLS = ("bash", "zsh", "fish")
DIRECTORY, FILE, TEXT = "directory", "file", "text"
RULES, GRANTS = "rules", "grants"  # asked of corral when they are wanted
_BY_METAVAR = {"DIR": DIRECTORY, "FILE": FILE}
_ASKED = {("rule", "id"): RULES, ("log", "rule"): RULES, ("view", "rule"): RULES, ("grants", "ids"): GRANTS}
_EVENTS = ("hook", "run", "check", "grant")


@frozen
class Value(Record):
    """What may stand in one place: some words, or a kind of thing."""

    kind: str
    words: tuple[str, ...] = ()


@frozen
class Option(Record):
    """One option of a verb; a flag has no value."""

    names: tuple[str, ...]
    about: str
    value: Value | None = None


@frozen
class Verb(Record):
    """One verb: its options, what may stand without one, and whether a command follows `--`."""

    name: str
    about: str
    options: tuple[Option, ...]
    operands: tuple[Value, ...]
    takes_command: bool


def main(options: argparse.Namespace) -> int:
    """Print the script for a shell, or the words that a script asks for."""
    if options.words:
        print("\n".join(words_of(options.words)))
        return 0
    from corral.apps.cli.completion_scripts import script  # noqa: PLC0415  the words are wanted at every key

    shell = options.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise PolicyError(f"for which shell? Give one of {', '.join(SHELLS)}")
    print(script(shell, [describe_verb(name) for name in VERBS]), end="")
    return 0


def words_of(kind: str) -> list[str]:
    """Return the words of a kind that only corral knows."""
    if kind == GRANTS:
        from corral.policy.approvals import list_approvals  # noqa: PLC0415

        return [approval.id for approval in list_approvals(os.environ)]
    from corral.apps.rule_pages import rule_ids  # noqa: PLC0415

    return [name for name in rule_ids() if name.replace("-", "").isalnum() and name.islower()]


def describe_verb(name: str) -> Verb:
    """Return what can be completed after a verb."""
    options, operands = [], []
    for action in verb_parser(name)._actions:
        if action.help == argparse.SUPPRESS and action.option_strings:
            continue
        if action.option_strings:
            value = None if action.nargs == 0 else _value(name, action)
            options.append(Option(tuple(action.option_strings), _plain(action.help or ""), value))
        else:
            operands.append(_value(name, action))
    return Verb(name, VERBS[name][0], tuple(options), tuple(operands), name in CALLS or name == "grants")


def _value(verb: str, action: argparse.Action) -> Value:
    if action.dest in ("hosts", "host"):
        from corral.integrations.hooks.registry import HOSTS  # noqa: PLC0415

        return Value("words", tuple(HOSTS))
    if action.dest == "event":
        return Value("words", _EVENTS)
    if action.choices:
        return Value("words", tuple(map(str, action.choices)))
    if (verb, action.dest) in _ASKED:
        return Value(_ASKED[verb, action.dest])
    return Value(_BY_METAVAR.get(str(action.metavar), TEXT))


def _plain(about: str) -> str:
    return about.partition(" (default")[0].replace("%(prog)s", "corral")


def options_of(verbs: Iterable[Verb]) -> list[tuple[Verb, Option]]:
    """Return every option with its verb."""
    return [(verb, option) for verb in verbs for option in verb.options]

"""What a command line asks for beyond the policy: shown, and granted by the person at the terminal alone, for this run.

What the policy grants already needs no question. Nobody there, or no clear yes, is a no.
"""

from __future__ import annotations

import os

from corral._lib.network_grants import Grants, parse_grant
from corral._lib.terminal import printable, terminal_of
from corral.audit.audit_log import Log
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral._lib.terminal import Terminal
    from corral.policy.config import Containment, SandboxConfig

YES = ("y", "yes")
Lines = list[tuple[str, str]]


def destinations(given: Sequence[str]) -> tuple[str, ...]:
    """Return destinations as the command line names them, in their canonical form."""
    try:
        return tuple(dict.fromkeys(parse_grant(text) for text in given))
    except ValueError as error:
        raise PolicyError(f"--network: {error}") from None


def with_network(containment: Containment, given: Sequence[str]) -> Containment:
    """Return the containment with destinations besides those that it has; where all is granted, with these alone."""
    if not given:
        return containment
    held = containment.destinations
    return containment.replace(network=tuple(dict.fromkeys((*held, *given))))


def added_grants(before: SandboxConfig, after: SandboxConfig) -> Lines:
    """Return what a config grants that another does not, each with a word for it."""
    old, new = before.containment, after.containment
    found: Lines = []
    if old.network != "on":
        held = Grants(old.destinations)
        found += [("network", text) for text in new.destinations if not held.include(text)]
    found += [("program", path) for path in new.read if path not in old.read]
    found += [("settings", path) for path in new.settings if path not in old.settings]
    found += [("publish", f"{port} of this machine's loopback") for port in new.publish if port not in old.publish]
    more = sorted(set(after.env_allowlist) - set(before.env_allowlist))
    return found + [("variable", name) for name in more]


def ask(title: str, lines: Lines, config: SandboxConfig, *, may_ask: bool, instead: str) -> bool:
    """Show what would be granted and ask for it; PolicyError where nobody can be asked."""
    from corral.apps.cli.terminal_prompt import TerminalPrompt, why_nobody  # noqa: PLC0415  most runs ask for nothing

    why = why_nobody(os.environ) if may_ask else "what --no-ask or a hook starts asks nobody"
    if why:
        wanted = ", ".join(text for _, text in lines)
        raise PolicyError(f"only a person at a terminal can grant {printable(wanted)}, and {why}; {instead}")
    with TerminalPrompt() as person:
        terminal = terminal_of(person, os.environ)
        person.tell("\n".join(["", *shown(title, lines, terminal), "", ""]))
        question = terminal.paint("head", "Grant it for this run? [y]es, [N]o")
        if person.answer(f"{question} > ") not in YES:
            return False
        reason = f"A person in a terminal granted for one run: {', '.join(' '.join(line) for line in lines)}"
        # Before it holds: what loosens is in the owner's log, or it does not.
        Log(config, event="grant").note({"decision": "allow", "reason": reason})
        return True
    return False  # an interrupt is no answer


def shown(title: str, lines: Lines, terminal: Terminal) -> list[str]:
    """Return what is granted, for people."""
    made = [terminal.paint("head", printable(title)), ""]
    last = ""
    for kind, text in lines:
        label = "" if kind == last else kind
        made.append(f"  {terminal.paint('dim', label.ljust(9))} {printable(text)}")
        last = kind
    return made

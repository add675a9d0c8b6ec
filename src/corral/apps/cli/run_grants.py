"""Grants one run more than the policy does, if the user at the terminal agrees.

Options like --network ask for such grants. Without a terminal, or without a clear yes, corral grants nothing.
"""

from __future__ import annotations

import os
import sys

from corral._lib.network.network_grants import Grants, parse_grant
from corral._lib.terminal import Terminal, printable, terminal_of
from corral.audit.audit_log import Log
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.policy.config import Containment, SandboxConfig

KindAndTarget = tuple[str, str]


def destinations(given: Sequence[str]) -> tuple[str, ...]:
    """Return the destinations of --network in canonical form."""
    try:
        return tuple(dict.fromkeys(parse_grant(text) for text in given))
    except ValueError as error:
        raise PolicyError(f"--network: {error}") from None


def with_network(containment: Containment, given: Sequence[str]) -> Containment:
    """Return the containment with more destinations. If it had all of the network, it gets only these."""
    if not given:
        return containment
    return containment.replace(network=tuple(dict.fromkeys((*containment.destinations, *given))))


def added_grants(before: SandboxConfig, after: SandboxConfig) -> list[KindAndTarget]:
    """Return the grants of `after` that `before` lacks."""
    old, new = before.containment, after.containment
    found: list[KindAndTarget] = []
    if old.network != "on":
        held = Grants(old.destinations)
        found += [("network", text) for text in new.destinations if not held.include(text)]
    found += [("program", path) for path in new.read if path not in old.read]
    found += [("settings", path) for path in new.settings if path not in old.settings]
    found += [("publish", f"{port} on this machine's loopback") for port in new.publish if port not in old.publish]
    found += [("local", f"port {port} of this machine's loopback") for port in new.local if port not in old.local]
    more = sorted(set(after.env_allowlist) - set(before.env_allowlist))
    return found + [("variable", name) for name in more]


def without_taken_ports(config: SandboxConfig, named: Sequence[int]) -> SandboxConfig:
    """Return the config without ports of the policy that this machine uses already, and say so. A port that the user names stays.

    Otherwise one command that publishes a port would keep all others of the project from running.
    """
    from corral.containment.backend import UnusableError  # noqa: PLC0415  few policies publish ports
    from corral.containment.network.publish_port import listen  # noqa: PLC0415

    left = []
    for port in config.containment.publish:
        try:
            if port not in named:
                listen(port).close()
            left.append(port)
        except UnusableError as error:
            print(f"corral: {printable(str(error))}; the command runs without it", file=sys.stderr)
    return config.replace(containment=config.containment.replace(publish=tuple(left)))


def ask(title: str, grants: list[KindAndTarget], config: SandboxConfig, *, may_ask: bool, instead: str) -> bool:
    """Show the grants and return whether the user agrees. Raises PolicyError if corral cannot ask."""
    from corral.apps.cli.questions.terminal_prompt import (  # noqa: PLC0415  most runs ask for nothing
        NO_ASK,
        YES,
        TerminalPrompt,
        why_nobody,
    )

    why = why_nobody(os.environ) if may_ask else NO_ASK
    if why:
        wanted = ", ".join(target for _, target in grants)
        raise PolicyError(f"only a person at a terminal can grant {printable(wanted)}, and {why}; {instead}")
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        prompt.write("\n".join(["", *grant_lines(title, grants, terminal), "", ""]))
        question = terminal.paint("head", "Grant it for this run? [y]es, [N]o")
        if prompt.ask(f"{question} > ") not in YES:
            return False
        reason = f"A person at a terminal granted for one run: {', '.join(' '.join(grant) for grant in grants)}"
        # Logged first: if the log cannot be written, nothing is granted.
        Log(config, event="grant").note({"decision": "allow", "reason": reason})
        return True
    return False  # interrupted


def grant_lines(title: str, grants: list[KindAndTarget], terminal: Terminal) -> list[str]:
    """Return the lines that show the grants. The kind stands beside the first of its targets."""
    lines = [terminal.paint("head", printable(title)), ""]
    last = ""
    for kind, target in grants:
        label = "" if kind == last else kind
        lines.append(f"  {terminal.paint('dim', label.ljust(9))} {printable(target)}")
        last = kind
    return lines

"""Judges network effects where the policy grants single destinations: granted hosts pass, other hosts are refused. Pure.

A call may not say which host it connects to. Then the proxy decides at run time, so such a call passes only if it is contained.
"""

from __future__ import annotations

from corral._lib.network_grants import Grants, format_destination
from corral.guard.analysis.addresses import destination, network_effect
from corral.guard.axes.findings import finding
from corral.model.call import Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.shell.expansion import Word
    from corral.policy.config import SandboxConfig

ELSEWHERE = "network-elsewhere"


def judge(key: str, command: Command, word: Word, detail: str, config: SandboxConfig) -> Finding | None:
    """Return a finding for one network effect, or None where it is allowed."""
    decisions = config.rules.effects
    is_contained = config.rules.needs_containment and config.containment.backend != "none"
    # Words of other effects are package names and the like, unless they are written as a URL.
    is_address = key == "network" or (key != "network-unproven" and "://" in word.text)
    try:
        place = destination(word.text) if is_address else None
    except ValueError:
        return finding(ELSEWHERE, decisions[ELSEWHERE], command, word, detail)
    if place is not None and network_effect(word.text) != "network-local":
        host, port = place
        if Grants(config.containment.destinations).covers(host, port):
            is_contained = is_contained or key != "install"
        elif "://" in word.text or "." in host or ":" in host:
            refused = finding(ELSEWHERE, decisions[ELSEWHERE], command, word, detail)
            if port is None:
                return refused
            grant = f'containment.network = ["{format_destination(host, port)}"]'
            return refused.replace(instead=f"Use a granted destination, or ask the user to grant this one: {grant}.")
    if is_contained or decisions[key] == Decision.ALLOW:
        return None
    return finding(key, decisions[key], command, word, detail)

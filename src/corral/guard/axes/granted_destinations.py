"""What the guard says of the network where destinations are granted by name: what is granted passes, another host is refused. Pure.

Where a call does not say whom it talks to, the proxy decides when it runs; so only what is contained may leave it open.
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


def judge(key: str, act: Command, word: Word, detail: str, config: SandboxConfig) -> Finding | None:
    """Return what speaks against one effect on the network."""
    decisions = config.rules.effects
    is_held = config.rules.needs_containment and config.containment.backend != "none"
    # Words of these are packages and the like, and an address only where they say so.
    is_named = key == "network" or (key != "network-unproven" and "://" in word.text)
    grants = Grants(config.containment.destinations)
    try:
        place = destination(word.text) if is_named else None
    except ValueError:
        return finding(ELSEWHERE, decisions[ELSEWHERE], act, word, detail)
    if place is not None and network_effect(word.text) != "network-local":
        host, port = place
        is_certain = "://" in word.text or "." in host or ":" in host
        if grants.covers(host, port):
            is_held = is_held or key != "install"
        elif is_certain:
            refused = finding(ELSEWHERE, decisions[ELSEWHERE], act, word, detail)
            return refused if port is None else refused.replace(instead=_instead(host, port))
    if is_held or decisions[key] == Decision.ALLOW:
        return None
    return finding(key, decisions[key], act, word, detail)


def _instead(host: str, port: int) -> str:
    grant = f'containment.network = ["{format_destination(host, port)}"]'
    return f"Use a destination that is granted, or ask the owner for this one: {grant}."

"""The name axis: refuses commands on the denylist, whether they are called by name, path, link or copy. Pure."""

from __future__ import annotations

from corral.guard.axes.findings import WORK_TO_REFUSE, finding_at, quotable, spend_nothing
from corral.guard.rules.loader import group
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from corral.guard.analysis.command import Command
    from corral.guard.machine import Machine
    from corral.policy.config import SandboxConfig

# Words with which the client of an engine or a cluster only prints text, and connects to nothing.
_ONLY_PRINTS = frozenset({("--version",), ("--help",), ("help",), ("compose", "version"), ("version", "--client")})
_LISTED_BY_USER = {"why": "the user put it there", "instead": "Continue without it, or ask the user to run it."}


def judge(
    commands: list[Command],
    config: SandboxConfig,
    machine: Machine | None = None,
    spend: Callable[[int], None] = spend_nothing,
) -> list[Finding]:
    """Return a finding for every command whose name is on the denylist. Without a machine, none has grants."""
    denylist = config.denylist or ()
    found = []
    for command in commands:
        if not command.name:
            continue
        base = command.name.rpartition("/")[2]
        row = command.row or {}
        listed = _listed(base, denylist)
        if not listed and row and command.real != base:
            listed = _listed(command.real, denylist)
        if not listed:
            continue
        if row.get("group") == "container" and _only_prints(command, config):
            continue
        spend(WORK_TO_REFUSE)
        decision, words = Decision.DENY, _LISTED_BY_USER
        if "group" in row:
            words = group(row["group"])
            # Where the profile allows the group, the user put this name on the denylist.
            if config.rules.groups[row["group"]] != Decision.ALLOW:
                decision = config.rules.groups[row["group"]]
        name = f"`{listed}`" if listed == base else f"`{quotable(command.name)}` is `{listed}`, which"
        reason = f"{name} is on the denylist: {row.get('why', words['why'])}."
        instead = row.get("instead", words["instead"])
        at = command.words[0]
        refused = finding_at(at, Axis.NAME, f"name-{listed}", decision, reason=reason, instead=instead)
        if config.opens and "group" in row and words is not _LISTED_BY_USER:
            from corral.guard.axes.openings import group_opening, is_given, with_opening  # noqa: PLC0415  few names are refused

            opening = group_opening(row["group"], command, config, machine)
            if opening is not None and is_given(opening, config):
                continue
            refused = with_opening(refused, opening, config)
        found.append(refused)
    return found


def _only_prints(command: Command, config: SandboxConfig) -> bool:
    """Return whether a command prints its version or its help, in a sandbox. The user may have denied the name itself."""
    rules, words = config.rules, command.words[1:]
    if not rules.needs_containment or rules.groups["container"] == Decision.ALLOW:
        return False
    return all(word.proven for word in words) and tuple(word.text for word in words) in _ONLY_PRINTS


def _listed(base: str, denylist: Collection[str]) -> str:
    """Return the entry of the denylist that matches a base name or its version (`rm-9.1`, `mkfs.ext4`), or nothing."""
    if base in denylist:
        return base
    bare = base.rstrip("0123456789.").rstrip("-")
    if bare in denylist:
        return bare
    dotted, dot, _ = base.partition(".")
    return dotted if dot and f"{dotted}.*" in denylist else ""

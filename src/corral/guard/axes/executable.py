"""The name axis: refuses commands on the denylist, whether they are called by name, path, link or copy. Pure."""

from __future__ import annotations

from corral.guard.axes.findings import finding_at, quotable
from corral.guard.rules.loader import group
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from corral.guard.analysis.command import Command
    from corral.policy.config import SandboxConfig

_LISTED_BY_USER = {"why": "the user put it there", "instead": "Continue without it, or ask the user to run it."}


def judge(commands: list[Command], config: SandboxConfig) -> list[Finding]:
    """Return a finding for every command whose name is on the denylist."""
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
        found.append(finding_at(at, Axis.NAME, f"name-{listed}", decision, reason=reason, instead=instead))
    return found


def _listed(base: str, denylist: Collection[str]) -> str:
    """Return the entry of the denylist that matches a base name or its version (`rm-9.1`, `mkfs.ext4`), or nothing."""
    if base in denylist:
        return base
    bare = base.rstrip("0123456789.").rstrip("-")
    if bare in denylist:
        return bare
    dotted = base.partition(".")[0]
    return dotted if f"{dotted}.*" in denylist and "." in base else ""

"""The name axis: commands that have no place in an agent's run, whatever path, link or copy they are called by. Pure."""

from __future__ import annotations

from corral.guard.axes.findings import shown
from corral.guard.rules.loader import group
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from corral.guard.analysis.command import Command
    from corral.policy.config import SandboxConfig


def judge(acts: list[Command], config: SandboxConfig) -> list[Finding]:
    """Return a finding for every act whose name is on the denylist."""
    denylist = config.denylist or ()
    groups = config.rules.groups
    found = []
    for act in acts:
        if not act.name:
            continue
        base = act.name.rpartition("/")[2]
        row = act.row
        listed = _listed(base, denylist)
        if not listed and row is not None and act.real != base:
            listed = _listed(act.real, denylist)
        if not listed:
            continue
        reason = (
            group(row["group"]) if row is not None and "group" in row else {"why": "the owner listed it", "instead": ""}
        )
        decision = groups[row["group"]] if row is not None and "group" in row else Decision.DENY
        known = f"{shown(act.name)} is {listed}, which" if listed != base else f"{listed}"
        word = act.words[0]
        found.append(
            Finding(
                Axis.NAME,
                f"name-{listed}",
                Decision.DENY if decision == Decision.ALLOW else decision,
                f"{known} is on the denylist: {(row or {}).get('why', reason['why'])}.",
                shown(word.text),
                word.start,
                max(0, word.end - word.start),
                word.argument,
                (row or {}).get("instead", reason["instead"]),
            )
        )
    return found


def _listed(base: str, denylist: Collection[str]) -> str:
    """Return the entry of the denylist that a base name falls under, versions and dotted variants included."""
    if base in denylist:
        return base
    bare = base.rstrip("0123456789.").rstrip("-")
    if bare in denylist:
        return bare
    dotted = base.partition(".")[0]
    return dotted if f"{dotted}.*" in denylist and "." in base else ""

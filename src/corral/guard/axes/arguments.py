"""The argv axis: what options and operands make a known program do. Pure."""

from __future__ import annotations

from corral.guard.axes.findings import AXIS_OF, merged
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.shell.expansion import Word
    from corral.policy.config import SandboxConfig

_NETWORK = frozenset(
    {"network", "network-maybe", "network-unproven", "fetch"}
)  # what the owner's word for the network allows
_BY_NAME = _NETWORK | {"install"}  # what destinations that are granted by name decide on
_INTERPRETED = frozenset({"code", "code-stdin"})


def judge(acts: list[Command], config: SandboxConfig) -> list[Finding]:
    """Return a finding for every effect on the argv axis that the profile does not allow."""
    decisions = config.rules.effects
    found = []
    by_name = bool(config.containment.destinations) and decisions["network"] != Decision.ALLOW
    for act in acts:
        refusing: dict[str, list[Word]] = {}
        for key, word, detail in act.effects:
            if by_name and key in _BY_NAME:
                from corral.guard.axes import granted_destinations  # noqa: PLC0415  most owners name none

                refused = granted_destinations.judge(key, act, word, detail, config)
                if refused is None:
                    continue
                if refused.rule.endswith(granted_destinations.ELSEWHERE):
                    found.append(refused)  # each names a destination, and the grant for it
                    continue
                refusing.setdefault(key, []).append(word)
                continue
            if AXIS_OF.get(key) is not Axis.ARGV or decisions[key] == Decision.ALLOW:
                continue
            if key in _NETWORK and config.containment.network == "on":
                continue
            if key in _INTERPRETED and not _blocked(act, config):
                continue
            refusing.setdefault(key, []).append(word)
        found += [merged(key, decisions[key], act, words) for key, words in refusing.items()]
        if decisions["code"] != Decision.ALLOW and act.row is not None and act.row["id"] == "unknown":
            found += _owner_listed(act, config)
    return found


def by_name(key: str, act: Command, word: Word, detail: str, config: SandboxConfig) -> Decision | None:
    """Return what destinations that are granted by name decide on one effect; None where they decide nothing."""
    if key not in _BY_NAME or not config.containment.destinations or config.rules.effects["network"] == Decision.ALLOW:
        return None
    from corral.guard.axes import granted_destinations  # noqa: PLC0415  most owners name none

    refused = granted_destinations.judge(key, act, word, detail, config)
    return Decision.ALLOW if refused is None else refused.decision


def _blocked(act: Command, config: SandboxConfig) -> bool:
    """Say whether the owner counts this program among the interpreters; a program that is none is always judged."""
    if act.row is None or not act.row.get("interpreter"):
        return True
    names = config.interpreter_block or ()
    major, dot, _ = act.real.partition(".")  # python3 of python3.11
    spellings = (act.real, major, f"{major}{dot}*", act.real.rstrip("0123456789.").rstrip("-"), act.row["id"])
    return any(name in names for name in spellings)


def _owner_listed(act: Command, config: SandboxConfig) -> list[Finding]:
    """Judge an interpreter that only the owner's list knows: any argument that begins with -c or -e is code."""
    if act.name.rpartition("/")[2] not in (config.interpreter_block or ()):
        return []
    words = [w for w in act.words[1:] if w.text.startswith(("-c", "-e", "--eval", "--command"))]
    return [merged("code", config.rules.effects["code"], act, words)] if words else []

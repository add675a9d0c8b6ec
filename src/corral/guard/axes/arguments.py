"""The argv axis: judges the effects that options and operands give a known program. Pure."""

from __future__ import annotations

from corral.guard.axes.findings import AXIS_OF, merged_finding
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.shell.expansion import Word
    from corral.policy.config import SandboxConfig

_NETWORK = frozenset({"network", "network-maybe", "network-unproven", "fetch"})  # allowed by containment.network = "on"
_BY_DESTINATION = _NETWORK | {"install"}  # judged by the granted destinations, where there are any
_INTERPRETED = frozenset({"code", "code-stdin"})


def judge(commands: list[Command], config: SandboxConfig) -> list[Finding]:
    """Return a finding for every effect on the argv axis that the profile does not allow."""
    decisions = config.rules.effects
    found = []
    for command in commands:
        refusing: dict[str, list[Word]] = {}
        for key, word, detail in command.effects:
            if _is_by_destination(key, config):
                from corral.guard.axes import granted_destinations  # noqa: PLC0415  most policies grant none

                refused = granted_destinations.judge(key, command, word, detail, config)
                if refused is None:
                    continue
                if refused.rule.endswith(granted_destinations.ELSEWHERE):
                    found.append(refused)  # not merged: each names a destination and its grant
                    continue
            elif (
                AXIS_OF.get(key) is not Axis.ARGV
                or decisions[key] == Decision.ALLOW
                or (key in _NETWORK and config.containment.network == "on")
                or (key in _INTERPRETED and not _is_blocked(command, config))
            ):
                continue
            refusing.setdefault(key, []).append(word)
        found += [merged_finding(key, decisions[key], command, words) for key, words in refusing.items()]
        if decisions["code"] != Decision.ALLOW and command.row is not None and command.row["id"] == "unknown":
            found += _judge_unknown_interpreter(command, config)
    return found


def _is_by_destination(key: str, config: SandboxConfig) -> bool:
    return (
        key in _BY_DESTINATION
        and bool(config.containment.destinations)
        and config.rules.effects["network"] != Decision.ALLOW
    )


def destination_decision(key: str, command: Command, word: Word, detail: str, config: SandboxConfig) -> Decision | None:
    """Return the decision of the granted destinations on one effect, or None where they do not decide on it."""
    if not _is_by_destination(key, config):
        return None
    from corral.guard.axes import granted_destinations  # noqa: PLC0415  as above

    refused = granted_destinations.judge(key, command, word, detail, config)
    return Decision.ALLOW if refused is None else refused.decision


def _is_blocked(command: Command, config: SandboxConfig) -> bool:
    """Say whether the policy blocks this interpreter. A program that is not an interpreter is always judged."""
    if command.row is None or not command.row.get("interpreter"):
        return True
    real = command.real
    major, dot, _ = real.partition(".")  # python3 of python3.11
    spellings = (real, major, f"{major}{dot}*", real.rstrip("0123456789.").rstrip("-"), command.row["id"])
    return not set(spellings).isdisjoint(config.interpreter_block or ())


def _judge_unknown_interpreter(command: Command, config: SandboxConfig) -> list[Finding]:
    """Judge an interpreter that has no row and that the policy names: any argument that begins with -c or -e is code."""
    if command.name.rpartition("/")[2] not in (config.interpreter_block or ()):
        return []
    words = [word for word in command.words[1:] if word.text.startswith(("-c", "-e", "--eval", "--command"))]
    return [merged_finding("code", config.rules.effects["code"], command, words)] if words else []

"""The argv axis: judges the effects that options and operands give a known program. Pure."""

from __future__ import annotations

from corral.guard.axes.findings import AXIS_OF, WORK_TO_REFUSE, finding, merged_finding, spend_nothing
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.guard.analysis.command import Command
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Word
    from corral.policy.config import SandboxConfig

    _Under = tuple[SandboxConfig, Machine | None]

_NETWORK = frozenset(
    {"network", "network-maybe", "network-unproven", "fetch", "fetch-missing"}
)  # allowed by containment.network = "on"
_BY_DESTINATION = _NETWORK | {"install"}  # judged by the granted destinations, where there are any
_ELSEWHERE = "network-elsewhere"
_INTERPRETED = frozenset({"code", "code-stdin"})


def judge(
    commands: list[Command],
    config: SandboxConfig,
    machine: Machine | None = None,
    spend: Callable[[int], None] = spend_nothing,
) -> list[Finding]:
    """Return a finding for every effect on the argv axis that the profile does not allow. Without a machine, none has grants."""
    decisions = config.rules.effects
    under = config, machine
    found = []
    for command in commands:
        refusing: dict[str, list[Word]] = {}
        for key, word, _ in command.effects:
            if key in _BY_DESTINATION and config.opens and _is_served(key, command, config, machine):
                # Judged by its own opening: the proxy does not carry git over ssh, and an index has more hosts than the call names.
                refusing.setdefault(key, []).append(word)
                continue
            if key in _BY_DESTINATION and _is_by_destination(key, config):
                refused = _judge_destination(key, command, word, config)
                if refused is None:
                    continue
                if refused.rule.endswith(_ELSEWHERE):
                    # Not merged: each names a destination and its grant.
                    found += _opened(refused, "network", command, [word], under)
                    continue
            elif (
                AXIS_OF.get(key) is not Axis.ARGV
                or decisions[key] == Decision.ALLOW
                or (key in _NETWORK and config.containment.network == "on")
                or (key in _INTERPRETED and not _is_blocked(command, config))
            ):
                continue
            refusing.setdefault(key, []).append(word)
        for key, words in refusing.items():
            spend(WORK_TO_REFUSE)
            refused = merged_finding(key, decisions[key], command, words)
            found += _opened(refused, key, command, words, under)
        if decisions["code"] != Decision.ALLOW and command.row is not None and command.row["id"] == "unknown":
            found += _judge_unknown_interpreter(command, config)
    return found


def _is_served(key: str, command: Command, config: SandboxConfig, machine: Machine | None) -> bool:
    from corral.guard.axes.openings import served_opening  # noqa: PLC0415  most calls use no network

    return served_opening(key, command, config, machine) is not None


def _opened(refused: Finding, key: str, command: Command, words: list[Word], under: _Under) -> list[Finding]:
    """Return a finding with its opening; none if this very call has the opening already."""
    config, machine = under
    if not config.opens:
        return [refused]
    from corral.guard.axes.openings import is_given, opening_of, other_forms, with_opening  # noqa: PLC0415  as above

    opening = opening_of(key, command, words, config, machine)
    if opening is None and key == "network" and (advice := other_forms(command)):
        return [refused.replace(instead=advice)]
    if opening is not None and opening.stands_for:
        meant = opening.stands_for
        refused = finding(meant, config.rules.effects[meant], command, words[0])
        opening = None if f"effects.{meant}" in config.rules.closed else opening
    elif opening is not None and is_given(opening, config):
        return []
    found = with_opening(refused, opening, config)
    return [] if found.decision == Decision.ALLOW and not found.grants else [found]


def _is_by_destination(key: str, config: SandboxConfig) -> bool:
    return (
        key in _BY_DESTINATION
        and bool(config.containment.destinations)
        and config.rules.effects["network"] != Decision.ALLOW
    )


def destination_decision(key: str, command: Command, word: Word, config: SandboxConfig) -> Decision | None:
    """Return the decision of the granted destinations on one effect, or None where they do not decide on it."""
    if not _is_by_destination(key, config):
        return None
    refused = _judge_destination(key, command, word, config)
    return Decision.ALLOW if refused is None else refused.decision


def _judge_destination(key: str, command: Command, word: Word, config: SandboxConfig) -> Finding | None:
    """Judge a network effect where the policy grants single destinations: granted hosts pass, other hosts are refused.

    A call may not say which host it connects to. Then the proxy decides at run time, so such a call passes only if it is contained.
    """
    from corral._lib.network.network_grants import Grants, format_destination  # noqa: PLC0415  most policies grant none
    from corral.guard.analysis.addresses import destination, network_effect  # noqa: PLC0415  as above

    decisions = config.rules.effects
    is_contained = config.rules.needs_containment and config.containment.backend != "none"
    # Words of other effects are package names and the like, unless they are written as a URL.
    is_address = key == "network" or (key != "network-unproven" and "://" in word.text)
    try:
        place = destination(word.text) if is_address else None
    except ValueError:
        return finding(_ELSEWHERE, decisions[_ELSEWHERE], command, word)
    if place is not None and network_effect(word.text) != "network-local":
        host, port = place
        if Grants(config.containment.destinations).covers(host, port):
            is_contained = is_contained or key != "install"
        elif "://" in word.text or "." in host or ":" in host:
            refused = finding(_ELSEWHERE, decisions[_ELSEWHERE], command, word)
            if port is None:
                return refused
            grant = f'containment.network = ["{format_destination(host, port)}"]'
            return refused.replace(instead=f"Use a granted destination, or ask the user to grant this one: {grant}.")
    if is_contained or decisions[key] == Decision.ALLOW:
        return None
    return finding(key, decisions[key], command, word)


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

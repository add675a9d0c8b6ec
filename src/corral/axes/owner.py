"""What the owner's own rules say about commands by their first words. Pure.

A rule that refuses looks through options and holes; a rule that allows needs the very words, and lifts only what the name and
argv axes say: paths, structure and the kernel stay.
"""

from __future__ import annotations

from corral.axes.telling import shown
from corral.braces import HOLE
from corral.expand import NUMBER
from corral.model import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.rulebook import CommandRule
    from corral.unwrap.act import Act

    Rules = tuple[tuple[CommandRule, ...], ...]


def lifted(acts: list[Act], rules: Rules) -> list[Act]:
    """Return the acts that no rule allows, which is left of them for the name and argv axes to judge."""
    return [act for act in acts if _decision(act, rules) is not Decision.ALLOW]


def judge(acts: list[Act], rules: Rules) -> list[Finding]:
    """Return a finding for every act that a rule refuses or asks about."""
    found = []
    for act in acts:
        for file in rules:
            rule = _first(act, file)
            if rule is not None and rule.decision is not Decision.ALLOW:
                found.append(_finding(act, rule))
    return found


def _decision(act: Act, rules: Rules) -> Decision | None:
    """Return the strictest of what the files say of an act, or None where none speaks of it."""
    said = [rule.decision for rule in (_first(act, file) for file in rules) if rule is not None]
    return max(said) if said else None


def _first(act: Act, file: tuple[CommandRule, ...]) -> CommandRule | None:
    if not act.name:
        return None
    for rule in file:
        if _is(act, rule.words) if rule.decision is Decision.ALLOW else _may_be(act, rule.words):
            return rule
    return None


def _is(act: Act, words: tuple[str, ...]) -> bool:
    texts = [act.words[0].text.rpartition("/")[2], *(word.text for word in act.words[1 : len(words)])]
    # By path it could be another program of that name.
    return tuple(texts) == words and "/" not in act.name and act.real in ("", words[0])


def _may_be(act: Act, words: tuple[str, ...]) -> bool:
    base = act.name.rpartition("/")[2]
    if words[0] not in (base, act.real) and HOLE not in act.name:
        return False
    left = list(words[1:])
    for word in act.words[1:]:
        if left and (word.text == left[0] or HOLE in word.text or NUMBER in word.text):
            left.pop(0)
    return not left


def _finding(act: Act, rule: CommandRule) -> Finding:
    word = act.words[0]
    return Finding(
        Axis.NAME if len(rule.words) == 1 else Axis.ARGV,
        rule.id,
        rule.decision,
        f"{shown(' '.join(rule.words))} is not for this project: {rule.reason or f'a rule in {rule.source} says so'}",
        shown(word.text),
        word.start,
        max(0, word.end - word.start),
        word.argument,
        rule.instead,
    )

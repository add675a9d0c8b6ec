"""What the owner's own rules say about commands by their first words. Pure.

A rule that refuses looks through options, paths, links and holes; a rule that allows needs the very words, and lifts only the
effects that its examples have: paths, structure and the kernel stay.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.guard.analysis.command import Command
from corral.guard.axes.findings import AXIS_OF, shown
from corral.guard.shell.braces import HOLE
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from corral.guard.rules.loader import CommandRule
    from corral.guard.shell.expansion import Word

    Row = dict[str, Any]
    Rules = tuple[tuple[CommandRule, ...], ...]

NO, MAYBE, SURE = 0, 1, 2
_CLUSTERING = ("gnu", "posix", "tar", "guess")  # styles in which -rf is -r -f
_ALIASING = ("git", "hg", "jj", "cargo", "gh")  # where a subcommand nobody knows may be the owner's name for another
# Whose operands are goals in any order: `mvn clean deploy` deploys.
_GOALS = (
    "mvn",
    "mvnw",
    "mvnd",
    "gradle",
    "gradlew",
    "make",
    "gmake",
    "ninja",
    "rake",
    "ant",
    "sbt",
    "just",
    "bazel",
    "nox",
    "invoke",
)
_ALIASES = ("alias.", "--config-env=alias.")  # a setting by which git names a subcommand anew
_SHORTEST = 3  # characters of an abbreviated option: --f


@frozen
class Match(Record):
    """A rule that speaks of an act, and how certain that is."""

    rule: CommandRule
    certainty: int

    @property
    def decision(self) -> Decision:
        """What it comes to: where only running could tell whether it is meant, it is asked about."""
        return self.rule.decision if self.certainty == SURE else min(self.rule.decision, Decision.ASK)


def lifted(acts: list[Command], rules: Rules) -> tuple[list[Command], list[Command]]:
    """Return what is left for the name axis, and for the argv axis, when all that rules allow is taken away."""
    named, trimmed = [], []
    for act in acts:
        said = [match for file in rules for match in matches(act, file)]
        if not said or max(match.decision for match in said) is not Decision.ALLOW:
            named.append(act)
            trimmed.append(act)
            continue
        keys = {key for match in said for key in match.rule.lifts}
        trimmed.append(_without(act, keys))
    return named, trimmed


def _without(act: Command, keys: set[str]) -> Command:
    made = Command(act.name, act.words, act.depth, act.cwds)
    made.output, made.real, made.row, made.verbs = act.output, act.real, act.row, act.verbs
    made.effects = [effect for effect in act.effects if effect[0] not in keys]
    return made


def judge(acts: list[Command], rules: Rules) -> list[Finding]:
    """Return a finding for every act that a rule refuses or asks about."""
    found = []
    for act in acts:
        for file in rules:
            said = [match for match in matches(act, file) if match.decision is not Decision.ALLOW]
            if said:
                found.append(_finding(act, max(said, key=lambda match: match.decision)))
    return found


def matches(act: Command, file: Iterable[CommandRule]) -> list[Match]:
    """Return what the rules of one file say of an act: the first that fits for certain, and those before it that may."""
    found: list[Match] = []
    if not act.name:
        return found
    for rule in file:
        certainty = allows(act, rule) if rule.decision is Decision.ALLOW else _refuses(act, rule.words)
        if certainty:
            found.append(Match(rule, certainty))
        if certainty == SURE:
            break
    return found


def allows(act: Command, rule: CommandRule) -> int:
    """Say whether an act is exactly what a rule allows."""
    words = act.words
    size = len(rule.words)
    if len(words) < size or (rule.exact and len(words) != size):
        return NO
    # By path it could be another program of that name.
    if "/" in words[0].text or act.real not in ("", rule.words[0]):
        return NO
    fits = all(
        word.proven and not word.multi and word.text == want for word, want in zip(words, rule.words, strict=False)
    )
    return SURE if fits else NO


def liftable_effects(acts: Iterable[Command], rule: CommandRule) -> set[str]:
    """Return the effects of what a rule allows, as far as a rule can lift them."""
    found = [act for act in acts if act.name and allows(act, rule)]
    return {key for act in found for key, _, _ in act.effects if AXIS_OF.get(key) is Axis.ARGV}


def _refuses(act: Command, words: tuple[str, ...]) -> int:
    base = act.name.rpartition("/")[2]
    arguments = act.words[1:]
    names = {base, act.real} - {""}
    operands = [word for word in words[1:] if not word.startswith("-")]
    options = [word for word in words[1:] if word.startswith("-")]
    if words[0] in names:
        said = _begins(operands, arguments, act.row or {}, goals=words[0] in _GOALS)
        return min(said, _has_options(options, arguments, act.row or {}))
    # What git keeps as git-push runs under that name too.
    for size in range(1, len(operands) + 1):
        if "-".join((words[0], *operands[:size])) in names:
            rest = _begins(operands[size:], arguments, {})
            return min(rest, _has_options(options, arguments, {}))
    return NO


def _begins(wanted: Sequence[str], arguments: list[Word], row: Row, *, goals: bool = False) -> int:
    """Say whether arguments begin with these words, or hold them if they are goals, options and their values aside."""
    rows = [row]
    for word in wanted:
        rows.append(rows[-1].get("sub", {}).get(word, {}))
    renamed = any(word.text.startswith(_ALIASES) for word in arguments)
    best = NO
    pending = [(0, 0, SURE)]
    seen = set(pending)
    while pending:
        index, done, certainty = pending.pop()
        if done == len(wanted):
            best = max(best, certainty)
        elif index < len(arguments):
            states = _steps(arguments[index], wanted[done], rows[done], renamed=renamed)
            for state in [*states, (1, 0, SURE)] if goals else states:
                after = (index + state[0], done + state[1], min(certainty, state[2]))
                if after not in seen:
                    seen.add(after)
                    pending.append(after)
    return best


def _steps(word: Word, wanted: str, row: Row, *, renamed: bool) -> list[tuple[int, int, int]]:
    """Return what one argument can be: how many arguments it takes up, whether it is the wanted word, and how certain that is."""
    text = word.text
    if len(text) > 1 and text[0] == "-" and word.proven:
        takes = _takes_value(text, row)
        # Nobody knows the option: the next word may be its value, or not.
        return [(1, 0, SURE), (2, 0, SURE)] if takes is None else [(2 if takes else 1, 0, SURE)]
    if text[:1] == "+" and "sub" in row:
        return [(1, 0, SURE)]  # a toolchain, as in `cargo +nightly publish`
    certainty = _is(word, wanted, row, renamed=renamed)
    found = [(1, 1, certainty)] if certainty else []
    if HOLE in text and (word.multi or text[0] in (HOLE, "-")):
        found.append((1, 0, SURE))  # it may become an option
    if HOLE in text and word.multi:
        found.append((0, 1, SURE))  # or several words
    return found


def _is(word: Word, wanted: str, row: Row, *, renamed: bool) -> int:
    if not word.proven:
        return SURE if _may_become(word, wanted) else NO
    if word.text == wanted:
        return SURE
    known = row.get("sub")
    if not known or word.text in known:
        return NO
    if wanted.startswith(word.text):
        return SURE  # npm pub is npm publish
    if row.get("id") in _ALIASING:
        return SURE if renamed else MAYBE
    return NO


def _may_become(word: Word, wanted: str) -> bool:
    if word.glob:
        from fnmatch import fnmatchcase  # noqa: PLC0415  for the few words that are patterns

        return HOLE in word.text or fnmatchcase(wanted, word.text)
    head, _, rest = word.text.replace("\1", HOLE).partition(HOLE)
    return wanted.startswith(head) and wanted.endswith(rest.rpartition(HOLE)[2])


def _takes_value(text: str, row: Row) -> bool | None:
    """Say whether an option's value is the next word, or None where nobody knows."""
    options: dict[str, Any] = row.get("options", {})
    if text.startswith("--"):
        name, equals, _ = text.partition("=")
        if equals:
            return False
        if name not in options:
            known = [option for option in row.get("longs", ()) if option.startswith(name)]
            name = known[0] if len(known) == 1 else name
        return _value_follows(options[name]) if name in options else None
    if text in options:
        return _value_follows(options[text])
    for at in range(1, len(text)):
        slots = options.get(f"-{text[at]}")
        if slots is None:
            # The rest may be its value, or further letters; of one letter alone it may be the next word.
            return None
        if slots and slots[0][1]:
            return _value_follows(slots) and at == len(text) - 1
    return False


def _value_follows(slots: tuple[Any, ...]) -> bool:
    return bool(slots) and slots[0][1] not in ("", "operands", "stdin", "argv", "argv;") and slots[0][2] != "?"


def _has_options(wanted: Sequence[str], arguments: list[Word], row: Row) -> int:
    """Say whether options are given, wherever they stand and however they are written together."""
    if not wanted:
        return SURE
    texts = []
    unknown = False
    for word in arguments:
        if word.text == "--":
            break
        unknown = unknown or not word.proven
        texts.append(word.text)
    clusters = row.get("style", "guess") in _CLUSTERING
    letters = (
        {letter for text in texts if text[:1] == "-" and text[:2] != "--" for letter in text[1:]} if clusters else set()
    )
    for option in wanted:
        if not any(_is_option(text, option) for text in texts):
            short = clusters and not option.startswith("--")
            if not (short and letters.issuperset(option[1:])):
                return MAYBE if unknown else NO
    return SURE


def _is_option(text: str, wanted: str) -> bool:
    if text == wanted or text.startswith(f"{wanted}="):
        return True
    name = text.partition("=")[0]
    return name.startswith("--") and len(name) >= _SHORTEST and wanted.startswith(name)


def _finding(act: Command, match: Match) -> Finding:
    word = act.words[0]
    rule = match.rule
    said = shown(" ".join(rule.words))
    why = rule.reason or f"a rule in {rule.source} says so"
    text = (
        f"{said} is not for this project: {why}"
        if match.certainty == SURE
        else f"This may be {said}, which is not for this project: {why}"
    )
    return Finding(
        Axis.NAME if len(rule.words) == 1 else Axis.ARGV,
        rule.id,
        match.decision,
        text if text.endswith((".", "!", "?")) else f"{text}.",
        shown(word.text),
        word.start,
        max(0, word.end - word.start),
        word.argument,
        rule.instead,
    )

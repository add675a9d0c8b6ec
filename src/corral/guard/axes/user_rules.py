"""Judges commands by the user's own rules, which name the first words of a command. Pure.

A rule that refuses also matches behind options, paths, links and words that are only known at run time. A rule that allows matches only the exact
words, and lifts only the effects that its examples have. It never lifts findings of the path and structure axes, or the kernel's containment.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.guard.analysis.command import Command
from corral.guard.axes.findings import AXIS_OF, finding_at, quotable
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
_ALIASING = ("git", "hg", "jj", "cargo", "gh")  # an unknown subcommand may be the user's alias of another
# Programs whose operands are goals in any order: `mvn clean deploy` deploys.
_GOALS = ("mvn", "mvnw", "mvnd", "gradle", "gradlew", "make", "gmake", "ninja", "rake", "ant", "sbt", "just", "bazel", "nox", "invoke")  # fmt: skip
_ALIASES = ("alias.", "--config-env=alias.")  # settings that define a git alias
_SHORTEST = 3  # characters of an abbreviated option: --f


@frozen
class Match(Record):
    """A rule that matches a command, and how certain the match is."""

    rule: CommandRule
    certainty: int

    @property
    def decision(self) -> Decision:
        """The rule's decision, or at most ASK where only running the command could show whether the rule is meant."""
        return self.rule.decision if self.certainty == SURE else min(self.rule.decision, Decision.ASK)


def without_allowed(commands: list[Command], rules: Rules) -> tuple[list[Command], list[Command]]:
    """Return the commands that the name axis still judges, and all commands without allowed effects for the argv axis."""
    named, trimmed = [], []
    for command in commands:
        found = [match for file in rules for match in matches(command, file)]
        if not found or max(match.decision for match in found) is not Decision.ALLOW:
            named.append(command)
            trimmed.append(command)
            continue
        lifts = {key for match in found for key in match.rule.lifts}
        trimmed.append(_without(command, lifts))
    return named, trimmed


def _without(command: Command, lifts: set[str]) -> Command:
    made = Command(command.name, command.words, command.depth, command.cwds)
    made.output, made.real, made.row, made.verbs = command.output, command.real, command.row, command.verbs
    made.effects = [effect for effect in command.effects if effect[0] not in lifts]
    return made


def judge(commands: list[Command], rules: Rules) -> list[Finding]:
    """Return a finding for every command that a rule refuses or asks about."""
    found = []
    for command in commands:
        for file in rules:
            refusing = [match for match in matches(command, file) if match.decision is not Decision.ALLOW]
            if refusing:
                found.append(_finding(command, max(refusing, key=lambda match: match.decision)))
    return found


def matches(command: Command, file: Iterable[CommandRule]) -> list[Match]:
    """Return the rules of one file that match a command: the first certain match, and the uncertain ones before it."""
    found: list[Match] = []
    if not command.name:
        return found
    for rule in file:
        certainty = allows(command, rule) if rule.decision is Decision.ALLOW else _refuses(command, rule.words)
        if certainty:
            found.append(Match(rule, certainty))
        if certainty == SURE:
            break
    return found


def allows(command: Command, rule: CommandRule) -> int:
    """Return SURE if a command has exactly the words that a rule allows, else NO."""
    words = command.words
    size = len(rule.words)
    if len(words) < size or (rule.exact and len(words) != size):
        return NO
    # A path could lead to another program of the same name.
    if "/" in words[0].text or command.real not in ("", rule.words[0]):
        return NO
    fits = all(
        word.proven and not word.multi and word.text == want for word, want in zip(words, rule.words, strict=False)
    )
    return SURE if fits else NO


def liftable_effects(commands: Iterable[Command], rule: CommandRule) -> set[str]:
    """Return the effects of the commands that a rule allows. A rule can lift only effects on the argv axis."""
    found = [command for command in commands if command.name and allows(command, rule)]
    return {key for command in found for key, _, _ in command.effects if AXIS_OF.get(key) is Axis.ARGV}


def _refuses(command: Command, words: tuple[str, ...]) -> int:
    base = command.name.rpartition("/")[2]
    arguments = command.words[1:]
    row = command.row or {}
    names = {base, command.real} - {""}
    operands = [word for word in words[1:] if not word.startswith("-")]
    options = [word for word in words[1:] if word.startswith("-")]
    certainty = NO
    if words[0] in names:
        certainty = _begins(operands, arguments, row, goals=words[0] in _GOALS)
        certainty = min(certainty, _has_options(options, arguments, row))
    # `git push` can also be called as the program git-push.
    for size in range(1, len(operands) + 1):
        if "-".join((words[0], *operands[:size])) in names:
            rest = _begins(operands[size:], arguments, {})
            certainty = max(certainty, min(rest, _has_options(options, arguments, {})))
    return certainty


def _begins(wanted: Sequence[str], arguments: list[Word], row: Row, *, goals: bool = False) -> int:
    """Return how certainly the arguments begin with these words, options and their values aside. Goals match at any position."""
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
    """Return the readings of one argument: how many arguments it takes, whether it is the wanted word, and how certain that is."""
    text = word.text
    if len(text) > 1 and text[0] == "-" and word.proven:
        takes = _takes_value(text, row)
        # The option is unknown: the next word may be its value.
        return [(1, 0, SURE), (2, 0, SURE)] if takes is None else [(2 if takes else 1, 0, SURE)]
    if text[:1] == "+" and "sub" in row:
        return [(1, 0, SURE)]  # names a toolchain, as in `cargo +nightly publish`
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
        from corral.guard.globs import glob_matches  # noqa: PLC0415  for the few words that are patterns

        return HOLE in word.text or glob_matches(wanted, word.text)
    head, _, rest = word.text.replace("\1", HOLE).partition(HOLE)
    return wanted.startswith(head) and wanted.endswith(rest.rpartition(HOLE)[2])


def _takes_value(text: str, row: Row) -> bool | None:
    """Say whether an option's value is the next word, or return None for an unknown option."""
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
            # The rest may be this option's value or further options, or the value may be the next word.
            return None
        if slots and slots[0][1]:
            return _value_follows(slots) and at == len(text) - 1
    return False


def _value_follows(slots: tuple[Any, ...]) -> bool:
    return bool(slots) and slots[0][1] not in ("", "operands", "stdin", "argv", "argv;") and slots[0][2] != "?"


def _has_options(wanted: Sequence[str], arguments: list[Word], row: Row) -> int:
    """Return how certainly all wanted options are given, at any position and also in clusters such as -rf."""
    texts = [word.text for word in arguments]
    texts = texts[: texts.index("--")] if "--" in texts else texts
    clusters = row.get("style", "guess") in _CLUSTERING
    letters = {letter for text in texts if text[:1] == "-" and text[:2] != "--" for letter in text[1:]}
    for option in wanted:
        is_clustered = clusters and not option.startswith("--") and letters.issuperset(option[1:])
        if not is_clustered and not any(_is_option(text, option) for text in texts):
            return NO if all(word.proven for word in arguments[: len(texts)]) else MAYBE
    return SURE


def _is_option(text: str, wanted: str) -> bool:
    if text == wanted or text.startswith(f"{wanted}="):
        return True
    name = text.partition("=")[0]
    return name.startswith("--") and len(name) >= _SHORTEST and wanted.startswith(name)


def _finding(command: Command, match: Match) -> Finding:
    rule = match.rule
    words = f"`{quotable(' '.join(rule.words))}`"
    refusal = f"The policy does not allow {words}"
    if match.certainty != SURE:
        refusal = f"This may be {words}, which the policy does not allow"
    reason = f"{refusal}: {rule.reason or f'see the rule in {rule.source}'}"
    axis = Axis.NAME if len(rule.words) == 1 else Axis.ARGV
    reason = reason if reason.endswith((".", "!", "?")) else f"{reason}."
    return finding_at(command.words[0], axis, rule.id, match.decision, reason=reason, instead=rule.instead)

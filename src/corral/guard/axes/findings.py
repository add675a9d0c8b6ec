"""Builds findings. The wording of effects comes from effects.toml."""

from __future__ import annotations

from corral.guard.rules.loader import effects
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.guard.analysis.command import Command
    from corral.guard.shell.expansion import Word

WORK_TO_REFUSE = 30
MAX_QUOTED = 80  # characters of a call that a reason repeats
AXES = {"name": Axis.NAME, "argv": Axis.ARGV, "structure": Axis.STRUCTURE, "path": Axis.PATH}
EFFECTS = effects()
AXIS_OF = {key: AXES[data["axis"]] for key, data in EFFECTS.items()}


def spend_nothing(work: int) -> None:
    """Count no work: for a caller that judges one call without a limit."""


def quotable(text: str) -> str:
    """Return text of a call in the form that a reason repeats: bounded, printable, with unknown parts as `…`."""
    shown = text[:MAX_QUOTED].replace("\0", "…").replace("\1", "…")
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else " " for c in shown)
    return shown if len(text) <= MAX_QUOTED else shown[: MAX_QUOTED - 1] + "…"


def finding_at(
    word: Word, axis: Axis, rule: str, decision: Decision, *, reason: str, instead: str, text: str = ""
) -> Finding:
    """Return a finding that points at one word of the call."""
    text = quotable(text or word.text)
    length = max(0, word.end - word.start)
    return Finding(axis, rule, decision, reason, text, word.start, length, word.argument, instead)


def merged_finding(key: str, decision: Decision, command: Command, words: Sequence[Word]) -> Finding:
    """Return one finding for all words that give one command the same effect."""
    own = (command.words[0], *command.verbs)
    named = [word for word in words if word.text != "--" and all(word is not verb for verb in own)]
    if not named:
        return finding(key, decision, command, words[0], reason=EFFECTS[key].get("unnamed", ""))
    text = ", ".join(dict.fromkeys(word.text for word in named))
    return finding(key, decision, command, named[0], text=text, named=named)


def finding(
    key: str,
    decision: Decision,
    command: Command,
    word: Word,
    detail: str = "",
    *,
    text: str = "",
    reason: str = "",
    named: Sequence[Word] = (),
) -> Finding:
    """Return the finding for one effect of one command. `named` are the arguments that the reason quotes with the command."""
    data = EFFECTS[key]
    axis = AXIS_OF[key]
    rule = f"argv-{command.row['id'] if command.row else 'call'}-{key}" if axis is Axis.ARGV else f"{axis}-{key}"
    name = f"`{quotable(command.name)}`" if command.name else "The call"
    quoted = f"`{quotable(_excerpt(command, named))}`" if command.name else name
    reason = (reason or data["reason"]).format(
        name=name, command=quoted, text=quotable(text or word.text), detail=detail
    )
    return finding_at(word, axis, rule, decision, reason=reason, instead=data["instead"], text=text)


def _excerpt(command: Command, named: Sequence[Word]) -> str:
    """Return a command's name with its subcommands and the named arguments."""
    verbs = [id(verb) for verb in command.verbs]
    # A word after an unknown option may be its value instead of a subcommand, so the option is shown too.
    before = [
        word
        for word, after in zip(command.words, command.words[1:], strict=False)
        if id(after) in verbs and word.text[:1] == "-"
    ]
    arguments = sorted((*command.verbs, *before, *named), key=lambda word: (word.argument or 0, word.start))
    return " ".join(dict.fromkeys((command.name, *(word.text for word in arguments))))

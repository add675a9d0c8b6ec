"""Turn an effect into a finding, in the words of effects.toml. The only place where reasons are made."""

from __future__ import annotations

from corral.guard.rules.loader import effects
from corral.model.call import Axis, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.guard.analysis.command import Command
    from corral.guard.shell.expansion import Word

MAX_QUOTED = 80  # characters of the offending part that a reason repeats
AXES = {"name": Axis.NAME, "argv": Axis.ARGV, "structure": Axis.STRUCTURE, "path": Axis.PATH}
EFFECTS = effects()
AXIS_OF = {key: AXES[data["axis"]] for key, data in EFFECTS.items()}


def shown(text: str) -> str:
    """Return a part of a call as a reason may repeat it: holes visible, control characters not, bounded."""
    text = "".join(c if c.isprintable() else " " for c in text.replace("\0", "…").replace("\1", "…"))
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"


def merged(key: str, decision: Decision, act: Command, words: Sequence[Word]) -> Finding:
    """Return one finding for all words by which one command has the same effect."""
    named = [
        word for word in words if word.text != "--" and all(word is not verb for verb in (act.words[0], *act.verbs))
    ]
    if not named:
        return finding(key, decision, act, words[0], reason=_unnamed(EFFECTS[key]))
    return finding(key, decision, act, named[0], text=", ".join(dict.fromkeys(word.text for word in named)))


def _unnamed(data: dict[str, str]) -> str:
    """Return the reason without the offending word, for a word that is only the command's own name or a subcommand."""
    return data.get("unnamed") or data["reason"].replace(" ({text})", "")


def finding(
    key: str, decision: Decision, act: Command, word: Word, detail: str = "", *, text: str = "", reason: str = ""
) -> Finding:
    """Return the finding for one effect of one command."""
    data = EFFECTS[key]
    axis = AXES[data["axis"]]
    row = act.row["id"] if act.row else "call"
    name = act.name or "The call"
    rule = f"argv-{row}-{key}" if axis is Axis.ARGV else f"{axis}-{key}"
    text = shown(text or word.text)
    return Finding(
        axis,
        rule,
        decision,
        (reason or data["reason"]).format(name=shown(name), text=text, detail=detail),
        text,
        word.start,
        max(0, word.end - word.start),
        word.argument,
        data["instead"],
    )

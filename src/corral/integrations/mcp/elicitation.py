"""What a person is asked before a call that is neither allowed nor refused, word for word. One answer lets one call run."""

from __future__ import annotations

import os

from corral._lib.terminal import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Call, Verdict

MAX_QUESTION = 4000  # characters; what cannot be shown whole cannot be agreed to
MAX_OPEN = 64
NOT_ASCII = "Note that it holds letters that are not ASCII, which may look like others."
TOO_LONG = "It is too long to be shown to a person whole, so nobody was asked."
NOBODY = (
    "Nobody can be asked here, because the client does not support elicitation: "
    "the owner can approve it for this project in a terminal (corral grants add), or allow it in the policy (corral policy show)."
)
CHANGED = "Since a person was asked, the policy or what it would do has changed, or the answer was used; ask again."
SAID_NO = "The person who was asked said no."


class Questions:
    """The questions that wait for an answer. Each has a number that is used once, so that an answer cannot be given again."""

    def __init__(self) -> None:
        self._open: dict[tuple[Call, Verdict], str] = {}

    def text(self, call: Call, verdict: Verdict) -> str:
        """Return the question for a call, the same one until it is answered; nothing where it is too long to ask."""
        if (call, verdict) not in self._open:
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[call, verdict] = os.urandom(4).hex()
        words = call.argv if isinstance(call.argv, str) else " ".join(_quoted(str(word)) for word in call.argv)
        why = [f"- {printable(finding.reason)}" for finding in verdict.findings if finding.decision == verdict.decision]
        lines = (
            "An agent wants to run a command that needs your word:",
            f"  {printable(words)}",
            f"in {printable(str(call.cwd or 'the project'))}, because:",
            *dict.fromkeys(why),
            *(() if words.isascii() else (NOT_ASCII,)),
            f"(question {self._open[call, verdict]})",
        )
        text = "\n".join(lines)
        return text if len(text) <= MAX_QUESTION else ""

    def close(self, call: Call, verdict: Verdict) -> bool:
        """Take the answer to a question, and say whether that was open: each counts once."""
        return self._open.pop((call, verdict), None) is not None


def _quoted(word: str) -> str:
    plain = word and not set(word) & set(" \t\n'\"\\$`&|;<>()*?[]{}~#!")
    return word if plain else "'" + word.replace("'", "'\"'\"'") + "'"

"""The question that a person is asked before a call that needs approval. One answer lets one call run, once."""

from __future__ import annotations

import os

from corral._lib.terminal import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Call, Verdict

MAX_QUESTION = 4000  # characters; the user must see a command in full to approve it
MAX_OPEN = 64
_SPECIAL = frozenset(" \t\n'\"\\$`&|;<>()*?[]{}~#!")
NOT_ASCII = "Note: the command contains letters that are not ASCII and may look like other letters."
TOO_LONG = "The command is too long to be shown in full, so the user was not asked."
NOBODY = (
    "The user cannot be asked here, because the client does not support elicitation. "
    "The user can approve the command for this project in a terminal (corral grants add), or allow it in the policy (corral policy show)."
)
CHANGED = (
    "The policy or the effect of the command changed after the question, or the answer was already used. Try again."
)
SAID_NO = "The user answered no."


class Questions:
    """The questions that wait for an answer. Each has a number that is used once, so that an answer cannot be replayed."""

    def __init__(self) -> None:
        self._open: dict[tuple[Call, Verdict], str] = {}

    def text(self, call: Call, verdict: Verdict) -> str:
        """Return the question for a call, the same one until it is answered; an empty string if it is too long to ask."""
        if (call, verdict) not in self._open:
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[call, verdict] = os.urandom(4).hex()
        words = call.argv if isinstance(call.argv, str) else " ".join(_quote(str(word)) for word in call.argv)
        why = [f"- {printable(finding.reason)}" for finding in verdict.findings if finding.decision == verdict.decision]
        lines = (
            "An agent wants to run a command that needs your approval:",
            f"  {printable(words)}",
            f"in {printable(str(call.cwd or 'the project'))}, because:",
            *dict.fromkeys(why),
            *(() if words.isascii() else (NOT_ASCII,)),
            f"(question {self._open[call, verdict]})",
        )
        text = "\n".join(lines)
        return text if len(text) <= MAX_QUESTION else ""

    def close(self, call: Call, verdict: Verdict) -> bool:
        """Close the question for a call, and say whether it was open."""
        return self._open.pop((call, verdict), None) is not None


def _quote(word: str) -> str:
    # Not shlex.quote(): it would quote letters that are not ASCII, and make the question harder to read.
    is_plain = word and not set(word) & _SPECIAL
    return word if is_plain else "'" + word.replace("'", "'\"'\"'") + "'"

"""The question that a person is asked before a call that needs approval. One answer lets one call run, once.

Some clients render the question as Markdown. The agent's words are in a code block that they cannot end, so that none is hidden.
"""

from __future__ import annotations

import os
import re

from corral._lib.terminal import printable
from corral.guard.broker_shapes import sentences_about
from corral.model.grant import BROKER
from corral.model.render_grant import grant_text, meanings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.model.call import Call, Verdict

    Key = tuple[str, str, Call, Verdict]  # the project's root, the session, the call and its verdict

MAX_QUESTION = 4000  # characters; the user must see a command in full to approve it
MAX_OPEN = 64
LINE_CHARACTERS = 100  # of a code block; clients cut longer lines off at the window's edge
_SPECIAL = frozenset(" \t\n'\"\\$`&|;<>()*?[]{}~#!")
NOT_ASCII = "Note: the command contains letters that are not ASCII and may look like other letters."
TOO_LONG = "The command is too long to be shown in full, so the user was not asked."
NOBODY = (
    "The user cannot be asked here, because the client does not support elicitation. "
    "The user can approve the command for this project in a terminal (corral allow), or allow it in the policy (corral policy show)."
)
CHANGED = (
    "The policy or the effect of the command changed after the question, or the answer was already used. Try again."
)
SAID_NO = "The user answered no."


class Questions:
    """The questions that wait for an answer. Each has a number that is used once, so that an answer cannot be replayed."""

    def __init__(self) -> None:
        self._open: dict[Key, str] = {}

    def text(self, key: Key) -> str:
        """Return the question for a call, the same one until it is answered; an empty string if it is too long to ask."""
        root, _, call, verdict = key
        if key not in self._open:
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[key] = os.urandom(4).hex()
        words = call.argv if isinstance(call.argv, str) else " ".join(_quote(str(word)) for word in call.argv)
        lines = (
            "An agent wants to run a command that needs your approval:",
            _code_block([words]),
            "in this project:",
            _code_block([root]),
            *(("in this directory:", _code_block([str(call.cwd)])) if call.cwd else ()),
            *_why(verdict),
            *_opens(verdict),
            *(() if words.isascii() else (NOT_ASCII,)),
            f"(question {self._open[key]})",
        )
        text = "\n".join(lines)
        return text if len(text) <= MAX_QUESTION else ""

    def close(self, key: Key) -> bool:
        """Close the question for a call, and say whether it was open."""
        return self._open.pop(key, None) is not None


def _why(verdict: Verdict) -> Iterator[str]:
    """Yield why the user is asked. What an opening explains by itself is left out."""
    asked = [finding for finding in verdict.findings if finding.decision == verdict.decision]
    reasons = [finding.reason for finding in asked if not finding.grants]
    if reasons:
        yield from ("because:", _code_block(list(dict.fromkeys(reasons))))


def _opens(verdict: Verdict) -> Iterator[str]:
    """Yield what a yes opens, where it was found, and what that means. Targets and sources can be the agent's words."""
    if not verdict.grants:
        return
    needs = [
        f"{grant_text(grant)}  ({grant.source})" if grant.source else grant_text(grant) for grant in verdict.grants
    ]
    yield from ("It needs, for this one run:", _code_block(needs))
    if verdict.others:
        yield from ("These run in the same call and can use that too:", _code_block(list(verdict.others)))
    sentences = (*meanings(verdict.grants), *sentences_about(verdict.grants))
    yield from (sentence[0].upper() + sentence[1:] for sentence in sentences)
    is_outside = any(grant.kind == BROKER for grant in verdict.grants)
    yield f"{'The rest' if is_outside else 'It'} stays in the sandbox: no other host, no keys, and no other files outside the project."


def _code_block(texts: list[str]) -> str:
    """Return texts as a Markdown code block. A fence longer than every run of backticks in it cannot be closed by them."""
    shown = [printable(text) for text in texts]
    lines = [text[at : at + LINE_CHARACTERS] for text in shown for at in range(0, max(len(text), 1), LINE_CHARACTERS)]
    longest = max((len(run) for text in shown for run in re.findall("`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    return "\n".join((fence, *lines, fence))


def _quote(word: str) -> str:
    # Not shlex.quote(): it would quote letters that are not ASCII, and make the question harder to read.
    is_plain = word and not set(word) & _SPECIAL
    return word if is_plain else "'" + word.replace("'", "'\"'\"'") + "'"

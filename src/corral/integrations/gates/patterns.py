"""The gate of patterns: regular expressions over the text of a call's arguments. Pure; what cannot be looked through is refused.

A pattern sees text, not meaning: it is for what is easily said ("no production hosts"), and never instead of the guard.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from corral._lib.records import Record, frozen
from corral.integrations.gates.model import Refusal
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.integrations.gates.model import ToolCall

MAX_TEXT = 256 * 1024  # characters of a call's arguments; against expressions that take long
MAX_DEPTH = 32  # of lists and objects in each other, and so of our own recursion


@frozen
class Pattern(Record):
    """One expression, searched for in every text of the arguments, or in one named argument. What matches is refused.

    With `required`, the call is refused where no text matches instead.
    """

    rule: str
    regex: str
    reason: str
    instead: str = ""
    tool: str = "*"
    argument: str = "*"
    required: bool = False

    def _validate(self) -> None:
        try:
            re.compile(self.regex)
        except (re.error, TypeError) as error:
            raise PolicyError(f"the pattern {self.rule} is no regular expression: {error}") from None


class Patterns:
    """Refuses what a pattern names, the first in their order."""

    name = "patterns"

    def __init__(self, *patterns: Pattern) -> None:
        for pattern in patterns:
            if not isinstance(pattern, Pattern):
                raise PolicyError(
                    f"patterns are given one by one, each a Pattern(rule, regex, reason), not {pattern!r}"
                )
        self._patterns = [(pattern, re.compile(pattern.regex)) for pattern in patterns]

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse a call whose text a pattern forbids, or lacks what one requires."""
        for pattern, regex in self._patterns:
            if not fnmatchcase(call.tool, pattern.tool):
                continue
            try:
                found = any(regex.search(text) for text in _texts_of(call, pattern.argument))
            except _TooMuch as much:
                return Refusal("gate-pattern-limit", f"The call has {much}.", "Make a smaller call.")
            if found != pattern.required:
                return Refusal(pattern.rule, pattern.reason, pattern.instead)
        return None


class _TooMuch(Exception):
    """Arguments that are too long or too deep to be looked through."""


def _texts_of(call: ToolCall, argument: str) -> list[str]:
    given = call.arguments.items() if argument == "*" else [(argument, call.arguments.get(argument))]
    texts = [text for name, value in given for text in (str(name), *_texts(value, 0))]
    if argument != "*":
        texts = texts[1:]
    if sum(map(len, texts)) > MAX_TEXT:
        raise _TooMuch(f"more than {MAX_TEXT} characters of arguments, which no pattern looks through")
    return texts


def _texts(value: object, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise _TooMuch(f"arguments that are more than {MAX_DEPTH} deep")
    if value is None:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [text for inner in value for text in _texts(inner, depth + 1)]
        yield from parts
        # "rm -rf" must be found in ["rm", "-rf"].
        yield " ".join(parts)
    elif isinstance(value, (bytes, bytearray)):
        yield bytes(value).decode("utf-8", "replace")
    else:
        yield str(value)

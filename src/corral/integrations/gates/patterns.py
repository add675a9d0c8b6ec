"""Two pure gates: an allowlist of tool names, and regular expressions over the arguments of a call.

A pattern sees text, not meaning. Use it for simple rules such as "no production hosts"; it does not replace the guard.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from corral._lib.records import Record, frozen
from corral.integrations.gates.model import Refusal, names
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.integrations.gates.model import ToolCall

MAX_NAMED = 20  # tools that a refusal lists
MAX_TEXT = 256 * 1024  # characters of a call's arguments; against slow expressions
MAX_DEPTH = 32  # of nested lists and objects; against deep recursion


class ToolAllowlist:
    """Allows only the tools with these names. Names may contain the shell wildcards `*`, `?` and `[…]`. Case matters."""

    name = "tools"

    def __init__(self, *tools: str) -> None:
        self.tools = names("the tools of an allowlist", tools)

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse a tool that is not on the list."""
        if any(fnmatchcase(call.tool, tool) for tool in self.tools):
            return None
        listed = ", ".join(self.tools[:MAX_NAMED]) + (", …" if len(self.tools) > MAX_NAMED else "")
        instead = f"Use one of these: {listed}." if listed else "Continue without tools: the list is empty."
        return Refusal("gate-tool", f"The tool {call.tool[:100]!r} is not on the list of tools.", instead)


@frozen
class Pattern(Record):
    """A regular expression that is searched for in one argument, or in all. A call that matches is refused.

    With `required`, a call that does not match is refused instead.
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
            raise PolicyError(f"the pattern {self.rule} is not a regular expression: {error}") from None


class Patterns:
    """Refuses a call by the first pattern that forbids it. Refuses arguments that are too large to search."""

    name = "patterns"

    def __init__(self, *patterns: Pattern) -> None:
        for pattern in patterns:
            if not isinstance(pattern, Pattern):
                raise PolicyError(f"each argument of Patterns must be a Pattern(rule, regex, reason), not {pattern!r}")
        self._patterns = [(pattern, re.compile(pattern.regex)) for pattern in patterns]

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse a call that matches a forbidden pattern, or does not match a required one."""
        for pattern, regex in self._patterns:
            if not fnmatchcase(call.tool, pattern.tool):
                continue
            try:
                found = any(regex.search(text) for text in _texts_of(call, pattern.argument))
            except _TooLarge as error:
                return Refusal("gate-pattern-limit", f"The call has {error}.", "Make a smaller call.")
            if found != pattern.required:
                return Refusal(pattern.rule, pattern.reason, pattern.instead)
        return None


class _TooLarge(Exception):
    """The arguments are too long or too deeply nested to search."""


def _texts_of(call: ToolCall, argument: str) -> list[str]:
    # -1: the mapping of all arguments does not count as a level.
    found = _texts(call.arguments, -1) if argument == "*" else _texts(call.arguments.get(argument), 0)
    texts = list(found)
    if sum(map(len, texts)) > MAX_TEXT:
        raise _TooLarge(f"more than {MAX_TEXT} characters of arguments, the most that patterns search")
    return texts


def _texts(value: object, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise _TooLarge(f"arguments that are nested more than {MAX_DEPTH} levels deep")
    if value is None:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [text for inner in value for text in _texts(inner, depth + 1)]
        yield from parts
        # "rm -rf" must match ["rm", "-rf"].
        yield " ".join(parts)
    elif isinstance(value, (bytes, bytearray)):
        yield bytes(value).decode("utf-8", "replace")
    else:
        yield str(value)

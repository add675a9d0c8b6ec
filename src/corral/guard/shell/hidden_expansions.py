"""Finds expansions that bash makes in patterns, regular expressions and defaults, which the grammar shows as plain text."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.shell.parser import Node, Script

_PROCESS_SUBSTITUTION = pattern(r"(?<!\\)(?:\\\\)*[<>]\(")
_QUOTED_OR_EXPANDED = frozenset({
    "string", "raw_string", "ansi_c_string", "translated_string", "command_substitution", "process_substitution", "expansion",
    "arithmetic_expansion",
})  # fmt: skip
# Expansions that set no variable and evaluate nothing, and all others.
_PLAIN_EXPANSION = pattern(
    r"\$\{#?(?:[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?:[@*]|\d+)\])?(?:(?::?[-+?]|%%?|##?|/|,,?|\^\^?)[^$`{}]*)?\}"
)
_OTHER_EXPANSION = pattern(r"(?<!\\)(?:\\\\)*\$[{\[]")


def unquoted_text(node: Node, script: Script) -> str:
    """Return the text of a node without its quoted and expanded parts."""
    made = []
    at = node.start_byte
    stack = node.children[::-1]
    while stack:
        current = stack.pop()
        if current.type in _QUOTED_OR_EXPANDED:
            made += [script.cut(at, current.start_byte), "x"]
            at = current.end_byte
        else:
            stack.extend(reversed(current.children))
    return "".join(made) + script.cut(at, node.end_byte)


def hides_substitution(node: Node, script: Script) -> bool:
    """Return whether bash runs a process substitution in a node: [[ x = <(id) ]], ${x:-<(id)}."""
    return _PROCESS_SUBSTITUTION.search(unquoted_text(node, script)) is not None


def hides_expansion(text: str) -> bool:
    """Return whether a text has an expansion that sets or evaluates something: ${x:=y}, ${x@P}, ${a[i]}, $[x=1]."""
    return _OTHER_EXPANSION.search(_PLAIN_EXPANSION.sub("", text)) is not None

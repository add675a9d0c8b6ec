"""Counts the parts of pipelines before a text is parsed. tree-sitter-bash needs gigabytes for a syntax error behind thousands of `|`.

The count comes from the same parser: it parses the text with `;` in place of each `|`, for which an error costs it nothing.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.guard.shell.parser import Node

_PIPE = pattern(rb"(?<!\|)\|(?!\|)")
_SEPARATORS = frozenset({";", "&", "&&", "||", ";;", ";&", ";;&", "\n"})


def has_long_pipeline(source: bytes, parse: Callable[[bytes], Node], limit: int) -> bool:
    """Say whether a pipeline has more than `limit` pipes, or whether `parse` gives no answer."""
    root = None if b"|||" in source else parse(_PIPE.sub(b";", source))
    if root is None:
        return True
    stack = [root]
    while stack:
        node = stack.pop()
        nodes = node.children
        if len(nodes) > limit and _has_long_run(nodes, source, limit):
            return True
        stack.extend(child for child in nodes if child.end_byte - child.start_byte > limit)
    return False


def _has_long_run(nodes: list[Node], source: bytes, limit: int) -> bool:
    """Say whether more than `limit` pipes are among siblings without another separator between them."""
    run = last = 0
    is_behind_pipe = False
    for node in nodes:
        start = node.start_byte
        if node.type == "comment":
            continue
        if source[start : start + 1] == b"|" and node.type in _SEPARATORS:
            run += 1
            if run > limit:
                return True
            is_behind_pipe = True
        else:
            # A newline behind a pipe continues the pipeline.
            if node.type in _SEPARATORS or (not is_behind_pipe and b"\n" in source[last:start]):
                run = 0
            is_behind_pipe = False
        last = node.end_byte
    return False

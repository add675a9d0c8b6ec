"""Reads the parts of a simple command as bash does: assignments, words and redirects, in the order of the text."""

from __future__ import annotations

from corral.guard.analysis import statements
from corral.guard.analysis.command import judge_simple_command
from corral.guard.analysis.scope import UNSET
from corral.guard.analysis.statements import redirect
from corral.guard.analysis.syntax_tree import WORD_PARTS, children, redirect_may_fail, splits_word
from corral.guard.shell.expansion import Word, begins_translated_string

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.statements import Target
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.parser import Node

_RESERVED = frozenset({
    "{", "}", "!", "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "function", "select", "[[", "]]", "until",
    "while", "for",
})  # fmt: skip

_NO_WORDS = frozenset({"$", "variable_assignment", "command_name", "file_redirect", "herestring_redirect"})


def walk(walker: Walker, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
    """Judge a simple command: its assignments, words and redirects."""
    words: list[Word] = []
    assignments: list[tuple[str, Value, Word]] = []
    targets = list(targets)
    script = frame.script
    stdin = frame.stdin
    last = node.start_byte
    last_word: Node = None
    dashes: list[Word] = []
    held: dict[str, Any] = {}  # variables that an assignment before the command hides from the next assignment only
    nodes = children(node, frame, joins=True, dashes=dashes)
    text = script.source[last : node.end_byte]
    has_redirects = b"<" in text or b">" in text
    before = frame.scope.copy() if has_redirects and any(redirect_may_fail(each, frame) for each in nodes) else None
    if has_redirects and statements.redirects_see_later_values(node, None, frame):
        frame.report("unparsed", node)
    for child in nodes:
        kind = child.type
        split = last_word is not None and child.start_byte == last and splits_word(last_word, child)
        if split and last_word.type not in WORD_PARTS:
            frame.report("unparsed", node)
        last_word = child
        if held and kind != "variable_assignment":
            for name, value in held.items():
                frame.scope.restore(name, value)
            held = {}
        is_behind = assignments and not words and kind != "variable_assignment"
        if is_behind and b"\n" in script.source[last : child.start_byte]:
            # `a=1 b=2` alone on a line: the grammar wrongly attaches the assignments to the command on the next line.
            judge_simple_command(frame, node, [], assignments, ())
            frame.allow_dropped_line(ends=False)
            assignments = []
        if kind not in _NO_WORDS or (kind == "$" and not begins_translated_string(child)):
            made = frame.words(child, kind)
            if made and words and split:
                head, tail = words[-1], made.pop(0)
                glob, multi = head.glob or tail.glob, head.multi or tail.multi
                words[-1] = Word(head.text + tail.text, head.start, tail.end, glob=glob, multi=multi)
            words += made
        elif kind == "variable_assignment":
            assignments.append(statements.assigned(walker, child, frame))
            name, value, _ = assignments[-1]
            held.setdefault(name, frame.scope.variables.get(name, UNSET))
            frame.scope.variables[name] = value
        elif kind == "command_name":
            if child.start_byte == child.end_byte:
                continue  # assignments and a redirect without a command
            inner = child.children[0] if child.children else child
            kind = inner.type
            if kind == "word" and script.text_of(inner) in _RESERVED:
                frame.report("unparsed", node)
            words += frame.words(inner, kind)
        elif kind == "file_redirect":
            more, after = redirect(walker, child, frame)
            targets += more
            words += after
        elif kind == "herestring_redirect":
            frame.stdin = frame.text(child.children[-1]) + "\n"
        else:
            continue  # the `$` of $"…"
        last = child.end_byte
    words += dashes
    words += extra
    walker.check_count()
    judge_simple_command(frame, node, words, assignments, targets)
    walker.note_written_targets(targets, frame)
    if before is not None:
        frame.allow_failed_redirect(before, keeps_cwds=True)
    frame.stdin = stdin

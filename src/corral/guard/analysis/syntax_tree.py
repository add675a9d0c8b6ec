"""Answers questions about syntax tree nodes that need no walk: gaps between children, errors, variables that a loop changes."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis.scope import is_tainted
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import Word, decode_ansi_c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral.guard.analysis.scope import Frame
    from corral.guard.shell.parser import Node, Script


_LOOP_SETTERS = frozenset({
    "read", "mapfile", "readarray", "getopts", "printf", "let", "unset", "eval", "source", ".", "declare", "typeset", "local",
    "export", "readonly", "set", "shift", "wait",
})  # fmt: skip
WORD_PARTS = frozenset({
    "word", "number", "concatenation", "string", "raw_string", "ansi_c_string", "translated_string", "simple_expansion", "expansion",
    "command_substitution", "process_substitution", "arithmetic_expansion", "brace_expression", "extglob_pattern", "command_name",
})  # fmt: skip
_ENDS_WITH_WORD = WORD_PARTS | {"variable_assignment", "file_redirect", "herestring_redirect"}
_QUOTES = pattern(r"\\(.)|['\"]")
_SURE_REDIRECT = pattern(r"(?:\d*(?:<|>>?|>\|)|&>>?)\s*/dev/null|\d*[<>]&\s*[012]")
_EVALUATES = ("((", "[[", "let", "[", " -i")  # text in which bash may evaluate arithmetic
_COMPOSED_NAME = pattern(r"\$\w+=")
_ONE_LINE = frozenset({"command", "declaration_command", "unset_command", "redirected_statement", "file_redirect"})
_LEAVES = pattern(r"(exit|return)(?:\s+(?:\d+|\$\?))?")


def splits_word(before: Node, after: Node) -> bool:
    """Return whether the grammar split one word in two: nothing stands between them. It does so before a backtick."""
    return before.end_byte == after.start_byte and before.type in _ENDS_WITH_WORD and after.type in WORD_PARTS


def children(node: Node, frame: Frame, *, joins: bool = False, dashes: list[Word] | None = None) -> list[Node]:
    """Return a node's children. Report text between them that is not blank, because the grammar dropped it.

    A caller that joins the parts of a word that the grammar split sets `joins`, and no report is made.
    The grammar drops a lone `-` before a redirect; a caller that passes `dashes` gets it there instead of a report.
    """
    nodes: list[Node] = node.children
    if len(nodes) > 500:
        frame.spend(len(nodes))
    source = frame.script.source
    last = node.start_byte
    for index, child in enumerate(nodes):
        start = child.start_byte
        if index and start == last and not joins and splits_word(nodes[index - 1], child):
            frame.report("unparsed", node)
        if start > last:
            gap = source[last:start]
            if gap == b" ":
                last = child.end_byte
                continue
            if b"\n" in gap and node.type in _ONE_LINE and nodes[index - 1].type != "variable_assignment":
                # The grammar joins the next line. Behind an assignment the walker separates them.
                frame.report("unparsed", node)
            if gap.strip(b" \t\n"):
                at = Word(gap.decode("utf-8", "replace"), *frame.script.span(last, start))
                if dashes is not None and gap.strip(b" \t") == b"-" and child.type == "file_redirect":
                    dashes.append(at.part("-"))
                else:
                    frame.walker.report("unparsed", at, "")
        last = child.end_byte
    return nodes


def subtree(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it, in no particular order."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(current.children)


def prints_plainly(node: Node, script: Script) -> bool:
    """Return whether a substitution is one plain command without assignments whose output is not redirected."""
    inner = [c for c in node.children if c.type not in ("$(", "`", "<(", ")", ";", "comment")]
    if len(inner) == 1 and inner[0].type == "redirected_statement":
        inner = list(inner[0].children)
    if not inner or inner[0].type != "command" or inner[0].children[0].type == "variable_assignment":
        return False
    redirects = inner[1:] + [c for c in inner[0].children if c.type.endswith("_redirect")]
    texts = [script.text_of(r).replace(" ", "") for r in redirects]
    return all(t == "2>/dev/null" or (t[:1] == "<" and t[1:2] not in ("&", ">")) for t in texts)


def tainted_below(node: Node, frame: Frame) -> bool:
    """Return whether a literal below a node contains a subscript with a command in it, which arithmetic would run."""
    script = frame.script
    for count, current in enumerate(subtree(node)):
        if count & 255 == 255:
            frame.spend(256)
        kind = current.type
        if kind in ("raw_string", "ansi_c_string", "word", "string", "concatenation"):
            text = script.text_of(current)
            if kind == "ansi_c_string":
                text = decode_ansi_c(text[2:-1])
            elif kind != "raw_string":
                # Without a backslash or a quote bash runs the command at once, and it is judged there.
                text = _QUOTES.sub(r"\1", text) if "\\" in text or "'" in text else ""
            if is_tainted(text):
                return True
    return False


def redirect_may_fail(node: Node, frame: Frame) -> bool:
    """Return whether a node is a redirect that bash may be unable to make. It writes a large here-document to a file."""
    if frame.walker.has_limits and node.type in ("file_redirect", "herestring_redirect"):
        return True
    if node.type != "file_redirect" or any(c.start_byte in frame.script.heredocs for c in node.children):
        return False
    return frame.script.closes_descriptors or _SURE_REDIRECT.fullmatch(frame.script.text_of(node)) is None


def first_error(root: Node) -> Node:
    """Return the first node that the grammar could not parse, or the root."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            return node
        stack.extend(c for c in reversed(node.children) if c.has_error or c.is_missing)
    return root


def _names_below(nodes: Iterable[Node], script: Script, frame: Frame) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        for found in subtree(node):
            frame.spend(1)
            if found.type in ("variable_name", "word"):
                # Not `found.text`: after a parse that reads the text piece by piece it crashes the process.
                names.add(script.text_of(found))
    return names


def changed_below(node: Node, frame: Frame) -> tuple[set[str], set[str], bool, bool]:
    """Return the variables that a loop may change, those that it only sets to numbers, and whether it may move or change any variable."""
    script, functions = frame.script, frame.scope.functions
    moves, everything = False, "${!" in script.text_of(node)
    counters: set[str] = set()
    stack = [(node, script, False)]
    called: set[str] = set()
    texts = [script.text_of(node)]
    names: set[str] = set()
    while stack:
        current, script, is_setter = stack.pop()
        kind = current.type
        if is_setter and kind in ("variable_name", "word"):
            names.add(script.text_of(current))
        if kind == "variable_assignment" and current.children:
            is_counter = len(current.children) == 3 and current.children[2].type in ("number", "arithmetic_expansion")
            target = script.text_of(current.children[0])
            (counters if is_counter and current.children[1].type == "=" else names).add(target.partition("[")[0])
        elif kind == "command_name":
            raw = script.text_of(current)
            text = _QUOTES.sub(r"\1", raw)
            moves = moves or "{" in raw or "`" in raw or raw.startswith(("$(", "$'", '$"'))
            if text in ("builtin", "command", "time"):  # they may run any command that is named further on
                moves = everything = True
            if text in functions and text not in called:
                called.add(text)
                stack += [(body, owner, False) for owner, body in functions[text]]
                texts += [owner.text_of(body) for owner, body in functions[text]]
            moves = moves or text in ("cd", "pushd", "popd")
            everything = everything or text in _LOOP_SETTERS or not text.replace("_", "").replace("-", "").isalnum()
        elif kind == "for_statement":
            names |= {script.text_of(c) for c in current.children if c.type == "variable_name"}
        elif kind in ("declaration_command", "unset_command") or (
            kind == "expansion" and not is_setter and "=" in script.text_of(current)
        ):
            is_setter = True  # all names below it may be set
        elif kind == "arithmetic_expansion" or (kind == "compound_statement" and current.children[0].type == "(("):
            counters |= _names_below([current], script, frame)
        elif kind == "c_style_for_statement":
            parts = (c for c in current.children if c.type not in ("do_group", "compound_statement"))
            counters |= _names_below(parts, script, frame)
        frame.spend(1)
        if current.child_count:
            stack += [(child, script, is_setter) for child in current.children]
    from corral.guard.analysis.arithmetic import assigned_names  # noqa: PLC0415  few calls have a loop

    for text in texts:
        frame.spend(len(text) // 4 + 1)
        evaluates = any(mark in text for mark in _EVALUATES)
        assigned = assigned_names(text)
        if evaluates:
            names |= assigned - counters
            everything = everything or HOLE in assigned or _COMPOSED_NAME.search(text) is not None
        if "IFS" in text and (everything or evaluates):
            names.add("IFS")
    return names, counters - names, moves, everything


def leaves_the_shell(node: Node, frame: Frame, *, in_function: bool) -> bool:
    """Return whether a statement ends with `exit` or `return`, so that the statements behind it do not run.

    `return` leaves only a function. Neither leaves with other arguments than a number, or with a redirect, which may fail. If a
    redirect of the whole statement fails, nothing of it runs.
    """
    if node.type == "redirected_statement":
        node = node.children[0]
    while node.type == "compound_statement":
        inner = [c for c in node.children if c.type not in ("{", "}", ";", "\n", "comment")]
        if not inner or node.children[0].type == "((":
            return False
        node = inner[-1]
    match = _LEAVES.fullmatch(frame.script.text_of(node)) if node.type == "command" else None
    if match is None or match.group(1) in frame.scope.functions:
        return False
    return in_function or match.group(1) == "exit"

"""Answers questions about syntax tree nodes that need no walk: gaps between children, errors, variables that a loop changes."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis.scope import TAINT
from corral.guard.shell.expansion import Word, decode_ansi_c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.guard.analysis.scope import Frame, Functions
    from corral.guard.shell.parser import Node, Script


_LOOP_SETTERS = frozenset({
    "read", "mapfile", "readarray", "getopts", "printf", "let", "unset", "eval", "source", ".", "declare", "typeset", "local",
    "export", "readonly", "set", "shift", "wait",
})  # fmt: skip
_QUOTES = pattern(r"\\(.)|['\"]")


def children(node: Node, frame: Frame, *, joins: bool = False, dashes: list[Word] | None = None) -> list[Node]:
    """Return a node's children. Report text between them that is not blank, because the grammar dropped it.

    The grammar splits a word at a bare line continuation. A caller that joins such words sets `joins`, and no report is made.
    The grammar drops a lone `-` before a redirect; a caller that passes `dashes` gets it there instead of a report.
    """
    nodes: list[Node] = node.children
    source = frame.script.source
    last = node.start_byte
    for child in nodes:
        start = child.start_byte
        if start > last:
            gap = source[last:start]
            if gap.strip(b" \t\n") and (gap.replace(b"\\\n", b"").strip(b" \t\n") or (gap == b"\\\n" and not joins)):
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
    """Return whether a substitution is one plain command whose output is not redirected."""
    inner = [c for c in node.children if c.type not in ("$(", "`", "<(", ")", ";", "comment")]
    if len(inner) == 1 and inner[0].type == "redirected_statement":
        inner = list(inner[0].children)
    if not inner or inner[0].type != "command":
        return False
    redirects = inner[1:] + [c for c in inner[0].children if c.type.endswith("_redirect")]
    texts = [script.text_of(r).replace(" ", "") for r in redirects]
    return all(t == "2>/dev/null" or (t[:1] == "<" and t[1:2] not in ("&", ">")) for t in texts)


def tainted_below(node: Node, script: Script) -> bool:
    """Return whether a literal below a node contains a subscript with a command in it, which arithmetic would run."""
    for current in subtree(node):
        kind = current.type
        if kind in ("raw_string", "ansi_c_string", "word", "string", "concatenation"):
            text = script.text_of(current)
            if kind == "ansi_c_string":
                text = decode_ansi_c(text[2:-1])
            elif kind != "raw_string":
                # Without a backslash or a quote bash runs the command at once, and it is judged there.
                text = _QUOTES.sub(r"\1", text) if "\\" in text or "'" in text else ""
            if "[" in text and TAINT.search(text):
                return True
    return False


def first_error(root: Node) -> Node:
    """Return the first node that the grammar could not parse, or the root."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            return node
        stack.extend(c for c in reversed(node.children) if c.has_error or c.is_missing)
    return root


def changed_below(node: Node, script: Script, functions: Functions) -> tuple[set[str], bool, bool]:
    """Return the variables that a loop may change, whether it may change directory, and whether it may change any variable."""
    names: set[str] = set()
    moves = everything = False
    stack = [(node, script)]
    called: set[str] = set()
    while stack:
        current, script = stack.pop()
        kind = current.type
        if kind == "variable_assignment" and current.children:
            names.add(script.text_of(current.children[0]).partition("[")[0])
        elif kind == "command_name":
            text = script.text_of(current)
            if text in ("builtin", "command", "time"):  # they may run any command that is named further on
                moves = everything = True
            if text in functions and text not in called:
                called.add(text)
                stack += [(body, owner) for owner, body in functions[text]]
            moves = moves or text in ("cd", "pushd", "popd")
            everything = everything or text in _LOOP_SETTERS or not text.replace("_", "").replace("-", "").isalnum()
        elif kind == "for_statement":
            names |= {script.text_of(c) for c in current.children if c.type == "variable_name"}
        elif (
            kind in ("declaration_command", "unset_command")
            or (kind == "expansion" and "=" in script.text_of(current))
            or (
                kind in ("compound_statement", "arithmetic_expansion")
                and current.children
                and current.children[0].type in ("((", "$((")
            )
        ):
            found = (n for n in subtree(current) if n.type in ("variable_name", "word") and n.text is not None)
            names |= {n.text.decode("utf-8", "replace") for n in found}
        stack += [(child, script) for child in current.children]
    return names, moves, everything


def leaves_the_shell(node: Node, script: Script) -> bool:
    """Return whether a statement ends with `exit` or `return`, so that the statements behind it do not run."""
    while node.type in ("compound_statement", "redirected_statement"):
        inner = [c for c in node.children if c.type not in ("{", "}", ";", "comment", "file_redirect")]
        if not inner or node.children[0].type == "((":
            return False
        node = inner[-1]
    return node.type == "command" and script.text_of(node).split()[:1] in (["exit"], ["return"])

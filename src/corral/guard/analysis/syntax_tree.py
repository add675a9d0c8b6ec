"""Questions about the grammar's nodes that need no walk: children and the gaps between them, errors, what a loop changes."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis.scope import TAINT
from corral.guard.shell.expansion import Word, decode_ansi_c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.analysis.scope import Frame
    from corral.guard.shell.parser import Script

    Node = Any

_LOOP_SETTERS = frozenset(
    [
        "read",
        "mapfile",
        "readarray",
        "getopts",
        "printf",
        "let",
        "unset",
        "eval",
        "source",
        ".",
        "declare",
        "typeset",
        "local",
        "export",
        "readonly",
        "set",
        "shift",
        "wait",
    ]
)
_MOVERS = frozenset({"cd", "pushd", "popd"})

_QUOTES = pattern(r"\\(.)|['\"]")


def children(node: Node, frame: Frame, *, joins: bool = False, dashes: list[Word] | None = None) -> list[Node]:
    """Return a node's children; text between them that is not blank is something the grammar dropped, and is reported.

    A bare line continuation joins two words that the grammar splits: only a caller that `joins` them may pass it by.
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
                    dashes.append(at.part("-"))  # the grammar drops a lone `-` before a redirect
                else:
                    frame.walker.report("unparsed", at, "")
        last = child.end_byte
    return nodes


def prints_plainly(node: Node, script: Script) -> bool:
    """Say whether a substitution is one plain command whose output goes nowhere else."""
    inner = [c for c in node.children if c.type not in ("$(", "`", "<(", ")", ";", "comment")]
    if len(inner) == 1 and inner[0].type == "redirected_statement":
        inner = list(inner[0].children)
    if not inner or inner[0].type != "command":
        return False
    redirects = inner[1:] + [c for c in inner[0].children if c.type.endswith("_redirect")]
    texts = [script.cut(r.start_byte, r.end_byte).replace(" ", "") for r in redirects]
    return all(t == "2>/dev/null" or (t[:1] == "<" and t[1:2] not in ("&", ">")) for t in texts)


def tainted_below(node: Node, script: Script) -> bool:
    """Say whether a literal below a node holds a subscript with a command in it, which arithmetic would evaluate."""
    stack = [node]
    while stack:
        current = stack.pop()
        kind = current.type
        if kind in ("raw_string", "ansi_c_string", "word", "string", "concatenation"):
            text = script.cut(current.start_byte, current.end_byte)
            if kind == "ansi_c_string":
                text = decode_ansi_c(text[2:-1])
            elif kind != "raw_string":  # of these only what a backslash or a quote keeps from being run at once
                text = _QUOTES.sub(r"\1", text) if "\\" in text or "'" in text else ""
            if "[" in text and TAINT.search(text):
                return True
        stack.extend(current.children)
    return False


def first_error(root: Node) -> Node:
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            return node
        stack.extend(c for c in reversed(node.children) if c.has_error or c.is_missing)
    return root


def names_below(node: Node) -> set[str]:
    names: set[str] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type in ("variable_name", "word") and current.text is not None:
            names.add(current.text.decode("utf-8", "replace"))
        stack.extend(current.children)
    return names


def _sets(node: Node, script: Script) -> bool:
    return "=" in script.cut(node.start_byte, node.end_byte)


def changed_below(
    node: Node, script: Script, functions: dict[str, tuple[tuple[Script, Node], ...]]
) -> tuple[set[str], bool, bool]:
    """Return the variables a loop may change, whether it may change directory, and whether it may change anything at all."""
    names: set[str] = set()
    moves = everything = False
    stack = [(node, script)]
    called: set[str] = set()
    while stack:
        current, script = stack.pop()
        kind = current.type
        if kind == "variable_assignment" and current.children:
            names.add(script.cut(current.children[0].start_byte, current.children[0].end_byte).partition("[")[0])
        elif kind == "command_name":
            text = script.cut(current.start_byte, current.end_byte)
            if text in ("builtin", "command", "time"):  # what they run is a word further on
                moves = everything = True
            if text in functions and text not in called:
                called.add(text)
                stack += [(body, owner) for owner, body in functions[text]]
            moves = moves or text in _MOVERS
            everything = everything or text in _LOOP_SETTERS or not text.replace("_", "").replace("-", "").isalnum()
        elif kind == "for_statement":
            names |= {script.cut(c.start_byte, c.end_byte) for c in current.children if c.type == "variable_name"}
        elif (
            kind in ("compound_statement", "arithmetic_expansion")
            and current.children
            and current.children[0].type in ("((", "$((")
        ) or kind in ("declaration_command", "unset_command", "expansion"):
            names |= names_below(current) if kind != "expansion" or _sets(current, script) else set()
        stack += [(child, script) for child in current.children]
    return names, moves, everything


def leaves_the_shell(node: Node, script: Script) -> bool:
    """Say whether a statement ends with `exit` or `return`, so that nothing follows it."""
    while node.type in ("compound_statement", "redirected_statement"):
        inner = [c for c in node.children if c.type not in ("{", "}", ";", "comment", "file_redirect")]
        if not inner or node.children[0].type == "((":
            return False
        node = inner[-1]
    return node.type == "command" and script.cut(node.start_byte, node.end_byte).split()[:1] in (["exit"], ["return"])


def background_below(node: Node) -> bool:
    """Say whether anything below a node is started in the background."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type == "&":
            return True
        stack.extend(current.children)
    return False

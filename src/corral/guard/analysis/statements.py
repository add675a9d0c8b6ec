"""The compound statements and declarations of bash, walked. Where branches or rounds of a loop can differ, what they disagree on is unknown."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis.command import Command
from corral.guard.analysis.commands import assign_from_word, assign_variable
from corral.guard.analysis.scope import TAINT
from corral.guard.analysis.syntax_tree import background_below, changed_below, children
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.analysis.scope import Frame, Scope
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.parser import Script

    Node = Any

MAX_UNROLLED = 8  # values of a constant loop that are followed one by one
TOKENS = frozenset(
    [
        ";",
        "&",
        ";;",
        ";&",
        ";;&",
        "&&",
        "||",
        "|",
        "|&",
        "comment",
        "then",
        "do",
        "done",
        "fi",
        "in",
        "esac",
        "if",
        "elif",
        "else",
        "while",
        "until",
        "for",
        "select",
        "case",
        ")",
        "(",
        "{",
        "}",
    ]
) | {"\n"}
_QUOTED_SUBSCRIPT = pattern(r"'[^']*\[[^']*(?:\$\(|`)|\\\$\(")  # a literal that arithmetic would evaluate
_ENDS_A_COMMAND = pattern(r"(?<!\\)[<>|&;()\n]")
_QUOTES = pattern(r"['\"\\]")
_COMPARES = pattern(r"\s-(?:eq|ne|lt|le|gt|ge)\s|-v\s")
_SETS = pattern(
    r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_CLOSED = frozenset(
    [
        "string",
        "raw_string",
        "ansi_c_string",
        "translated_string",
        "command_substitution",
        "process_substitution",
        "expansion",
        "arithmetic_expansion",
    ]
)
_TRUE = ("true", ":", "[ 1 ]", "[[ 1 ]]", "((1))", "(( 1 ))", "/bin/true", "test 1")
_FALSE = ("false", "/bin/false", "! true")
_ENDLESS = frozenset([("while", *c.split()) for c in _TRUE] + [("until", *c.split()) for c in _FALSE])
BODIES = (
    "compound_statement",
    "subshell",
    "if_statement",
    "while_statement",
    "for_statement",
    "c_style_for_statement",
    "case_statement",
    "test_command",
)


def assigned(walker: Walker, node: Node, frame: Frame) -> tuple[str, Value, Word]:
    """Return the name and the value of an assignment node, and a word for where its value stands."""
    nodes = node.children
    at = frame.word_at(node)
    if len(nodes) < 2:
        frame.hidden(node, at.text)
        return at.text, None, at
    script = frame.script
    target = nodes[0]
    name = script.cut(target.start_byte, target.end_byte)
    value: Value = ""
    if len(nodes) > 2:
        source = nodes[2]
        if source.type == "array":
            words = [
                w for c in children(source, frame) if c.type not in ("(", ")", "comment") for w in _element(c, frame)
            ]
            value = [w.text for w in words] if all(w.proven for w in words) else None
        else:
            value = frame.text(source)
        if len(nodes) > 3:
            frame.hidden(node, at.text)
    if target.type == "subscript":
        frame.scan(target)
        if walker.tainted or "'" in name:
            walker.report("code-unproven", at, "")
        return script.cut(target.children[0].start_byte, target.children[0].end_byte), None, at
    if nodes[1].type == "+=":
        old = frame.scope.variables.get(name)
        value = (
            old + value
            if isinstance(old, list) and isinstance(value, list)
            else old + value
            if isinstance(old, str) and isinstance(value, str)
            else None
        )
    return name, value, at


def assignment(walker: Walker, node: Node, frame: Frame) -> None:
    act = Command("", [frame.word_at(node)], frame.depth, frame.scope.cwds)
    name, value, word = assigned(walker, node, frame)
    walker.acts.append(act)
    assign_variable(walker, frame, act, name, value, word)


def assignments(walker: Walker, node: Node, frame: Frame) -> None:
    for child in children(node, frame):
        if child.type == "variable_assignment":
            assignment(walker, child, frame)
        else:
            walker.statement(child, frame)


def declaration(walker: Walker, node: Node, frame: Frame) -> None:
    nodes = children(node, frame)
    keyword = nodes[0].type
    act = Command(keyword, [frame.word_at(node)], frame.depth, frame.scope.cwds)
    walker.acts.append(act)
    flags = ""
    local = frame.scope.locals is not None and keyword in ("local", "declare", "typeset")
    bare: list[str] = []
    made: list[tuple[str, Value, Word]]
    made = []  # all values are expanded before the first is set: declare A=1 B=$A gives B the old A
    for child in nodes[1:]:
        kind = child.type
        if kind == "variable_assignment":
            name, value, word = assigned(walker, child, frame)
            if "i" in flags and (walker.tainted or (isinstance(value, str) and ("$(" in value or "`" in value))):
                act.effects.append(("code-unproven", word, ""))
            if "n" in flags:  # what is set through it later is another variable
                act.effects.append(("word-unproven", word, ""))
            if local and "g" not in flags:
                frame.scope.hide(name)
            made.append((name, value, word))
        elif kind in ("file_redirect", "herestring_redirect"):
            walker.report("unparsed", frame.word_at(child), "")
            frame.scan(child)
        else:
            for word in frame.words(child):
                if word.text.startswith("-"):
                    flags += word.text
                elif word.proven and word.text.isidentifier():
                    if "n" in flags:
                        act.effects.append(("word-unproven", word, ""))
                    if local and "g" not in flags:
                        frame.scope.hide(word.text)
                        frame.scope.variables[word.text] = ""
                    bare.append(word.text)
                elif not word.proven or "=" in word.text or "[" in word.text:
                    act.effects.append(("word-unproven", word, ""))
                    assign_from_word(walker, frame, act, word)
    odd = "".join(flag for flag in "nilucr" if flag in flags) or ("r" if keyword == "readonly" else "")
    if odd.strip("r"):  # a reference, a number, or another case
        made = [(name, None, word) for name, _, word in made]
    for name, value, word in made:
        assign_variable(walker, frame, act, name, value, word)
    if odd:
        for name in bare + [name for name, _, _ in made]:
            frame.scope.attributes[name] = frame.scope.attributes.get(name, "") + odd


def unset(walker: Walker, node: Node, frame: Frame) -> None:
    for child in children(node, frame)[1:]:
        for word in frame.words(child):
            if "[" in word.text and ("$(" in word.text or "`" in word.text):
                walker.report("code-unproven", word, "")
            name, subscript, _ = word.text.partition("[")
            if not word.proven:
                frame.scope.variables = dict.fromkeys(frame.scope.variables)
                frame.scope.undefine(HOLE)
            frame.scope.variables[name] = (
                "" if word.proven and not subscript and name not in frame.scope.attributes else None
            )
            frame.scope.undefine(name)


def test(walker: Walker, node: Node, frame: Frame) -> None:
    frame.scan(node)
    text = frame.script.cut(node.start_byte, node.end_byte)
    if not text.startswith("[["):
        if _ENDS_A_COMMAND.search(_bare(node, frame.script)):  # in [ … ] these are what they are everywhere
            walker.report("unparsed", frame.word_at(node), "")
        if "-v" in text and (walker.tainted or _QUOTED_SUBSCRIPT.search(text)):
            walker.report("code-unproven", frame.word_at(node), "")
        return
    if "=~" in text:
        frame.scope.variables["BASH_REMATCH"] = None
    if _COMPARES.search(text) and (
        walker.tainted or _QUOTED_SUBSCRIPT.search(text) or TAINT.search(_QUOTES.sub("", text))
    ):
        walker.report("code-unproven", frame.word_at(node), "")


def _bare(node: Node, script: Script) -> str:
    """Return the text of a node with everything quoted or expanded left out."""
    made = ""
    at = node.start_byte
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type in _CLOSED:
            made += script.cut(at, current.start_byte) + "x"
            at = current.end_byte
        else:
            stack.extend(reversed(current.children))
    return made + script.cut(at, node.end_byte)


def arithmetic(walker: Walker, node: Node, frame: Frame) -> None:
    """Look into arithmetic: substitutions, and literals that it would evaluate a second time."""
    for child in node.children:
        frame.scan(child, True)
    if walker.tainted:
        walker.report("code-unproven", frame.word_at(node), "")
    variables = frame.scope.variables
    for match in _SETS.finditer(frame.script.cut(node.start_byte, node.end_byte)):
        name = match.group(1) or match.group(2)
        if name in variables:  # perhaps: behind `&&` it keeps its value
            old = variables[name]
            variables[name] = (
                NUMBER_HOLE if isinstance(old, str) and (old.isdigit() or old in ("", NUMBER_HOLE)) else None
            )


def conditional(walker: Walker, node: Node, frame: Frame) -> None:
    branches: list[Scope] = []
    has_else = False
    clauses = [node]
    while clauses:
        clause = clauses.pop(0)
        pending: list[Node] = []
        for child in children(clause, frame):
            kind = child.type
            if kind == "then":
                walker.sequence(pending, frame)  # a condition: what it changes holds for all that follow
                pending = []
            elif kind == "elif_clause":
                clauses.append(child)
            elif kind == "else_clause":
                has_else = True
                clauses.append(child)
            else:
                pending.append(child)
        inner = frame.fork()
        branches.append(inner.scope)
        walker.sequence(pending, inner)
    frame.merge(branches if has_else else [*branches, frame.scope.copy()])


def loop(walker: Walker, node: Node, frame: Frame) -> None:
    _forget(walker, node, frame)
    _flood(walker, node, frame)
    inner = frame.fork()
    walker.rounds.append([])
    for child in children(node, frame):
        if child.type == "do_group":
            walker.block(child, inner)
        elif child.type not in TOKENS:
            walker.sequence([child], inner)
    frame.merge([inner.scope, frame.scope.copy(), *walker.rounds.pop()])


def _flood(walker: Walker, node: Node, frame: Frame) -> None:
    """Report a loop that never ends by itself and starts something in the background each time round."""
    header, _, _ = frame.script.cut(node.start_byte, node.end_byte).partition("do")
    words = header.replace(";", " ").split()
    endless = tuple(words) in _ENDLESS or (words[:1] == ["for"] and "".join(words[1:]) == "(())")
    if endless and background_below(node):
        walker.report("flood", Word(header.strip(), *frame.script.span(node.start_byte, node.end_byte)), "")


def _forget(walker: Walker, node: Node, frame: Frame) -> None:
    """Drop what a loop's body changes, since the body runs again after it has changed it."""
    names, moves, everything = changed_below(node, frame.script, frame.scope.functions)
    walker.spend(len(frame.scope.variables) // 4 + 1)
    if everything:
        frame.scope.variables = dict.fromkeys(frame.scope.variables)
        frame.scope.args = None
    for name in names:
        frame.scope.variables[name] = None
    if moves:
        frame.scope.cwds = None


def iteration(walker: Walker, node: Node, frame: Frame) -> None:
    nodes = children(node, frame)
    script = frame.script
    name, body, values, listed = "", None, [], False
    for child in nodes:
        kind = child.type
        if kind == "variable_name" and not name:
            name = script.cut(child.start_byte, child.end_byte)
        elif kind == "in":
            listed = True
        elif kind in ("do_group", "compound_statement"):
            body = child
        elif kind not in TOKENS:
            values += frame.words(child)
    if body is None:
        walker.report("unparsed", frame.word_at(node), "")
        return
    if not listed:
        values = [Word(a) for a in frame.scope.args] if frame.scope.args is not None else [Word(HOLE)]
    before = frame.scope.copy()
    constant = len(values) <= MAX_UNROLLED and all(w.proven for w in values)
    if not constant or nodes[0].type == "select":
        _forget(walker, body, frame)
        values = [Word(HOLE)]
    act = Command("", [frame.word_at(node)], frame.depth, frame.scope.cwds)
    walker.acts.append(act)
    walker.rounds.append([])
    for value in values:
        assign_variable(walker, frame, act, name, None if HOLE in value.text else value.text, value)
        walker.block(body, frame)
        if walker.rounds[-1]:
            frame.merge([frame.scope.copy(), *(s.copy() for s in walker.rounds[-1])])
    frame.merge([frame.scope.copy(), before, *walker.rounds.pop()])
    frame.scope.variables[name] = None


def c_style_iteration(walker: Walker, node: Node, frame: Frame) -> None:
    _forget(walker, node, frame)
    _flood(walker, node, frame)
    inner = frame.fork()
    walker.rounds.append([])
    for child in children(node, frame):
        if child.type in ("do_group", "compound_statement"):
            walker.block(child, inner)
        else:
            frame.scan(child, True)
    if walker.tainted:
        walker.report("code-unproven", frame.word_at(node), "")
    frame.merge([inner.scope, frame.scope.copy(), *walker.rounds.pop()])


def case(walker: Walker, node: Node, frame: Frame) -> None:
    branches = [frame.scope.copy()]
    fallen: Scope | None = None  # how the item before ended, if it goes on with this one
    for child in children(node, frame):
        if child.type == "case_item":
            inner = frame.fork()
            if fallen is not None:
                inner.merge([inner.scope.copy(), fallen.copy()])
            branches.append(inner.scope)
            parts = children(child, frame)
            start = next((i for i, part in enumerate(parts) if part.type == ")"), len(parts))
            for part in parts[:start]:
                frame.scan(part)
            walker.sequence(parts[start + 1 :], inner)
            fallen = inner.scope if parts and parts[-1].type in (";&", ";;&") else None
        elif child.type not in TOKENS:
            frame.scan(child)
    frame.merge(branches)


def function(walker: Walker, node: Node, frame: Frame) -> None:
    script = frame.script
    name = next(script.cut(c.start_byte, c.end_byte) for c in node.children if c.type == "word")
    body = next(c for c in node.children if c.type in BODIES)
    frame.scope.functions[name] = ((script, body),)
    frame.scope.uncertain -= {name}
    for child in node.children:
        if child.type == "file_redirect":
            targets, extra = walker.redirect(child, frame)
            walker.loose(child, frame, targets, extra)


def _element(node: Node, frame: Frame) -> list[Word]:
    if node.type == "variable_assignment":  # an element of an associative array: its key and value are data
        frame.scan(node)
        return [Word(HOLE)]
    return frame.words(node)

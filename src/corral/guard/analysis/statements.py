"""Walks assignments, declarations, compound statements and redirects. A value on which branches or rounds of a loop disagree is unknown."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis.addresses import network_effect
from corral.guard.analysis.command import assign_from_word, assign_variable
from corral.guard.analysis.scope import TAINT
from corral.guard.analysis.syntax_tree import changed_below, children, subtree
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.scope import Frame, Scope
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.heredoc import Heredoc
    from corral.guard.shell.parser import Node, Script

    Target = tuple[str, Word]  # "reads", "writes" or the effect of a connection, and the path or address

MAX_UNROLLED = 8  # values of a constant loop that are followed one by one
TOKENS = frozenset({
    ";", "&", ";;", ";&", ";;&", "&&", "||", "|", "|&", "comment", "then", "do", "done", "fi", "in", "esac", "if", "elif",
    "else", "while", "until", "for", "select", "case", ")", "(", "{", "}",
}) | {"\n"}  # fmt: skip
_QUOTED_SUBSCRIPT = pattern(r"'[^']*\[[^']*(?:\$\(|`)|\\\$\(")  # a literal that arithmetic would evaluate
_ENDS_COMMAND = pattern(r"(?<!\\)[<>|&;()\n]")
_QUOTES = pattern(r"['\"\\]")
_COMPARES = pattern(r"\s-(?:eq|ne|lt|le|gt|ge)\s|-v\s")
_SETS = pattern(
    r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_QUOTED_OR_EXPANDED = frozenset({
    "string", "raw_string", "ansi_c_string", "translated_string", "command_substitution", "process_substitution", "expansion",
    "arithmetic_expansion",
})  # fmt: skip
_TRUE = ("true", ":", "[ 1 ]", "[[ 1 ]]", "((1))", "(( 1 ))", "/bin/true", "test 1")
_FALSE = ("false", "/bin/false", "! true")
_ENDLESS = frozenset([("while", *c.split()) for c in _TRUE] + [("until", *c.split()) for c in _FALSE])
_FUNCTION_BODIES = frozenset({
    "compound_statement", "subshell", "if_statement", "while_statement", "for_statement", "c_style_for_statement", "case_statement",
    "test_command",
})  # fmt: skip


def assigned(walker: Walker, node: Node, frame: Frame) -> tuple[str, Value, Word]:
    """Return the name and the value of an assignment, and a word that shows where it stands."""
    nodes = node.children
    at = frame.word_at(node)
    if len(nodes) < 2:
        frame.report("unparsed", node)
        return at.text, None, at
    text_of = frame.script.text_of
    target = nodes[0]
    name = text_of(target)
    value: Value = ""
    if len(nodes) > 2:
        if nodes[2].type == "array":
            words: list[Word] = []
            for child in children(nodes[2], frame):
                if child.type == "variable_assignment":  # an element of an associative array
                    frame.scan(child)
                    words.append(Word(HOLE))
                elif child.type not in ("(", ")", "comment"):
                    words += frame.words(child)
            value = [w.text for w in words] if all(w.proven for w in words) else None
        else:
            value = frame.text(nodes[2])
        if len(nodes) > 3:
            frame.report("unparsed", node)
    if target.type == "subscript":
        frame.scan(target)
        if walker.tainted or "'" in name:
            walker.report("code-unproven", at)
        return text_of(target.children[0]), None, at
    if nodes[1].type == "+=":
        old = frame.scope.variables.get(name)
        value = old + value if old is not None and type(old) is type(value) else None  # type: ignore[operator]
    return name, value, at


def assignment(walker: Walker, node: Node, frame: Frame) -> None:
    name, value, word = assigned(walker, node, frame)
    assign_variable(walker, frame, walker.add_command(frame, [frame.word_at(node)]), name, value, word)


def assignments(walker: Walker, node: Node, frame: Frame) -> None:
    for child in children(node, frame):
        if child.type == "variable_assignment":
            assignment(walker, child, frame)
        else:
            walker.statement(child, frame)


def declaration(walker: Walker, node: Node, frame: Frame) -> None:
    nodes = children(node, frame)
    keyword = nodes[0].type
    scope = frame.scope
    command = walker.add_command(frame, [frame.word_at(node)], keyword)
    flags = ""
    hides = scope.locals is not None and keyword in ("local", "declare", "typeset")
    bare: list[str] = []
    made: list[tuple[str, Value, Word]]
    made = []  # bash expands all values before it sets the first: declare A=1 B=$A gives B the old A
    for child in nodes[1:]:
        kind = child.type
        if kind == "variable_assignment":
            name, value, word = assigned(walker, child, frame)
            if "i" in flags and (walker.tainted or (isinstance(value, str) and ("$(" in value or "`" in value))):
                command.emit("code-unproven", word)
            if "n" in flags:  # a later assignment to this name sets another variable
                command.emit("word-unproven", word)
            if hides and "g" not in flags:
                scope.hide(name)
            made.append((name, value, word))
        elif kind in ("file_redirect", "herestring_redirect"):
            frame.report("unparsed", child)
            frame.scan(child)
        else:
            for word in frame.words(child):
                if word.text.startswith("-"):
                    flags += word.text
                elif word.proven and word.text.isidentifier():
                    if "n" in flags:
                        command.emit("word-unproven", word)
                    if hides and "g" not in flags:
                        scope.hide(word.text)
                        scope.variables[word.text] = ""
                    bare.append(word.text)
                elif not word.proven or "=" in word.text or "[" in word.text:
                    command.emit("word-unproven", word)
                    assign_from_word(walker, frame, command, word)
    attributes = "".join(flag for flag in "nilucr" if flag in flags) or ("r" if keyword == "readonly" else "")
    for name, value, word in made:  # any attribute but -r changes the value
        assign_variable(walker, frame, command, name, None if attributes.strip("r") else value, word)
    if attributes:
        for name in bare + [name for name, _, _ in made]:
            scope.attributes[name] = scope.attributes.get(name, "") + attributes


def unset(walker: Walker, node: Node, frame: Frame) -> None:
    scope = frame.scope
    for child in children(node, frame)[1:]:
        for word in frame.words(child):
            if "[" in word.text and ("$(" in word.text or "`" in word.text):
                walker.report("code-unproven", word)
            name, subscript, _ = word.text.partition("[")
            if not word.proven:
                scope.variables = dict.fromkeys(scope.variables)
                scope.undefine(HOLE)
            is_unset = word.proven and not subscript and name not in scope.attributes
            scope.variables[name] = "" if is_unset else None
            scope.undefine(name)


def test(walker: Walker, node: Node, frame: Frame) -> None:
    frame.scan(node)
    text = frame.script.text_of(node)
    if not text.startswith("[["):
        if _ENDS_COMMAND.search(_unquoted_text(node, frame.script)):  # redirects and lists work inside [ … ]
            frame.report("unparsed", node)
        if "-v" in text and (walker.tainted or _QUOTED_SUBSCRIPT.search(text)):
            frame.report("code-unproven", node)
        return
    if "=~" in text:
        frame.scope.variables["BASH_REMATCH"] = None
    if _COMPARES.search(text) and (
        walker.tainted or _QUOTED_SUBSCRIPT.search(text) or TAINT.search(_QUOTES.sub("", text))
    ):
        frame.report("code-unproven", node)


def _unquoted_text(node: Node, script: Script) -> str:
    """Return the text of a node without its quoted and expanded parts."""
    made = ""
    at = node.start_byte
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type in _QUOTED_OR_EXPANDED:
            made += script.cut(at, current.start_byte) + "x"
            at = current.end_byte
        else:
            stack.extend(reversed(current.children))
    return made + script.cut(at, node.end_byte)


def arithmetic(walker: Walker, node: Node, frame: Frame) -> None:
    """Judge the substitutions in arithmetic, and the literals that it would evaluate a second time."""
    for child in node.children:
        frame.scan(child, True)
    if walker.tainted:
        frame.report("code-unproven", node)
    variables = frame.scope.variables
    for match in _SETS.finditer(frame.script.text_of(node)):
        name = match.group(1) or match.group(2)
        if name in variables:  # behind `&&` the assignment may not happen
            old = variables[name]
            is_number = isinstance(old, str) and (old.isdigit() or old in ("", NUMBER_HOLE))
            variables[name] = NUMBER_HOLE if is_number else None


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
                walker.sequence(pending, frame)  # the changes of a condition hold in all later branches
                pending = []
            elif kind in ("elif_clause", "else_clause"):
                has_else = has_else or kind == "else_clause"
                clauses.append(child)
            else:
                pending.append(child)
        inner = frame.fork()
        branches.append(inner.scope)
        walker.sequence(pending, inner)
    frame.merge(branches if has_else else [*branches, frame.scope.copy()])


def loop(walker: Walker, node: Node, frame: Frame) -> None:
    """Walk `while`, `until` and `for ((…))`."""
    is_arithmetic = node.type == "c_style_for_statement"
    _forget_changes(walker, node, frame)
    _report_fork_bomb(walker, node, frame)
    inner = frame.fork()
    walker.loop_exits.append([])
    for child in children(node, frame):
        if child.type == "do_group" or (is_arithmetic and child.type == "compound_statement"):
            walker.block(child, inner)
        elif is_arithmetic:
            frame.scan(child, True)
        elif child.type not in TOKENS:
            walker.sequence([child], inner)
    if is_arithmetic and walker.tainted:
        frame.report("code-unproven", node)
    frame.merge([inner.scope, frame.scope.copy(), *walker.loop_exits.pop()])


def _report_fork_bomb(walker: Walker, node: Node, frame: Frame) -> None:
    """Report an endless loop that starts a background process in every round."""
    header, _, _ = frame.script.text_of(node).partition("do")
    words = header.replace(";", " ").split()
    endless = tuple(words) in _ENDLESS or (words[:1] == ["for"] and "".join(words[1:]) == "(())")
    if endless and any(current.type == "&" for current in subtree(node)):
        walker.report("flood", Word(header.strip(), *frame.script.span(node.start_byte, node.end_byte)))


def _forget_changes(walker: Walker, node: Node, frame: Frame) -> None:
    """Forget the variables that a loop's body changes, because the body runs again with the new values."""
    names, moves, everything = changed_below(node, frame.script, frame.scope.functions)
    walker.spend(len(frame.scope.variables) // 4 + 1)
    if everything:
        frame.scope.variables = dict.fromkeys(frame.scope.variables)
        frame.scope.args = None
    frame.scope.variables.update(dict.fromkeys(names))
    if moves:
        frame.scope.cwds = None


def iteration(walker: Walker, node: Node, frame: Frame) -> None:
    nodes = children(node, frame)
    name, body, values, listed = "", None, [], False
    for child in nodes:
        kind = child.type
        if kind == "variable_name" and not name:
            name = frame.script.text_of(child)
        elif kind == "in":
            listed = True
        elif kind in ("do_group", "compound_statement"):
            body = child
        elif kind not in TOKENS:
            values += frame.words(child)
    if body is None:
        frame.report("unparsed", node)
        return
    if not listed:
        values = [Word(a) for a in frame.scope.args] if frame.scope.args is not None else [Word(HOLE)]
    before = frame.scope.copy()
    constant = len(values) <= MAX_UNROLLED and all(w.proven for w in values)
    if not constant or nodes[0].type == "select":
        _forget_changes(walker, body, frame)
        values = [Word(HOLE)]
    command = walker.add_command(frame, [frame.word_at(node)])
    walker.loop_exits.append([])
    for value in values:
        assign_variable(walker, frame, command, name, None if HOLE in value.text else value.text, value)
        walker.block(body, frame)
        if walker.loop_exits[-1]:
            frame.merge([frame.scope.copy(), *(s.copy() for s in walker.loop_exits[-1])])
    frame.merge([frame.scope.copy(), before, *walker.loop_exits.pop()])
    frame.scope.variables[name] = None


def case(walker: Walker, node: Node, frame: Frame) -> None:
    branches = [frame.scope.copy()]
    fallen: Scope | None = None  # the end of the item before, if it falls through into this one
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
    name = next(script.text_of(c) for c in node.children if c.type == "word")
    body = next(c for c in node.children if c.type in _FUNCTION_BODIES)
    frame.scope.functions[name] = ((script, body),)
    frame.scope.maybe_undefined -= {name}
    for child in node.children:
        if child.type == "file_redirect":
            targets, extra = redirect(walker, child, frame)
            walker.record_targets(child, frame, targets, extra)


def redirect(walker: Walker, node: Node, frame: Frame) -> tuple[list[Target], list[Word]]:
    """Return the files and connections that a redirect opens, and the words behind it, which are arguments of the command."""
    script = frame.script
    nodes = children(node, frame)
    operator, start, rest = "", node.end_byte, []
    for index, child in enumerate(nodes):
        if child.type != "file_descriptor":
            operator, start, rest = child.type, child.start_byte, nodes[index + 1 :]
            break
    words = [w for c in rest[1:] for w in frame.words(c)]
    heredoc = script.heredocs.get(start)
    if heredoc is not None:
        script.used_heredocs.add(start)
        frame.stdin = _heredoc_text(walker, heredoc, frame, node)
        return [], words
    if operator in ("<&-", ">&-"):
        return [], [w for c in rest for w in frame.words(c)]
    if not rest:
        frame.report("unparsed", node)
        return [], []
    places = frame.words(rest[0]) or [Word("", *script.span(node.start_byte, node.end_byte))]
    if operator in (">&", "<&") and all(w.text.rstrip("-").isdigit() or w.text == "-" for w in places):
        return [], words
    if operator == "<":
        frame.stdin = None
    verbs = ["reads"] if operator in ("<", "<&") else ["writes"]
    if script.unmasked[start : start + 2] == b"<>":
        verbs = ["reads", "writes"]
    return [target for w in places for target in _connection(w) or [(verb, w) for verb in verbs]], words


def _connection(word: Word) -> list[Target]:
    """Return the connection that bash makes for a path such as /dev/tcp/localhost/80, or nothing."""
    if not word.text.startswith(("/dev/tcp/", "/dev/udp/")) or word.text.count("/") != 4:
        return []
    _, _, scheme, host, port = word.text.split("/")
    if HOLE in host:
        return [("network-unproven", word)]
    address = f"{scheme}://{host}:{port if port.isdigit() else '0'}"
    return [(network_effect(address), word.part(address))]


def _heredoc_text(walker: Walker, heredoc: Heredoc, frame: Frame, node: Node) -> str | None:
    """Judge the substitutions in a here-document; return its text if it is known."""
    text = heredoc.body.decode("utf-8", "replace")
    if "[" in text and TAINT.search(text):
        walker.tainted = True
    if heredoc.quoted:
        return text
    from corral.guard.shell.heredoc import HeredocError, substitutions  # noqa: PLC0415  the parser has loaded it

    at = frame.word_at(node)
    try:
        inner = substitutions(heredoc.body)
    except HeredocError as error:
        walker.report("unparsed", at, f": {error}")
        return None
    for command in inner:
        walker.nested(command.decode("utf-8", "replace"), at, frame, frame.scope.copy())
    return None if "$" in text or "`" in text else text.replace("\\\\", "\\")

"""Walks assignments, declarations, compound statements and redirects. A value on which branches or rounds of a loop disagree is unknown."""

from __future__ import annotations

from corral._lib.lazy_regex import Following, pattern
from corral.guard.analysis.addresses import network_effect
from corral.guard.analysis.command import assign_variable
from corral.guard.analysis.scope import Frame, LimitExceeded, is_tainted
from corral.guard.analysis.syntax_tree import changed_below, children, subtree
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, Word, has_gap, is_number
from corral.guard.shell.parser import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.scope import Scope
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.heredoc import Heredoc
    from corral.guard.shell.parser import Node

    Target = tuple[str, Word]  # "reads", "writes" or the effect of a connection, and the path or address

MAX_UNROLLED = 8  # values of a constant loop that are followed one by one
MAX_COMMANDS_UNROLLED = 1500  # behind them no loop is followed so, because a long script may have a thousand loops
TOKENS = frozenset({
    ";", "&", ";;", ";&", ";;&", "&&", "||", "|", "|&", "comment", "then", "do", "done", "fi", "in", "esac", "if", "elif",
    "else", "while", "until", "for", "select", "case", ")", "(", "{", "}",
}) | {"\n"}  # fmt: skip
_IN_QUOTES = Following(r"\[", r"\$\(|`", "'")
_FIRST_ASSIGNMENT = pattern(r"for\s*+\(\(\s*+([A-Za-z_]\w*+)\s*+=(?!=)")
# A redirect such as {name}< file sets the variable, and the grammar takes {name} for a word.
_NAMED_DESCRIPTOR = pattern(r"(?<!\$)\{([A-Za-z_]\w*+)(?:(\[)|\}(?=[<>]))")
_ENDS_COMMAND = pattern(r"(?<!\\)[<>|&;()\n]")
_QUOTES = pattern(r"['\"\\]")
_ARITHMETIC_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_COMPARES = pattern(r"\s-(?:eq|ne|lt|le|gt|ge)\s|-v\s")
_BLANKS = (" ", "\t", "\n")
_REDIRECTS = frozenset({"file_redirect", "herestring_redirect"})
_ASSIGNING = pattern(rb"\$\{!?\w++(?:\[[^\]]*+\])?+:?=")  # ${x=text} and ${x:=text}
_BRACE = pattern(r"(?<!\$)\{")
_TRUE = ("true", ":", "[ 1 ]", "[[ 1 ]]", "((1))", "(( 1 ))", "/bin/true", "test 1")
_FALSE = ("false", "/bin/false", "! true")
_ENDLESS = frozenset([("while", *c.split()) for c in _TRUE] + [("until", *c.split()) for c in _FALSE])
_FUNCTION_BODIES = frozenset({
    "compound_statement", "subshell", "if_statement", "while_statement", "for_statement", "c_style_for_statement", "case_statement",
    "test_command",
})  # fmt: skip


def lines(walker: Walker, root: Node, frame: Frame) -> None:
    """Walk the lines of a script. An error in an expansion drops the rest of the line, and bash goes on with the next."""
    text, source = frame.script.text, frame.script.source
    if "}<" in text or "}>" in text:
        for match in _NAMED_DESCRIPTOR.finditer(text):
            frame.scope.distrust(match.group(1))
            if match.group(2):  # bash evaluates the subscript of {name[x]}< file
                walker.report("unparsed", frame.whole())
                frame.scope.forget_variables()
    outer, walker.line_exits = walker.line_exits, []
    line: list[Node] = []
    nodes = children(root, frame)
    if frame.script.is_one_line:
        line, nodes = nodes, []
    for child in nodes:
        if line and b"\n" in source[line[-1].end_byte : child.start_byte]:
            walker.sequence(line, frame)
            frame.allow_dropped_line()
            line = []
        line.append(child)
    walker.sequence(line, frame)
    frame.allow_dropped_line()
    walker.line_exits = outer


def assigned(walker: Walker, node: Node, frame: Frame) -> tuple[str, Value, Word]:
    """Return the name and the value of an assignment, and a word that shows where it stands."""
    nodes = node.children
    at = frame.word_at(node)
    if len(nodes) < 2 or has_gap(node):
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
                element = text_of(child)
                if element[:1] == "[" and "]" in element:
                    walker.evaluate(element[1 : element.rindex("]")], frame, at)
                if child.type == "variable_assignment":  # an element of an associative array
                    frame.scan(child)
                    frame.follow_arithmetic(text_of(child).partition("]")[0].lstrip("["))
                    words.append(Word(HOLE))
                elif child.type not in ("(", ")", "comment"):
                    if text_of(child).startswith("["):  # a subscript, which the grammar takes for text
                        frame.follow_arithmetic(text_of(child))
                    words += frame.words(child)
            value = [w.text for w in words] if all(w.proven for w in words) else None
        else:
            value = frame.text(nodes[2])
        if len(nodes) > 3:
            frame.report("unparsed", node)
    if target.type == "subscript":
        frame.scan(target)
        frame.follow_arithmetic(name.partition("[")[2][:-1])
        if "'" in name:
            walker.report("code-unproven", at)
        walker.evaluate(name.partition("[")[2], frame, at)
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
    command = walker.add_command(frame, [frame.word_at(node)], keyword)
    words: list[Word | tuple[str, Value, Word]]
    words = []  # bash expands all values before it sets the first: declare A=1 B=$A gives B the old A
    for child in nodes[1:]:
        if child.type == "variable_assignment":
            name, value, word = assigned(walker, child, frame)
            words.append((name, None if _expands_braces(child, frame) else value, word))
        elif child.type in ("file_redirect", "herestring_redirect"):
            frame.report("unparsed", child)
            frame.scan(child)
        else:
            words += frame.words(child)
    from corral.guard.analysis.declarations import declare  # noqa: PLC0415  few calls need it

    declare(frame, command, keyword, words)


def _expands_braces(node: Node, frame: Frame) -> bool:
    """Return whether a declaration sets the variable several times, as `export x={a,b}` does. A plain assignment expands no braces."""
    nodes = node.children
    if len(nodes) < 3 or _BRACE.search(frame.script.text_of(nodes[2])) is None:
        return False
    return nodes[2].type in ("word", "concatenation", "brace_expression") and len(frame.words(nodes[2])) != 1


def unset(walker: Walker, node: Node, frame: Frame) -> None:
    words = [word for child in children(node, frame)[1:] for word in frame.words(child)]
    walker.follow_declaration(frame, walker.add_command(frame, [frame.word_at(node)], "unset"), "unset", words)


def test(walker: Walker, node: Node, frame: Frame) -> None:
    from corral.guard.shell.hidden_expansions import hides_substitution, unquoted_text  # noqa: PLC0415  many calls test nothing

    frame.scan(node)
    walker.spend((node.end_byte - node.start_byte) // 2)
    text = frame.script.text_of(node)
    opening = 2 if text.startswith("[[") else 1
    if text[opening : opening + 1] not in _BLANKS or (opening == 2 and text[-3:-2] not in _BLANKS):
        frame.report("unparsed", node)  # [[x is the name of a command
    if opening == 1:
        if _ENDS_COMMAND.search(unquoted_text(node, frame.script)):  # redirects and lists work inside [ … ]
            frame.report("unparsed", node)
        if "-v" in text:
            if _has_quoted_subscript(text):
                frame.report("code-unproven", node)
            frame.evaluate(text, node)
            at = text.find("[", 2)
            if at >= 0:
                walker.follow_arithmetic(text[at + 1 :], frame)
        return
    if "(" in text and hides_substitution(node, frame.script):
        frame.report("unparsed", node)
    if "=~" in text:
        frame.scope.variables["BASH_REMATCH"] = None
    if _COMPARES.search(text):
        if _has_quoted_subscript(text) or is_tainted(_QUOTES.sub("", text[2:])):
            frame.report("code-unproven", node)
        frame.evaluate(text, node)
    for current in subtree(node):
        frame.spend(1)
        kinds = [frame.script.text_of(child) for child in current.children if child.type == "test_operator"]
        if any(kind in _ARITHMETIC_TESTS for kind in kinds):
            for child in current.children:
                if child.type != "test_operator":
                    walker.follow_arithmetic(frame.script.text_of(child), frame)


def _has_quoted_subscript(text: str) -> bool:
    """Return whether a text contains a literal that arithmetic would evaluate."""
    return "\\$(" in text or _IN_QUOTES.search(text.partition("'")[2])


def arithmetic(walker: Walker, node: Node, frame: Frame) -> None:
    """Judge the substitutions in arithmetic, and the literals that it would evaluate a second time."""
    for child in node.children:
        frame.scan(child, True)
    frame.evaluate(frame.script.text_of(node), node)
    text = frame.script.text_of(node).lstrip("$")
    if node.type != "compound_statement":
        frame.allow_error(text)
    walker.follow_arithmetic(text, frame)


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
    if is_arithmetic and (first := _FIRST_ASSIGNMENT.match(frame.script.text_of(node))) is not None:
        frame.scope.variables[first.group(1)] = NUMBER_HOLE
    _forget_changes(walker, node, frame)
    _report_fork_bomb(walker, node, frame)
    inner = frame.fork()
    walker.loop_exits.append([])
    for child in children(node, frame):
        if child.type == "do_group" or (is_arithmetic and child.type == "compound_statement"):
            walker.block(child, inner)
        elif is_arithmetic:
            frame.scan(child, True)
            frame.evaluate(frame.script.text_of(child), child)
        elif child.type not in TOKENS:
            walker.sequence([child], inner)
    frame.merge([inner.scope, frame.scope.copy(), *walker.loop_exits.pop()])


def _report_fork_bomb(walker: Walker, node: Node, frame: Frame) -> None:
    """Report an endless loop that starts a background process in every round."""
    header, _, _ = frame.script.text_of(node).partition("do")
    words = header.replace(";", " ").split()
    endless = tuple(words) in _ENDLESS or (words[:1] == ["for"] and "".join(words[1:]) == "(())")
    walker.spend((node.end_byte - node.start_byte) // 4 if endless else 0)
    if endless and any(current.type == "&" for current in subtree(node)):
        walker.report("flood", Word(header.strip(), *frame.script.span(node.start_byte, node.end_byte)))


def _forget_changes(walker: Walker, node: Node, frame: Frame) -> None:
    """Forget the variables that a loop's body changes, because the body runs again with the new values."""
    walker.spend(len(frame.scope.variables) // 16 + 1)
    for current in subtree(node):
        frame.spend(1)
        if current.type == "function_definition":  # a later round may call it
            name, body = _parts_of_function(current, frame.script)
            known = frame.scope.functions.get(name, ())
            frame.scope.functions[name] = (*known, (frame.script, body))
            frame.scope.maybe_undefined |= frozenset() if known else {name}
    names, counters, moves, everything = changed_below(node, frame)
    if everything:
        frame.scope.variables = dict.fromkeys(frame.scope.variables)
        frame.scope.args = None
    variables = frame.scope.variables
    for name in counters:
        variables[name] = NUMBER_HOLE if is_number(variables.get(name)) else None
    variables.update(dict.fromkeys(names))
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
    constant = constant and len(walker.commands) < MAX_COMMANDS_UNROLLED
    if not constant or nodes[0].type == "select":
        _forget_changes(walker, body, frame)
        counts = listed and all(w.proven and w.text.isdigit() for w in values)
        values = [Word(NUMBER_HOLE if counts else HOLE)]
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
            parts = children(child, frame, joins=True)
            start = next((i for i, part in enumerate(parts) if part.type == ")"), len(parts))
            for part in parts[:start]:  # bash expands the patterns of later items too if no earlier one fits
                frame.scan(part)
            inner = frame.fork()
            if fallen is not None:
                inner.merge([inner.scope.copy(), fallen.copy()])
            branches.append(inner.scope)
            walker.sequence(parts[start + 1 :], inner)
            fallen = inner.scope if parts and parts[-1].type in (";&", ";;&") else None
        elif child.type not in TOKENS:
            frame.scan(child)
    frame.merge([*branches, frame.scope.copy()])


def _parts_of_function(node: Node, script: Script) -> tuple[str, Node]:
    name = next(script.text_of(c) for c in node.children if c.type == "word")
    return name, next(c for c in node.children if c.type in _FUNCTION_BODIES)


def function(walker: Walker, node: Node, frame: Frame) -> None:
    script = frame.script
    name, body = _parts_of_function(node, script)
    frame.scope.functions[name] = ((script, body),)
    walker.bodies.append((name, script, body))
    frame.scope.maybe_undefined -= {name}
    for child in children(node, frame):  # reports a carriage return, which is part of the name
        if child.type == "file_redirect":
            targets, extra = redirect(walker, child, frame)
            walker.record_targets(child, frame, targets, extra)
            frame.scope.maybe_undefined |= {name}  # if a redirect fails, a call does not run the body


def redirects_see_later_values(node: Node, body: Node | None, frame: Frame) -> bool:
    """Say whether a redirect of a statement could see a value that the statement's own words or assignments give.

    bash expands the words first, wherever the redirects stand. The walker reads the redirects first.
    """
    redirects = [_source(child, frame) for child in node.children if child.type in _REDIRECTS]
    if not any(b"$" in text or b"`" in text for text in redirects):
        return False
    if body is None or body.type == "variable_assignments":
        return body is not None or _ASSIGNING.search(_source(node, frame)) is not None
    # Of assignments on a line of their own, the grammar makes a part of the next line's command.
    begins_so = body.type == "command" and body.children[0].type == "variable_assignment"
    is_split = begins_so and b"\n" in _source(body, frame)
    return is_split or _ASSIGNING.search(_source(node, frame)) is not None


def _source(node: Node, frame: Frame) -> bytes:
    text: bytes = frame.script.source[node.start_byte : node.end_byte]
    return text


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
    """Expand a here-document as the double-quoted string that it is to bash; return its text if it is known."""
    text = heredoc.body.decode("utf-8", "replace")
    if is_tainted(text):
        walker.tainted = True
    if heredoc.quoted:
        return text
    if "$" not in text and "`" not in text:
        return text.replace("\\\\", "\\")
    made = _expand_body(walker, heredoc.body, frame, frame.word_at(node))
    return None if made is None or HOLE in made or NUMBER_HOLE in made else made


def _expand_body(walker: Walker, body: bytes, frame: Frame, word: Word) -> str | None:
    """Return the text that the body of a here-document becomes, or None if it cannot be parsed."""
    from corral.guard.shell.heredoc import HeredocError, HeredocTimeout, as_string  # noqa: PLC0415  the parser has loaded it

    frame.check_depth()
    walker.spend(body.count(b"$") * 20)
    try:
        text = ": " + as_string(body, walker.is_late).decode("utf-8", "replace")
        script = Script(text, fixed_span=(word.start, word.end), is_late=walker.is_late_to_parse)
        reason = "" if script.problem is None else f": {script.problem[1]}"
    except HeredocTimeout:
        raise LimitExceeded("more here-documents than the guard has time for") from None
    except HeredocError as error:
        script, reason = None, f": {error}"
    root = None if script is None else script.root
    commands = [] if root is None or root.has_error or reason else root.children
    strings = commands[0].children[1:] if [c.type for c in commands] == ["command"] else []
    if script is None or [s.type for s in strings] != ["string"] or strings[0].end_byte != len(script.source):
        walker.report("unparsed", word, reason)
        return None
    text = Frame(walker, script, frame.scope, frame.depth + 1, frame.stdin).text(strings[0])
    if len(script.used_heredocs) < len(script.heredocs):
        walker.report("unparsed", word, ": text that only looks like a here-document")
    return text

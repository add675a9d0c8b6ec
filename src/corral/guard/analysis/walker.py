"""Walks a script in the order in which bash would run it, and collects every command it could run.

The walker is an abstract interpreter: it runs nothing, and it reports every node that it does not know. Depth, count and size are bounded.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis import side_effects, statements
from corral.guard.analysis.command import Command, assign_variable, judge_command, judge_simple_command, known_output
from corral.guard.analysis.scope import UNSET, Frame, LimitExceeded, Scope, new_shell_scope
from corral.guard.analysis.statements import TOKENS, redirect
from corral.guard.analysis.syntax_tree import children, first_error, leaves_the_shell, prints_plainly, tainted_below
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import Word, begins_translated_string
from corral.guard.shell.parser import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.guard.analysis.statements import Target
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.parser import Node


MAX_COMMANDS = 2000  # against a call that takes longer than a second to judge
MAX_WORK = 300_000  # about a microsecond each, against nested loops, thousands of variables, and arrays expanded again and again
MAX_NESTING = 60  # of statements, against Python's own recursion limit
_RESERVED = frozenset({
    "{", "}", "!", "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "function", "select", "[[", "]]", "until",
    "while", "for",
})  # fmt: skip
_SETTERS = frozenset({"declare", "printf", "read", "mapfile", "getopts", "wait", "unset", "let"})
_SUBSCRIPT = pattern(r"\w\\?['\"]?\[[^\n]*?(?:\$\\?['\"]?\(|`|\\)")  # perhaps a literal that arithmetic would evaluate


class Walker:
    """Collects the commands of one call."""

    __slots__ = (
        "commands", "copies", "function_exits", "has_deleted", "level", "links", "loop_exits", "machine", "tainted",
        "walked", "work", "written",
    )  # fmt: skip

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.commands: list[Command] = []
        self.level = 0
        self.tainted = False  # a literal contains text that arithmetic or a subscript would evaluate
        self.walked: set[int] = set()  # ids of the function bodies that were walked
        self.written: set[str] = set()
        self.copies: dict[str, str] = {}  # paths that the call copies or links, and the name of the original
        self.links: set[str] = set()  # made by this call, so the guard cannot resolve them
        self.has_deleted = False  # a file was deleted or renamed, so an existing file may be gone
        self.function_exits: list[list[Scope]] = []  # the states at each `return`, for each function on the stack
        self.loop_exits: list[list[Scope]] = []  # the states at each `break` and `continue`, for each loop
        self.work = 0

    def spend(self, work: int) -> None:
        """Count work; raise LimitExceeded when it is too much to judge in a second."""
        self.work += work
        if self.work > MAX_WORK:
            raise LimitExceeded("more work than the guard does for one call")

    def leave(self, name: str, scope: Scope) -> None:
        """Save the state where `return`, `break` or `continue` leaves a function or a loop."""
        for exits in self.function_exits[-1:] if name == "return" else self.loop_exits:
            self.spend(len(scope.variables) // 16 + 1)
            exits.append(scope.copy())

    def add_command(self, frame: Frame, words: list[Word], name: str = "") -> Command:
        """Add a command that runs in a frame."""
        command = Command(name, words, frame.depth, frame.scope.cwds)
        self.commands.append(command)
        return command

    def report(self, key: str, word: Word, detail: str = "") -> None:
        """Record an effect of the script itself."""
        if key != "limit":
            self._check_count()
        command = Command("", [word], 0, None)
        command.emit(key, word, detail)
        self.commands.append(command)

    def _check_count(self) -> None:
        if len(self.commands) >= MAX_COMMANDS:
            raise LimitExceeded(f"more than {MAX_COMMANDS} commands")

    def assign(self, frame: Frame, command: Command, name: str, value: Value, word: Word) -> None:
        """Set a variable that a command gets by name, and judge the change. Only a builtin's variables outlive the command."""
        setter = command.row["id"] if command.row else ""
        name, subscript, _ = name.partition("[")
        if setter not in _SETTERS:
            frame = frame.fork()
        elif setter == "unset":
            frame.scope.undefine(name)
        if HOLE in name:
            frame.scope.variables = dict.fromkeys([*frame.scope.variables, HOLE])
        assign_variable(self, frame, command, name, None if subscript else value, word)

    def judge_possible_command(self, frame: Frame, words: list[Word]) -> None:
        """Judge a command that a program may run."""
        frame.scope = frame.scope.copy()
        judge_command(self, frame, words)

    def judge_wrapped_command(self, frame: Frame, wrapper: Command, words: list[Word]) -> None:
        """Judge a command that another one runs. `command` and `builtin` run it in this shell, and `time` perhaps."""
        if wrapper.name in ("command", "builtin"):
            judge_command(self, frame, words)
            return
        scope, frame.scope = frame.scope, frame.scope.copy()
        judge_command(self, frame, words, direct=wrapper.name in ("time", "coproc"))
        if wrapper.name == "time":
            scope.merge([scope.copy(), frame.scope])

    def arithmetic(self, node: Node, frame: Frame) -> None:
        """Judge arithmetic."""
        statements.arithmetic(self, node, frame)

    def call_script(self, script: Script, scope: Scope) -> None:
        """Walk the text of a whole call."""
        self.script(script, Frame(self, script, scope, 0))
        if self.links:
            side_effects.distrust_new_links(self)

    def script(self, script: Script, frame: Frame) -> None:
        """Walk one parsed text."""
        whole = Word(script.text[:80], *script.span(0, len(script.source)))
        if script.problem is not None:
            key, reason = script.problem
            self.report(key, whole, f": {reason}")
        root = script.root
        if root is None:
            return
        if root.has_error:
            at = frame.word_at(first_error(root))
            self.report("unparsed", at if at.text.strip() else whole)
        if "[" in script.text and _SUBSCRIPT.search(script.text) and tainted_below(root, script):
            self.tainted = True
        self.block(root, frame)
        for owner, body in [pair for bodies in frame.scope.functions.values() for pair in bodies if pair[0] is script]:
            if body.id not in self.walked:  # a trap or a child process may call it
                self._body(Frame(self, owner, frame.scope.copy(), frame.depth + 1), body)
        if len(script.used_heredocs) < len(script.heredocs):
            self.report("unparsed", whole, ": text that only looks like a here-document")

    def nested(self, text: str, word: Word, frame: Frame, scope: Scope | None = None, stdin: str | None = None) -> None:
        """Walk shell text in a word: in the shell whose `scope` is given, or in a new one."""
        frame.check_depth()
        span = (word.start, word.end)
        is_whole_string = word.end - word.start == len(text) + 2  # the text of a quoted word
        script = Script(text, offset=word.start + 1, fixed_span=None if is_whole_string else span)
        scope = scope or new_shell_scope(frame.scope)
        self.script(script, Frame(self, script, scope, frame.depth + 1, frame.stdin if stdin is None else stdin))

    def block(self, node: Node, frame: Frame) -> None:
        """Walk the statements of a node in order."""
        self.sequence(children(node, frame), frame)

    def sequence(self, nodes: list[Node], frame: Frame) -> None:
        """Walk statements in order; a statement before `&` runs in a subshell."""
        for index, child in enumerate(nodes):
            if child.type in TOKENS:
                continue
            if index + 1 < len(nodes) and nodes[index + 1].type == "&":
                self.statement(child, frame.fork())
            else:
                self.statement(child, frame)
                frame.allow_failed_cd()

    def statement(self, node: Node, frame: Frame, targets: Iterable[Target] = (), extra: Iterable[Word] = ()) -> None:
        """Walk one statement; `targets` and `extra` are redirects and words that the grammar attached to a node around it."""
        kind = node.type
        handler = _SIMPLE_HANDLERS.get(kind)
        if handler is None and kind not in _BODY_HANDLERS:
            if kind != "ERROR":
                self.report("unparsed", frame.word_at(node), f": {kind}")
            frame.scan(node)
            if kind == "ERROR":  # find danger in the parts that were parsed
                for child in node.children:
                    if child.type in _SIMPLE_HANDLERS or child.type in _BODY_HANDLERS:
                        self.statement(child, frame)
            return
        self.level += 1
        self.work += 10
        if self.work > MAX_WORK:
            self.spend(0)
        if self.level > MAX_NESTING:
            raise LimitExceeded(f"more than {MAX_NESTING} statements inside one another")
        try:
            if handler is None:
                _BODY_HANDLERS[kind](self, node, frame, targets, extra)
            else:
                self.record_targets(node, frame, targets, extra)
                handler(self, node, frame)
        finally:
            self.level -= 1

    def record_targets(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        """Record the redirects of a statement that is no simple command; report words behind them."""
        for word in extra:
            self.report("unparsed", word)
        targets = list(targets)
        if targets:
            command = self.add_command(frame, [frame.word_at(node)])
            command.effects += [(verb, word, "") for verb, word in targets]
            self._note_written_targets(targets, frame)

    def _note_written_targets(self, targets: Iterable[Target], frame: Frame) -> None:
        for verb, word in targets:
            if verb == "writes":
                self.note_written(word, frame.scope.cwds)

    def note_written(self, word: Word, cwds: tuple[str, ...] | None) -> None:
        """Remember that this call writes a file, so that running it in the same call is reported."""
        if word.proven:
            self.written.update(self.machine.absolute(word.text, cwd) for cwd in cwds or ())
        else:
            self.written.add(HOLE)

    def _redirected(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        body = None
        targets, extra = list(targets), list(extra)
        dashes: list[Word] = []
        for child in children(node, frame, dashes=dashes):
            extra += dashes
            dashes.clear()
            kind = child.type
            if kind == "file_redirect":
                more, words = redirect(self, child, frame)
                targets += more
                extra += words
            elif kind == "herestring_redirect":
                frame.stdin = frame.text(child.children[-1]) + "\n"
            elif body is None and kind != "heredoc_redirect":
                body = child
            else:
                frame.report("unparsed", child)
                frame.scan(child)
        if body is None:
            self.record_targets(node, frame, targets, extra)
            return
        before = frame.scope.copy()
        self.statement(body, frame, targets, extra)
        if frame.scope.cwds != before.cwds and before.cwds is not None:
            frame.scope.cwds_if_cd_failed = before.cwds  # if a redirect fails, bash runs nothing of the statement
        if targets and body.type in ("compound_statement", "if_statement", "case_statement"):
            frame.merge([frame.scope.copy(), before])

    def _pipeline(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        parts = [c for c in children(node, frame) if c.type not in ("|", "|&", "comment")]
        text: str | None = None
        for index, part in enumerate(parts):
            inner = frame.fork()
            if index:
                inner.stdin = text
            last = index == len(parts) - 1
            before = len(self.commands)
            self.statement(part, inner, targets if last else (), extra if last else ())
            text = self._output(before, inner)

    def _list(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        parts: list[tuple[str, Node]] = []
        while node.type == "list":  # nested to the left; flattened so that a long list does not recurse
            nodes = children(node, frame)
            for child in reversed(nodes[1:]):
                if child.type in ("&&", "||"):
                    parts[-1] = (child.type, parts[-1][1]) if parts else (child.type, child)
                elif child.type != "comment":
                    parts.append(("", child))
            node = nodes[0]
        parts.append(("", node))
        parts.reverse()
        ends: list[Scope] = []  # the states in which the list may end before its last part
        before = frame.scope
        for index, (operator, part) in enumerate(parts):
            last = index == len(parts) - 1
            if index:
                self.spend(len(frame.scope.variables) // 8)
                frame.scope.cwds_if_cd_failed = ()
                stopped = frame.scope.copy()
                if stopped.cwds != before.cwds:  # a failed `cd` did not change directory
                    unmoved = stopped.copy()
                    unmoved.cwds = before.cwds
                    if operator == "||":
                        frame.scope.merge([unmoved, frame.scope.copy()])
                    else:
                        ends.append(unmoved)
                ends.append(stopped)
            before = frame.scope.copy()
            self.statement(part, frame, targets if last else (), extra if last else ())
        if ends:
            leaves = leaves_the_shell(parts[-1][1], frame.script)
            frame.merge(ends if leaves else [frame.scope.copy(), *ends])

    def _negated(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        for child in children(node, frame):
            if child.type != "!":
                self.statement(child, frame, targets, extra)
                frame.allow_failed_cd()

    def _subshell(self, node: Node, frame: Frame) -> None:
        self.block(node, frame.fork())

    def _compound(self, node: Node, frame: Frame) -> None:
        if node.children and node.children[0].type == "((":
            statements.arithmetic(self, node, frame)
        else:
            self.block(node, frame)

    def call_function(self, name: str, words: list[Word], frame: Frame) -> None:
        """Walk the bodies that a function may have, with the arguments of one call."""
        scope = frame.scope
        ends: list[Scope] = [scope.copy()] if name in scope.maybe_undefined else []
        bodies = scope.functions[name]
        for owner, body in bodies:
            frame.check_depth()
            inner = scope if len(bodies) == 1 else scope.copy()
            self._call(Frame(self, owner, inner, frame.depth + 1, frame.stdin), body, words)
            ends.append(inner.copy())
        if len(ends) > 1:
            frame.merge(ends)

    def _call(self, frame: Frame, body: Node, words: list[Word]) -> None:
        scope = frame.scope
        saved_args, saved_locals = scope.args, scope.locals
        scope.args = None if any(w.multi or w.glob for w in words[1:]) else [w.text for w in words[1:]]
        scope.locals = {}
        self.function_exits.append([])
        self._body(frame, body)
        exits = self.function_exits.pop()
        if exits:
            frame.merge([scope.copy(), *exits])
        for local, old in (scope.locals or {}).items():
            if old is UNSET:
                scope.variables.pop(local, None)
            else:
                scope.variables[local] = old
        scope.args, scope.locals = saved_args, saved_locals

    def _body(self, frame: Frame, body: Node) -> None:
        self.walked.add(body.id)
        self.statement(body, frame)

    def substitution(self, node: Node, frame: Frame) -> Value:
        """Judge the commands of a substitution; return its output if that is certain."""
        frame.check_depth()
        inner = Frame(self, frame.script, frame.scope.copy(), frame.depth + 1, frame.stdin)
        before = len(self.commands)
        text = frame.script.text_of(node)
        if text.startswith("`") and "\\" in text:
            # Inside backticks bash removes one more level of backslashes than the grammar does.
            inside = text[1:-1].replace("\\`", "`").replace("\\$", "$").replace("\\\\", "\\")
            self.nested(inside, frame.word_at(node), frame, inner.scope)
            return None
        for child in children(node, inner):
            if child.type == "file_redirect":
                self.record_targets(child, inner, *redirect(self, child, inner))
            elif child.type not in ("$(", "`", "<(", ">(", ")") and child.type not in TOKENS:
                after = child.next_sibling
                self.statement(child, inner.fork() if after is not None and after.type == "&" else inner)
                inner.allow_failed_cd()
        return self._output(before, inner) if prints_plainly(node, frame.script) else None

    def _output(self, before: int, frame: Frame) -> str | None:
        """Return the output of the commands since index `before`, if it is certain."""
        commands = self.commands[before:]
        if frame.scope.functions and any(command.name in frame.scope.functions for command in commands):
            return None
        return known_output(commands)

    def _command(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        words: list[Word] = []
        assignments: list[tuple[str, Value, Word]] = []
        targets = list(targets)
        script = frame.script
        stdin = frame.stdin
        last = node.start_byte
        dashes: list[Word] = []
        for child in children(node, frame, joins=True, dashes=dashes):
            kind = child.type
            gap = script.source[last : child.start_byte]
            if assignments and not words and kind != "variable_assignment" and b"\n" in gap.replace(b"\\\n", b""):
                # `a=1 b=2` alone on a line: the grammar wrongly attaches the assignments to the command on the next line.
                judge_simple_command(frame, [], assignments, (), frame.word_at(node))
                assignments = []
            if kind == "$" and begins_translated_string(child):
                continue
            if kind == "variable_assignment":
                assignments.append(statements.assigned(self, child, frame))
            elif kind == "command_name":
                inner = child.children[0] if child.children else child
                if inner.type == "word" and script.text_of(inner) in _RESERVED:
                    frame.report("unparsed", node)
                words += frame.words(inner)
            elif kind == "file_redirect":
                more, after = redirect(self, child, frame)
                targets += more
                words += after
            elif kind == "herestring_redirect":
                frame.stdin = frame.text(child.children[-1]) + "\n"
            else:
                made = frame.words(child)
                if made and words and gap in (b"\\\n", b""):
                    # A line continuation inside a word, or nothing: the grammar splits a word that bash joins.
                    head, tail = words[-1], made.pop(0)
                    multi = head.multi or tail.multi
                    words[-1] = Word(head.text + tail.text, head.start, tail.end, multi=multi)
                words += made
            last = child.end_byte
        words += dashes
        words += extra
        self._check_count()
        judge_simple_command(frame, words, assignments, targets, frame.word_at(node))
        self._note_written_targets(targets, frame)
        frame.stdin = stdin


# Handlers of statements that pass redirects on to their parts.
_BODY_HANDLERS: dict[str, Any] = {
    "command": Walker._command, "redirected_statement": Walker._redirected, "pipeline": Walker._pipeline, "list": Walker._list,
    "negated_command": Walker._negated,
}  # fmt: skip
_SIMPLE_HANDLERS: dict[str, Any] = {
    "subshell": Walker._subshell, "program": Walker._subshell, "compound_statement": Walker._compound,
    "variable_assignment": statements.assignment, "variable_assignments": statements.assignments,
    "declaration_command": statements.declaration, "unset_command": statements.unset, "if_statement": statements.conditional,
    "while_statement": statements.loop, "for_statement": statements.iteration, "c_style_for_statement": statements.loop,
    "case_statement": statements.case, "function_definition": statements.function, "test_command": statements.test,
}  # fmt: skip

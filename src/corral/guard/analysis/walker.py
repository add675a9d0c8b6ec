"""Walk a script in the order in which bash would run it, and collect every command it could run. Depth, count and size are bounded.

An abstract interpreter that never runs anything and never skips a node: one it does not know is reported.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis import commands, redirects, side_effects, statements
from corral.guard.analysis.command import Command, known_output
from corral.guard.analysis.scope import UNSET, Frame, LimitExceeded, Scope, new_shell_scope
from corral.guard.analysis.statements import TOKENS
from corral.guard.analysis.syntax_tree import children, first_error, leaves_the_shell, prints_plainly, tainted_below
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import Word
from corral.guard.shell.parser import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Value

    Node = Any
    Target = tuple[str, Word]  # "reads" or "writes", and what

MAX_COMMANDS = 2000  # against a call that takes longer than a second to judge
MAX_WORK = 300_000  # about a microsecond each: against loops in loops, thousands of variables, and arrays written out again and again
MAX_NESTING = 60  # of statements, against Python's own recursion limit
_RESERVED = frozenset(
    [
        "{",
        "}",
        "!",
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "do",
        "done",
        "case",
        "esac",
        "function",
        "select",
        "[[",
        "]]",
        "until",
        "while",
        "for",
    ]
)
_SETTERS = frozenset({"declare", "printf", "read", "mapfile", "getopts", "wait", "unset", "let"})
_SUBSCRIPT = pattern(r"\w\\?['\"]?\[[^\n]*?(?:\$\\?['\"]?\(|`|\\)")  # perhaps a literal that arithmetic would evaluate
_BODY_CARRIERS = frozenset({"pipeline", "list", "command", "redirected_statement", "negated_command"})


class Walker:
    """Collects the acts of one call."""

    __slots__ = (
        "acts",
        "argument",
        "copies",
        "level",
        "links",
        "machine",
        "returns",
        "rounds",
        "tainted",
        "vanished",
        "walked",
        "work",
        "written",
    )

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.acts: list[Command] = []
        self.level = 0
        self.tainted = False  # a literal holds text that arithmetic or a subscript would evaluate
        self.walked: set[int] = set()
        self.written: set[str] = set()
        self.copies: dict[str, str] = {}
        self.links: set[str] = set()  # made by this call: what lies behind them only running can tell
        self.vanished = False  # something was deleted or renamed: what exists now may not then
        self.returns: list[list[Scope]] = []  # for each function that is being walked, how it may have ended early
        self.rounds: list[list[Scope]] = []  # the same for each loop
        self.work = 0
        self.argument: int | None = None  # the argument of an argv call that is being looked into

    def spend(self, work: int) -> None:
        """Count work, and stop when it is too much to judge in a second."""
        self.work += work
        if self.work > MAX_WORK:
            raise LimitExceeded("more work than the guard does for one call")

    def leave(self, name: str, scope: Scope) -> None:
        """Keep what is known where `return`, `break` or `continue` leaves a function or a loop."""
        for ends in self.returns[-1:] if name == "return" else self.rounds:
            self.spend(len(scope.variables) // 16 + 1)
            ends.append(scope.copy())

    def report(self, key: str, word: Word, detail: str, depth: int = 0) -> None:
        """Record an effect that belongs to the script itself rather than to a command."""
        if len(self.acts) >= MAX_COMMANDS and key != "limit":
            raise LimitExceeded(f"more than {MAX_COMMANDS} commands")
        act = Command("", [word], depth, None)
        act.effects.append((key, word, detail))
        self.acts.append(act)

    def assign(self, frame: Frame, act: Command, name: str, value: Value, word: Word) -> None:
        """Set a variable for a command that was given its name, and judge what that changes; a program's own die with it."""
        setter = act.row["id"] if act.row else ""
        name, subscript, _ = name.partition("[")
        if setter not in _SETTERS:
            frame = frame.fork()
        elif setter == "unset":
            frame.scope.undefine(name)
        if HOLE in name:
            frame.scope.variables = dict.fromkeys([*frame.scope.variables, HOLE])
        commands.assign_variable(self, frame, act, name, None if subscript else value, word)

    def command(self, frame: Frame, words: list[Word]) -> None:
        """Judge a command that a program may run."""
        frame.scope = frame.scope.copy()
        commands.judge_command(self, frame, words)

    def wrapped(self, frame: Frame, act: Command, words: list[Word]) -> None:
        """Judge a command that another one runs; only `command` and `builtin` run it in this shell, and `time` perhaps."""
        if act.name in ("command", "builtin"):
            commands.judge_command(self, frame, words)
            return
        scope, frame.scope = frame.scope, frame.scope.copy()
        commands.judge_command(self, frame, words, direct=act.name in ("time", "coproc"))
        if act.name == "time":
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
        if script.problem:
            self.report("limit" if script.problem.startswith("more than") else "unparsed", whole, f": {script.problem}")
        root = script.root
        if root is None:
            return
        if root.has_error:
            bad = first_error(root)
            at = frame.word_at(bad)
            self.report("unparsed", at if at.text.strip() else whole, "")
        if "[" in script.text and _SUBSCRIPT.search(script.text) and tainted_below(root, script):
            self.tainted = True
        self.block(root, frame)
        for owner, body in [pair for bodies in frame.scope.functions.values() for pair in bodies if pair[0] is script]:
            if body.id not in self.walked:  # defined and never called: by a trap perhaps, or by what it exports it to
                self._body(Frame(self, owner, frame.scope.copy(), frame.depth + 1), body)
        if len(script.spent) < len(script.heredocs):
            self.report("unparsed", whole, ": a here-document that is none")

    def nested(self, text: str, word: Word, frame: Frame, scope: Scope | None = None, stdin: str | None = None) -> None:
        """Walk shell text that a word holds, as the same shell (`scope` given) or as a new one."""
        frame.check_depth()
        span = (word.start, word.end)
        exact = word.end - word.start == len(text) + 2  # a quoted word that holds exactly this text
        script = Script(text, base=word.start + 1, fixed=None if exact else span)
        if script.heredocs and not exact:
            script.fixed = span
        inner = Frame(
            self,
            script,
            scope or new_shell_scope(frame.scope),
            frame.depth + 1,
            stdin if stdin is not None else frame.stdin,
        )
        self.script(script, inner)

    def block(self, node: Node, frame: Frame) -> None:
        """Walk the statements of a node one after the other."""
        self.sequence(children(node, frame), frame)

    def sequence(self, nodes: list[Node], frame: Frame) -> None:
        """Walk statements one after the other; what `&` follows runs in a subshell."""
        for index, child in enumerate(nodes):
            if child.type in TOKENS:
                continue
            if index + 1 < len(nodes) and nodes[index + 1].type == "&":
                self.statement(child, frame.fork())
            else:
                self.statement(child, frame)
                frame.settle()

    def statement(self, node: Node, frame: Frame, targets: Iterable[Target] = (), extra: Iterable[Word] = ()) -> None:
        """Walk one statement; `targets` and `extra` are redirects and words that the grammar hung on something around it."""
        handler = _HANDLERS.get(node.type)
        if handler is None:
            if node.type != "ERROR":
                self.report("unparsed", frame.word_at(node), f": {node.type}")
            frame.scan(node)
            if node.type == "ERROR":
                self._rescue(node, frame)
            return
        self.level += 1
        self.work += 10
        if self.work > MAX_WORK:
            self.spend(0)
        if self.level > MAX_NESTING:
            raise LimitExceeded(f"more than {MAX_NESTING} statements inside one another")
        try:
            if node.type in _BODY_CARRIERS:
                handler(self, node, frame, targets, extra)
            else:
                self.loose(node, frame, targets, extra)
                handler(self, node, frame)
        finally:
            self.level -= 1

    def _rescue(self, node: Node, frame: Frame) -> None:
        """Look for danger in what could not be parsed; it proves nothing."""
        for child in node.children:
            if child.type in _HANDLERS:
                self.statement(child, frame)

    def loose(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        for word in extra:
            self.report("unparsed", word, "")
        targets = list(targets)
        if targets:
            act = Command("", [frame.word_at(node)], frame.depth, frame.scope.cwds)
            act.effects += [(verb, word, "") for verb, word in targets]
            self.acts.append(act)
            self._note_written(targets, frame)

    def _note_written(self, targets: Iterable[Target], frame: Frame) -> None:
        for verb, word in targets:
            if verb == "writes":
                self.note_written(word, frame.scope.cwds)

    def note_written(self, word: Word, cwds: tuple[str, ...] | None) -> None:
        """Remember that this call writes a file, so that running it in the same call is seen."""
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
                more, words = self.redirect(child, frame)
                targets += more
                extra += words
            elif kind == "herestring_redirect":
                frame.stdin = frame.text(child.children[-1]) + "\n"
            elif body is None and kind != "heredoc_redirect":
                body = child
            else:
                self.report("unparsed", frame.word_at(child), "")
                frame.scan(child)
        if body is None:
            self.loose(node, frame, targets, extra)
        else:
            before = frame.scope.copy()
            self.statement(body, frame, targets, extra)
            if frame.scope.cwds != before.cwds and before.cwds is not None:
                frame.scope.unmoved = before.cwds  # a redirect that fails keeps all of it from running
            if targets and body.type in ("compound_statement", "if_statement", "case_statement"):
                frame.merge([frame.scope.copy(), before])

    def redirect(self, node: Node, frame: Frame) -> tuple[list[Target], list[Word]]:
        """Return what a redirect opens, and the words behind its target, which are arguments of the command."""
        return redirects.redirect(self, node, frame)

    def _pipeline(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        parts = [c for c in children(node, frame) if c.type not in ("|", "|&", "comment")]
        text: str | None = None
        for index, part in enumerate(parts):
            inner = frame.fork()
            if index:
                inner.stdin = text
            last = index == len(parts) - 1
            before = len(self.acts)
            self.statement(part, inner, targets if last else (), extra if last else ())
            text = self._output(before, inner)

    def _list(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        parts: list[tuple[str, Node]] = []
        operator = ""
        while node.type == "list":  # left-deep: flattened, so that a long list does not recurse
            nodes = children(node, frame)
            for child in reversed(nodes[1:]):
                if child.type in ("&&", "||"):
                    parts[-1] = (child.type, parts[-1][1]) if parts else (child.type, child)
                elif child.type != "comment":
                    parts.append(("", child))
            node = nodes[0]
        parts.append((operator, node))
        parts.reverse()
        ends: list[Scope] = []  # how the list may have ended before its last part
        before = frame.scope
        for index, (operator, part) in enumerate(parts):
            last = index == len(parts) - 1
            if index:
                self.spend(len(frame.scope.variables) // 8)
                frame.scope.unmoved = ()
                stopped = frame.scope.copy()
                if stopped.cwds != before.cwds:  # a `cd` that failed moved nowhere
                    moved = stopped.copy()
                    moved.cwds = before.cwds
                    if operator == "||":
                        frame.scope.merge([moved, frame.scope.copy()])
                    else:
                        ends.append(moved)
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
                frame.settle()

    def _subshell(self, node: Node, frame: Frame) -> None:
        self.block(node, frame.fork())

    def _compound(self, node: Node, frame: Frame) -> None:
        if node.children and node.children[0].type == "((":
            statements.arithmetic(self, node, frame)
        else:
            self.block(node, frame)

    def call_function(self, name: str, words: list[Word], frame: Frame) -> None:
        """Walk the body of a function with the arguments of one call."""
        scope = frame.scope
        ends: list[Scope] = [scope.copy()] if name in scope.uncertain else []
        bodies = scope.functions[name]
        for body in bodies:
            frame.check_depth()
            inner = scope if len(bodies) == 1 else scope.copy()
            self._call(body, words, frame, inner)
            ends.append(inner.copy())
        if len(ends) > 1:
            frame.merge(ends)

    def _call(self, function: tuple[Script, Node], words: list[Word], frame: Frame, scope: Scope) -> None:
        owner, body = function
        saved_args, saved_locals = scope.args, scope.locals
        scope.args = None if any(w.multi or w.glob for w in words[1:]) else [w.text for w in words[1:]]
        scope.locals = {}
        self.returns.append([])
        self._body(Frame(self, owner, scope, frame.depth + 1, frame.stdin), body)
        ends = self.returns.pop()
        if ends:
            frame.spend_merge([scope, *ends])
            scope.merge([scope.copy(), *ends])
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
        """Judge what a substitution runs; return its output where that is certain."""
        frame.check_depth()
        inner = Frame(self, frame.script, frame.scope.copy(), frame.depth + 1, frame.stdin)
        before = len(self.acts)
        text = frame.script.cut(node.start_byte, node.end_byte)
        if text.startswith("`") and "\\" in text:
            # Inside backticks a backslash is removed once more than the grammar knows.
            inside = text[1:-1].replace("\\`", "`").replace("\\$", "$").replace("\\\\", "\\")
            self.nested(inside, frame.word_at(node), frame, inner.scope)
            return None
        targets: list[Target] = []
        for child in children(node, inner):
            if child.type == "file_redirect":
                more, extra = self.redirect(child, inner)
                targets += more
                self.loose(child, inner, more, extra)
            elif child.type not in ("$(", "`", "<(", ">(", ")") and child.type not in TOKENS:
                after = child.next_sibling
                self.statement(child, inner.fork() if after is not None and after.type == "&" else inner)
                inner.settle()
        return self._output(before, inner) if prints_plainly(node, frame.script) else None

    def _output(self, before: int, frame: Frame) -> str | None:
        """Return what the acts since `before` print, where that is certain."""
        if frame.scope.functions and any(a.name in frame.scope.functions for a in self.acts[before:]):
            return None
        return known_output(self.acts[before:])

    def _command(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        words: list[Word] = []
        assignments: list[tuple[str, Value, Word]] = []
        targets = list(targets)
        stdin = frame.stdin
        last = node.start_byte
        dashes: list[Word] = []
        for child in children(node, frame, joins=True, dashes=dashes):
            kind = child.type
            if (
                assignments
                and not words
                and kind != "variable_assignment"
                and b"\n" in frame.script.source[last : child.start_byte].replace(b"\\\n", b"")
            ):
                # `a=1 b=2` alone on a line: the grammar takes the next line's command for the one they are prefixes of.
                commands.judge_simple_command(self, frame, [], assignments, (), frame.word_at(node))
                assignments = []
            if kind == "variable_assignment":
                assignments.append(statements.assigned(self, child, frame))
            elif kind == "command_name":
                inner = child.children[0] if child.children else child
                if inner.type == "word" and frame.script.cut(inner.start_byte, inner.end_byte) in _RESERVED:
                    self.report("unparsed", frame.word_at(node), "")
                words += frame.words(inner)
            elif kind == "file_redirect":
                more, after = self.redirect(child, frame)
                targets += more
                words += after
            elif kind == "herestring_redirect":
                frame.stdin = frame.text(child.children[-1]) + "\n"
            elif kind != "$" or not frame.translates(child):
                made = frame.words(child)
                if made and words and frame.script.source[last : child.start_byte] in (b"\\\n", b""):
                    # A line continuation inside a word, or nothing at all: the grammar splits what bash joins.
                    words[-1] = Word(
                        words[-1].text + made[0].text,
                        words[-1].start,
                        made[0].end,
                        multi=words[-1].multi or made[0].multi,
                    )
                    made = made[1:]
                words += made
            if kind != "$" or not frame.translates(child):
                last = child.end_byte
        words += dashes
        words += extra
        if len(self.acts) >= MAX_COMMANDS:
            raise LimitExceeded(f"more than {MAX_COMMANDS} commands")
        commands.judge_simple_command(self, frame, words, assignments, targets, frame.word_at(node))
        self._note_written(targets, frame)
        frame.stdin = stdin


_HANDLERS: dict[str, Any] = {
    "command": Walker._command,
    "redirected_statement": Walker._redirected,
    "pipeline": Walker._pipeline,
    "list": Walker._list,
    "negated_command": Walker._negated,
    "subshell": Walker._subshell,
    "program": Walker._subshell,
    "compound_statement": Walker._compound,
    "variable_assignment": statements.assignment,
    "variable_assignments": statements.assignments,
    "declaration_command": statements.declaration,
    "unset_command": statements.unset,
    "if_statement": statements.conditional,
    "while_statement": statements.loop,
    "for_statement": statements.iteration,
    "c_style_for_statement": statements.c_style_iteration,
    "case_statement": statements.case,
    "function_definition": statements.function,
    "test_command": statements.test,
}

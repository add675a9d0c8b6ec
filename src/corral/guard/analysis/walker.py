"""Walks a script in the order in which bash would run it, and collects every command it could run.

The walker is an abstract interpreter: it runs nothing, and it reports every node that it does not know. Depth, count and size are bounded.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis import side_effects, simple_command, statements
from corral.guard.analysis.command import (
    Command,
    assign_from_word,
    assign_implicitly,
    assign_variable,
    judge_command,
    printed_since,
)
from corral.guard.analysis.scope import Frame, LimitExceeded, Scope, new_shell_scope
from corral.guard.analysis.statements import TOKENS, redirect
from corral.guard.analysis.syntax_tree import (
    children,
    first_error,
    leaves_the_shell,
    prints_plainly,
    redirect_may_fail,
    tainted_below,
)
from corral.guard.shell.braces import HOLE
from corral.guard.shell.parser import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.guard.analysis.statements import Target
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Value, Word
    from corral.guard.shell.parser import Node


MAX_COMMANDS = 6000  # against a call that takes too long to judge
MAX_WORK = 300_000  # against nested loops, thousands of variables, and arrays expanded again and again
MAX_CPU_SECONDS = 0.2  # for one call, against text that costs more than its work says
MAX_PARSE_SECONDS = 0.15  # of them, because the parser takes a third as long again after it has read its text
WORK_BETWEEN_LOOKS = 1000  # at the clock
MAX_NESTING = 60  # of statements, against Python's own recursion limit
_SETTERS = frozenset({"printf", "read", "mapfile", "getopts", "wait"})
_INNER_BACKTICK = pattern(r"(?<!\\)(?:\\\\)*`")


class Walker:
    """Collects the commands of one call."""

    __slots__ = (
        "assigned", "began", "bodies", "commands", "copies", "equation_names", "equations", "exports_functions", "function_exits", "has_limits",
        "has_moved", "is_concurrent", "level", "line_exits", "linked_from", "links", "loop_exits", "machine", "names_judged", "next_look", "paths_made",
        "paths_written",
        "placed", "tainted", "unresolved", "walked", "work",
    )  # fmt: skip

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.commands: list[Command] = []
        self.names_judged: set[int] = set()  # ids of the words that begin these commands, which keep them alive
        self.assigned: set[str] = set()  # every variable that the call may set, in this shell or another
        self.level = 0
        self.tainted = False  # a literal contains text that arithmetic or a subscript would evaluate
        self.equations: list[str] = []  # words that would assign a variable if arithmetic evaluated them
        self.equation_names: set[str] = set()  # the names that these words assign
        self.bodies: list[tuple[str, Script, Node]] = []  # every function of the call, with its name
        self.exports_functions = False  # a child shell may call any function
        self.walked: set[int] = set()  # ids of the function bodies that were walked
        self.paths_written: set[str] = set()
        self.paths_made: set[str] = set()
        # Texts of paths that belong to these sets. Most calls never ask for them, and to resolve a path takes as long as to parse it.
        self.unresolved: list[tuple[set[str], str, tuple[str, ...]]] = []
        self.copies: dict[str, str] = {}  # paths that the call copies or links, and the name of the original
        self.links: set[str] = set()  # made by this call, so the guard cannot resolve them
        self.has_limits = False  # the call sets limits, so a substitution may fail
        self.placed: set[str] = set()  # the targets of copies and moves, which may be links if the call makes any
        # The first command that runs after links were made at paths that no word names.
        self.linked_from: int | None = None
        self.is_concurrent = False  # commands may run later than their place in the script
        self.has_moved = False  # a directory was perhaps moved, so `..` of the working directory may lead elsewhere
        self.function_exits: list[list[Scope]] = []  # the states at each `return`, for each function on the stack
        self.loop_exits: list[list[Scope]] = []  # the states at each `break` and `continue`, for each loop
        self.line_exits: list[Scope] = []  # the states in which an error may end the line that is being walked
        self.work = 0
        self.next_look = WORK_BETWEEN_LOOKS  # the work at which the clock is read again
        self.began = 0.0  # on the machine's CPU clock; a short call never reads it

    def spend(self, work: int) -> None:
        """Count work, about a microsecond each; raise LimitExceeded when it is too much or the time is up."""
        self.work += work
        if self.work > self.next_look:
            self.next_look = self.work + WORK_BETWEEN_LOOKS
            if self.work > MAX_WORK or self.is_late():
                raise LimitExceeded("more work than the guard does for one call")

    def is_late(self, seconds: float = MAX_CPU_SECONDS) -> bool:
        """Say whether the time for this call is up. The time begins with the first question."""
        now = self.machine.cpu_seconds()
        if not self.began:
            self.began = now
        return now - self.began > seconds

    def look(self) -> None:
        """Look at the clock now, before work that depends on the files of the project."""
        self.next_look = 0
        self.spend(1)

    def is_late_to_parse(self) -> bool:
        """Say whether the time in which the parser may read is up."""
        return self.is_late(MAX_PARSE_SECONDS)

    def leave(self, name: str, scope: Scope) -> None:
        """Save the state where `return`, `break` or `continue` leaves a function or a loop."""
        for exits in self.function_exits[-1:] if name == "return" else self.loop_exits:
            self.spend(len(scope.variables) // 64 + 2)
            exits.append(scope.copy())

    def add_command(self, frame: Frame, words: list[Word], name: str = "") -> Command:
        """Add a command that runs in a frame."""
        command = Command(name, words, frame.depth, frame.scope.cwds)
        if self.commands:
            self.names_judged.add(id(words[0]))
        self.commands.append(command)
        return command

    def report(self, key: str, word: Word, detail: str = "") -> None:
        """Record an effect of the script itself."""
        if key != "limit":
            self.check_count()
        command = Command("", [word], 0, None)
        command.emit(key, word, detail)
        self.commands.append(command)

    def check_count(self) -> None:
        if len(self.commands) >= MAX_COMMANDS:
            raise LimitExceeded(f"more than {MAX_COMMANDS} commands")

    def assign(self, frame: Frame, command: Command, name: str, value: Value, word: Word) -> None:
        """Set a variable that a command gets by name, and judge the change. Only a builtin's variables outlive the command."""
        setter = command.row["id"] if command.row else ""
        name, _, subscript = name.partition("[")
        if setter not in _SETTERS:
            frame = frame.fork()
        if HOLE in name:
            frame.scope.forget_variables()
        if subscript:
            self.follow_arithmetic(subscript, frame)
        assign_variable(self, frame, command, name, None if subscript else value, word)

    def set_default(self, frame: Frame, name: str, value: str | None, word: Word) -> None:
        """Judge an assignment that ${name:=value} or arithmetic may make. An empty name stands for any variable."""
        if name:
            assign_implicitly(frame, name, value, word)
            frame.scope.variables[name] = None
        else:
            self.report("word-unproven", word)
            frame.scope.forget_variables()

    def follow_declaration(self, frame: Frame, command: Command, name: str, words: list[Word]) -> None:
        """Follow a builtin that declares or unsets variables, or sets the positional parameters."""
        from corral.guard.analysis import declarations  # noqa: PLC0415  few calls need it

        if name == "unset":
            declarations.unset(frame, command, words)
        elif name in ("set", "shift"):
            declarations.set_positional_parameters(frame, name, words)
        else:
            declarations.declare(frame, command, name, words)

    def follow_arithmetic(self, text: str, frame: Frame) -> None:
        """Follow the assignments that arithmetic makes when it evaluates a text."""
        from corral.guard.analysis.arithmetic import follow_assignments  # noqa: PLC0415  few calls need it

        follow_assignments(self, frame, text)

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
        self.is_concurrent = self.is_concurrent or wrapper.name == "coproc"
        while wrapper.name == "time" and words and ("=" in words[0].text or words[0].text == "!"):
            assign_from_word(self, frame, wrapper, words[0])  # `time x=1` is an assignment
            words = words[1:]
        if words:
            judge_command(self, frame, words, direct=wrapper.name in ("time", "coproc"))
        if wrapper.name == "time":
            scope.merge([scope.copy(), frame.scope])

    def evaluate(self, text: str, frame: Frame, word: Word) -> None:
        """Judge text that arithmetic evaluates: it runs commands in the subscripts of any value that it reads."""
        from corral.guard.analysis.operands import is_computed  # noqa: PLC0415  few calls need it

        if self.tainted:
            self.report("code-unproven", word)
        elif is_computed(frame, text):
            self.report("word-unproven", word)

    def arithmetic(self, node: Node, frame: Frame) -> None:
        """Judge arithmetic."""
        statements.arithmetic(self, node, frame)

    def call_script(self, frame: Frame) -> None:
        """Walk the text of a whole call."""
        self.script(frame.script, frame)
        if self.bodies:
            from corral.guard.analysis.functions import walk_remaining_functions  # noqa: PLC0415  few calls define one

            walk_remaining_functions(self, frame.scope)
        if self.links or self.has_moved or self.linked_from is not None:
            side_effects.distrust_changed_paths(self)

    def script(self, script: Script, frame: Frame) -> None:
        """Walk one parsed text."""
        if script.problem is not None:
            key, reason = script.problem
            self.report(key, frame.whole(), f": {reason}")
        root = script.root
        if root is None:
            return
        if root.has_error:
            at = frame.word_at(first_error(root))
            self.report("unparsed", at if at.text.strip() else frame.whole())
        if 0 <= script.text.find("[") < max(map(script.text.rfind, "$`\\@")) and tainted_below(root, frame):
            self.tainted = True
        statements.lines(self, root, frame)
        if len(script.used_heredocs) < len(script.heredocs):
            self.report("unparsed", frame.whole(), ": text that only looks like a here-document")

    def nested(self, text: str, word: Word, frame: Frame, scope: Scope | None = None, stdin: str | None = None) -> None:
        """Walk shell text in a word: in the shell whose `scope` is given, or in a new one."""
        frame.check_depth()
        self.spend(len(text) // 8 + 20)  # the parser reads about ten bytes in a microsecond
        span = (word.start, word.end)
        is_whole_string = word.end - word.start == len(text) + 2  # the text of a quoted word
        script = Script(
            text, self.is_late_to_parse, offset=word.start + 1, fixed_span=None if is_whole_string else span
        )
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
                self.is_concurrent = True
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
        if self.work > self.next_look:
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
            self.note_written_targets(targets, frame)

    def note_written_targets(self, targets: Iterable[Target], frame: Frame) -> None:
        for verb, word in targets:
            if verb == "writes":
                self.note_written(word, frame.scope.cwds)

    def note_written(self, word: Word, cwds: tuple[str, ...] | None, *, is_empty: bool = False) -> None:
        """Remember that this call writes a file, so that running it in the same call is reported."""
        paths = self.paths_made if is_empty else self.paths_written
        if not word.proven:
            paths.add(HOLE)
        elif cwds and word.text != "/dev/null":
            self.unresolved.append((paths, word.text, cwds))

    @property
    def written(self) -> set[str]:
        """The files that the call writes: as it names them, and with every link resolved."""
        self._resolve_noted()
        return self.paths_written

    @property
    def made(self) -> set[str]:
        """The directories and files that the call makes without content."""
        self._resolve_noted()
        return self.paths_made

    def _resolve_noted(self) -> None:
        while self.unresolved:
            paths, text, cwds = self.unresolved.pop()
            for cwd in cwds:
                self.spend(side_effects.WORK_TO_RESOLVE)
                paths.update((self.machine.absolute(text, cwd), self.machine.resolve(text, cwd)))

    def note_unnamed_links(self) -> None:
        """Remember that this call makes files and perhaps links that no word names."""
        self.written.add(HOLE)
        if self.linked_from is None:
            self.linked_from = 0 if self.loop_exits else len(self.commands)

    def may_be_written(self, text: str, cwd: str, *, named: bool = False, glob: bool = False) -> bool:
        """Return whether this call may write a path, a directory that it is in, or a file below it; or only one that it names."""
        if not self.written:
            return False
        from corral.guard.analysis import written_files  # noqa: PLC0415  most calls write nothing

        return written_files.may_be_written(self, text, cwd, named=named, glob=glob)

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
        if statements.redirects_see_later_values(node, body, frame):
            frame.report("unparsed", node)
        cwds = frame.scope.cwds
        may_fail = any(redirect_may_fail(child, frame) for child in node.children)
        before = frame.scope.copy() if may_fail else None
        self.statement(body, frame, targets, extra)
        if frame.scope.cwds != cwds and cwds is not None:
            frame.scope.cwds_if_cd_failed = cwds  # if a redirect fails, bash runs nothing of the statement
        if before is not None:
            frame.allow_failed_redirect(before, keeps_cwds=body.type == "command")

    def _pipeline(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        parts = [c for c in children(node, frame) if c.type not in ("|", "|&", "comment")]
        text: str | None = None
        start = len(self.commands)
        for index, part in enumerate(parts):
            inner = frame.fork()
            if index:
                inner.stdin = text
            last = index == len(parts) - 1
            before = len(self.commands)
            self.statement(part, inner, targets if last else (), extra if last else ())
            text = printed_since(before, inner)
        if self.linked_from is not None and self.linked_from > start and len(self.commands) - start > len(parts):
            self.linked_from = min(self.linked_from, start)  # all parts run at once: `{ sleep 1; cat l/x; } | tar x`

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
        # The states in which bash skips a part, by the operator before it. `&&` and `||` are read from left to right: in
        # `a || b && c`, bash runs c also where it has skipped b.
        skipped: list[tuple[str, Scope]] = []
        before = frame.scope.cwds
        for index, (operator, part) in enumerate(parts):
            last = index == len(parts) - 1
            if index:
                self.spend(len(frame.scope.variables) // 32 + 2)
                frame.scope.cwds_if_cd_failed = ()
                stopped = frame.scope.copy()
                rejoining = [scope for skipping, scope in skipped if skipping != operator]
                skipped = [each for each in skipped if each[0] == operator]
                if stopped.cwds != before:  # a failed `cd` did not change directory
                    unmoved = stopped.copy()
                    unmoved.cwds = before
                    if operator == "||":
                        frame.scope.merge([unmoved, frame.scope.copy()])
                    else:
                        skipped.append((operator, unmoved))
                skipped.append((operator, stopped))
                if rejoining:
                    frame.merge([frame.scope.copy(), *rejoining])
            before = frame.scope.cwds
            self.statement(part, frame, targets if last else (), extra if last else ())
        if skipped:
            ends = [scope for _, scope in skipped]
            leaves = leaves_the_shell(parts[-1][1], frame, in_function=bool(self.function_exits))
            frame.merge(ends if leaves else [frame.scope.copy(), *ends])

    def _negated(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        for child in children(node, frame):
            if child.type != "!":
                self.statement(child, frame, targets, extra)
                frame.allow_failed_cd()

    def _subshell(self, node: Node, frame: Frame) -> None:
        if frame.script.text_of(node).startswith("(("):  # arithmetic to bash in most places, such as `! ((x))`
            frame.report("unparsed", node)
        self.block(node, frame.fork())

    def _compound(self, node: Node, frame: Frame) -> None:
        if node.children and node.children[0].type == "((":
            statements.arithmetic(self, node, frame)
        else:
            self.block(node, frame)

    def substitution(self, node: Node, frame: Frame) -> Value:
        """Judge the commands of a substitution; return its output if that is certain."""
        frame.check_depth()
        text = frame.script.text_of(node)
        if text.startswith("$(("):  # bash may take it for arithmetic
            frame.allow_error(text)
            frame.evaluate(text, node)
            self.follow_arithmetic(text.lstrip("$"), frame)
        inner = Frame(self, frame.script, frame.scope.copy(), frame.depth + 1, frame.stdin)
        before = len(self.commands)
        if text.startswith("`") and _INNER_BACKTICK.search(text, 1, len(text) - 1) is not None:
            frame.report("unparsed", node)  # bash ends the substitution at the first backtick, even inside quotes
        if text.startswith("`") and any(node.start_byte < at < node.end_byte for at in frame.script.heredocs):
            frame.report("unparsed", node)  # bash removes backslashes from the here-document before it reads it
        self.is_concurrent = self.is_concurrent or text[:1] in "<>"
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
        return printed_since(before, inner) if prints_plainly(node, frame.script) else None


# Handlers of statements that pass redirects on to their parts.
_BODY_HANDLERS: dict[str, Any] = {
    "command": simple_command.walk, "redirected_statement": Walker._redirected, "pipeline": Walker._pipeline, "list": Walker._list,
    "negated_command": Walker._negated,
}  # fmt: skip
_SIMPLE_HANDLERS: dict[str, Any] = {
    "subshell": Walker._subshell, "program": Walker._subshell, "compound_statement": Walker._compound,
    "variable_assignment": statements.assignment, "variable_assignments": statements.assignments,
    "declaration_command": statements.declaration, "unset_command": statements.unset, "if_statement": statements.conditional,
    "while_statement": statements.loop, "for_statement": statements.iteration, "c_style_for_statement": statements.loop,
    "case_statement": statements.case, "function_definition": statements.function, "test_command": statements.test,
}  # fmt: skip

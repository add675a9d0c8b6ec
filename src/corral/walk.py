"""Walk a script in the order in which bash would run it, and collect every command it could run. Depth, count and size are bounded.

An abstract interpreter: it follows constant variables, functions, positional parameters and the possible working directories;
where paths through the script differ, what they disagree on is unknown. It never runs anything and never skips a node.
"""

from __future__ import annotations

from corral import commands
from corral.expand import HOLE, NUMBER, Expander, Word
from corral.heredoc import HeredocError, substitutions
from corral.shell import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.expand import Value
    from corral.machine import Machine

    Node = Any
    Target = tuple[str, Word]  # "reads" or "writes", and what

MAX_COMMANDS = 2000  # against a call that takes longer than a second to judge
MAX_DEPTH = 20  # of wrappers, nested shells, substitutions and function calls: env env env … ends in a refusal
MAX_NESTING = 60  # of statements, against Python's own recursion limit
MAX_UNROLLED = 8  # values of a constant loop that are followed one by one
_RESERVED = frozenset("{ } ! if then else elif fi do done case esac function select [[ ]] until while for".split())
_TOKENS = frozenset("; & \n ;; ;& ;;& && || | |& comment then do done fi in esac if elif else while until for select case ) ( { } heredoc_body".split())
_LOOP_SETTERS = frozenset("read mapfile readarray getopts printf let unset eval source . declare typeset local export readonly set shift wait".split())
_MOVERS = frozenset({"cd", "pushd", "popd"})
_BODY_CARRIERS = frozenset({"pipeline", "list", "command", "redirected_statement", "negated_command"})


class PastLimit(Exception):
    """A bound of the walk was reached; the message says which."""


class Scope:
    """What is known at one point of the script. `cwds` are the possible working directories, None when unknown."""

    __slots__ = ("args", "cwds", "functions", "locals", "variables")

    def __init__(self, cwds: tuple[str, ...] | None) -> None:
        self.variables: dict[str, Value] = {}
        self.functions: dict[str, tuple[tuple[Script, Node], ...]] = {}
        self.cwds = cwds
        self.args: list[str] | None = None
        self.locals: dict[str, Value] | None = None

    def copy(self) -> Scope:
        """Return a scope that can change on its own."""
        new = Scope(self.cwds)
        new.variables = self.variables.copy()
        new.functions = self.functions.copy() if self.functions else {}
        new.args = self.args
        new.locals = self.locals
        return new

    def merge(self, branches: list[Scope]) -> None:
        """Become what is true after any one of the branches."""
        first, *others = branches
        names = {name for b in branches for name in b.variables}
        for name in names:
            values = [b.variables.get(name, False) for b in branches]
            same = all(v == values[0] for v in values)
            first.variables[name] = values[0] if same and values[0] is not False else None  # type: ignore[assignment]
        for other in others:
            for name, bodies in other.functions.items():
                known = first.functions.get(name, ())
                first.functions[name] = known + tuple(b for b in bodies if b not in known)
        cwds = first.cwds
        for other in others:
            cwds = None if cwds is None or other.cwds is None else tuple(dict.fromkeys(cwds + other.cwds))
        self.variables, self.functions, self.args = first.variables, first.functions, first.args
        self.cwds = cwds if cwds is None or len(cwds) <= 4 else None


class Frame(Expander):
    """One script being walked in one scope."""

    __slots__ = ("depth", "scope", "stdin", "walker")

    def __init__(self, walker: Walker, script: Script, scope: Scope, depth: int, stdin: str | None = None) -> None:
        super().__init__(script)
        self.walker = walker
        self.scope = scope
        self.depth = depth
        self.stdin = stdin  # the text that commands here read, where it is known

    def fork(self, stdin: str | None = None) -> Frame:
        """Return a frame for a subshell or a branch."""
        return Frame(self.walker, self.script, self.scope.copy(), self.depth, self.stdin if stdin is None else stdin)

    def home(self) -> str:
        value = self.lookup("HOME")
        return value if isinstance(value, str) else HOLE

    def lookup(self, name: str) -> Value:
        scope = self.scope
        if name in scope.variables:
            value = scope.variables[name]
            if isinstance(value, list) and name not in ("@", "*"):
                return value[0] if value else ""
            return value
        if name == "PWD":
            return scope.cwds[0] if scope.cwds and len(scope.cwds) == 1 else None
        if name == "HOME":
            return self.walker.machine.home
        if name == "TMPDIR":
            return "/tmp"  # noqa: S108  the value corral gives it
        if name == "IFS":
            return " \t\n"
        if name in ("@", "*"):
            return list(scope.args) if scope.args is not None else None
        if name.isdigit() and scope.args is not None and name != "0":
            index = int(name) - 1
            return scope.args[index] if index < len(scope.args) else ""
        return None

    def array(self, name: str) -> Value:
        """Return the value of a variable with all elements of an array."""
        return self.scope.variables.get(name)

    def substitute(self, node: Node) -> Value:
        return self.walker.substitution(node, self)

    def hidden(self, node: Node, text: str) -> None:
        self.walker.report("unparsed", self.word_at(node), "")

    def word_at(self, node: Node) -> Word:
        """Return a word that only says where a node stands."""
        return Word(self.script.cut(node.start_byte, node.end_byte), *self.script.span(node.start_byte, node.end_byte))


class Walker:
    """Collects the acts of one call."""

    __slots__ = ("acts", "argument", "copies", "level", "machine", "tainted", "walked", "written")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.acts: list[commands.Act] = []
        self.level = 0
        self.tainted = False  # a literal holds text that arithmetic or a subscript would evaluate
        self.walked: set[int] = set()
        self.written: set[str] = set()
        self.copies: dict[str, str] = {}
        self.argument: int | None = None  # the argument of an argv call that is being looked into

    def report(self, key: str, word: Word, detail: str, depth: int = 0) -> None:
        """Record an effect that belongs to the script itself rather than to a command."""
        act = commands.Act("", [word], depth, None)
        act.effects.append((key, word, detail))
        self.acts.append(act)

    def call_script(self, script: Script, scope: Scope) -> None:
        """Walk the text of a whole call, and then what it defines but never calls."""
        frame = Frame(self, script, scope, 0)
        self.script(script, frame)
        for bodies in list(scope.functions.values()):
            for owner, body in bodies:
                if body.id not in self.walked:
                    self._body(Frame(self, owner, scope.copy(), 1), body)

    def script(self, script: Script, frame: Frame) -> None:
        """Walk one parsed text."""
        whole = Word(script.text[:80], *script.span(0, len(script.source)))
        if script.problem:
            self.report("limit" if script.root is None else "unparsed", whole, f": {script.problem}")
        root = script.root
        if root is None:
            return
        if root.has_error:
            bad = _first_error(root)
            at = frame.word_at(bad)
            self.report("unparsed", at if at.text.strip() else whole, "")
        self.block(root, frame)
        if len(script.spent) < len(script.heredocs):
            self.report("unparsed", whole, ": a here-document that is none")

    def nested(self, text: str, word: Word, frame: Frame, scope: Scope | None = None, stdin: str | None = None) -> None:
        """Walk shell text that a word holds, as the same shell (`scope` given) or as a new one."""
        if frame.depth + 1 > MAX_DEPTH:
            raise PastLimit(f"more than {MAX_DEPTH} commands inside one another")
        span = (word.start, word.end)
        exact = word.end - word.start == len(text) + 2  # a quoted word that holds exactly this text
        script = Script(text, base=word.start + 1, fixed=None if exact else span)
        if script.heredocs and not exact:
            script.fixed = span
        inner = Frame(self, script, scope or _fresh(frame.scope), frame.depth + 1, stdin if stdin is not None else frame.stdin)
        self.script(script, inner)

    # ---- statements

    def block(self, node: Node, frame: Frame) -> None:
        """Walk the statements of a node one after the other."""
        for child in _children(node, frame):
            if child.type not in _TOKENS:
                self.statement(child, frame)

    def statement(self, node: Node, frame: Frame, targets: Iterable[Target] = (), extra: Iterable[Word] = ()) -> None:
        """Walk one statement; `targets` and `extra` are redirects and words that the grammar hung on something around it."""
        handler = _HANDLERS.get(node.type)
        if handler is None:
            if node.type not in ("ERROR",):
                self.report("unparsed", frame.word_at(node), f": {node.type}")
            frame.scan(node)
            if node.type == "ERROR":
                self._rescue(node, frame)
            return
        self.level += 1
        if self.level > MAX_NESTING:
            raise PastLimit(f"more than {MAX_NESTING} statements inside one another")
        try:
            if node.type in _BODY_CARRIERS:
                handler(self, node, frame, targets, extra)
            else:
                self._loose(node, frame, targets, extra)
                handler(self, node, frame)
        finally:
            self.level -= 1

    def _rescue(self, node: Node, frame: Frame) -> None:
        """Look for danger in what could not be parsed; it proves nothing."""
        for child in node.children:
            if child.type in _HANDLERS:
                self.statement(child, frame)

    def _loose(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        for word in extra:
            self.report("unparsed", word, "")
        targets = list(targets)
        if targets:
            act = commands.Act("", [frame.word_at(node)], frame.depth, frame.scope.cwds)
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
        for child in _children(node, frame):
            kind = child.type
            if kind == "file_redirect":
                more, words = self._redirect(child, frame)
                targets += more
                extra += words
            elif kind == "herestring_redirect":
                frame.stdin = frame.text(child.children[-1]) + "\n"
            elif body is None and kind not in ("heredoc_redirect",):
                body = child
            else:
                self.report("unparsed", frame.word_at(child), "")
                frame.scan(child)
        if body is None:
            self._loose(node, frame, targets, extra)
        else:
            self.statement(body, frame, targets, extra)

    def _redirect(self, node: Node, frame: Frame) -> tuple[list[Target], list[Word]]:
        """Return what a redirect opens, and the words behind its target, which are arguments of the command."""
        children = _children(node, frame)
        operator, rest = "", []
        for index, child in enumerate(children):
            if child.type not in ("file_descriptor",):
                operator, rest = child.type, children[index + 1 :]
                break
        start = node.end_byte if not operator else children[len(children) - len(rest) - 1].start_byte
        words = [w for c in rest[1:] for w in frame.words(c)]
        heredoc = frame.script.heredocs.get(start)
        if heredoc is not None:
            frame.script.spent.add(start)
            frame.stdin = self._heredoc(heredoc.body, heredoc.quoted, frame, node)
            return [], words
        if operator in ("<&-", ">&-"):
            return [], [w for c in rest for w in frame.words(c)]
        if not rest:
            self.report("unparsed", frame.word_at(node), "")
            return [], []
        places = frame.words(rest[0]) or [Word("", *frame.script.span(node.start_byte, node.end_byte))]
        if operator in (">&", "<&") and all(w.text.rstrip("-").isdigit() or w.text == "-" for w in places):
            return [], words
        if operator == "<":
            frame.stdin = None
        verb = "reads" if operator in ("<", "<&") else "writes"
        return [(verb, w) for w in places], words

    def _heredoc(self, body: bytes, quoted: bool, frame: Frame, node: Node) -> str | None:
        text = body.decode("utf-8", "replace")
        if quoted:
            return text
        try:
            inner = substitutions(body)
        except HeredocError as error:
            self.report("unparsed", frame.word_at(node), f": {error}")
            return None
        at = frame.word_at(node)
        for command in inner:
            self.nested(command.decode("utf-8", "replace"), at, frame, frame.scope.copy())
        if "$" in text or "`" in text:
            return None
        return text.replace("\\\\", "\\") if "\\" in text else text

    def _pipeline(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        parts = [c for c in _children(node, frame) if c.type not in ("|", "|&", "comment")]
        text: str | None = None
        for index, part in enumerate(parts):
            inner = frame.fork()
            if index:
                inner.stdin = text
            last = index == len(parts) - 1
            before = len(self.acts)
            self.statement(part, inner, targets if last else (), extra if last else ())
            text = commands.known_output(self.acts[before:])

    def _list(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        parts: list[tuple[str, Node]] = []
        operator = ""
        while node.type == "list":  # left-deep: flattened, so that a long list does not recurse
            children = _children(node, frame)
            for child in reversed(children[1:]):
                if child.type in ("&&", "||"):
                    parts[-1] = (child.type, parts[-1][1]) if parts else (child.type, child)
                elif child.type != "comment":
                    parts.append(("", child))
            node = children[0]
        parts.append((operator, node))
        parts.reverse()
        before: Scope | None = None
        for index, (operator, part) in enumerate(parts):
            last = index == len(parts) - 1
            if operator == "||" and before is not None:
                alternative = frame.fork()
                alternative.scope.merge([alternative.scope, before])
                after = frame.scope
                self.statement(part, alternative, targets if last else (), extra if last else ())
                frame.scope.merge([alternative.scope, after.copy()])
            else:
                before = frame.scope.copy()
                self.statement(part, frame, targets if last else (), extra if last else ())
        if len(parts) > 1 and before is not None and frame.scope.cwds != before.cwds:
            frame.scope.merge([frame.scope.copy(), before])

    def _negated(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        for child in _children(node, frame):
            if child.type != "!":
                self.statement(child, frame, targets, extra)

    def _subshell(self, node: Node, frame: Frame) -> None:
        self.block(node, frame.fork())

    def _compound(self, node: Node, frame: Frame) -> None:
        if node.children and node.children[0].type == "((":
            self.arithmetic(node, frame)
        else:
            self.block(node, frame)

    def arithmetic(self, node: Node, frame: Frame) -> None:
        """Look into arithmetic: substitutions, and literals that it would evaluate a second time."""
        frame.scan(node)
        if self.tainted:
            self.report("code-unproven", frame.word_at(node), "")
        for name in _names_below(node):
            if name in frame.scope.variables:
                frame.scope.variables[name] = NUMBER

    def _test(self, node: Node, frame: Frame) -> None:
        frame.scan(node)
        text = frame.script.cut(node.start_byte, node.end_byte)
        arithmetic = any(op in text for op in (" -eq ", " -ne ", " -lt ", " -le ", " -gt ", " -ge ", "-v "))
        if arithmetic and (self.tainted or ("[" in text[2:] and ("$(" in text or "`" in text))):
            self.report("code-unproven", frame.word_at(node), "")

    def _assignment(self, node: Node, frame: Frame) -> None:
        act = commands.Act("", [frame.word_at(node)], frame.depth, frame.scope.cwds)
        name, value, word = self.assigned(node, frame)
        self.acts.append(act)
        commands.assign(self, frame, act, name, value, word)

    def _assignments(self, node: Node, frame: Frame) -> None:
        for child in _children(node, frame):
            self._assignment(child, frame)

    def assigned(self, node: Node, frame: Frame) -> tuple[str, Value, Word]:
        """Return the name and the value of an assignment node, and a word for where its value stands."""
        children = node.children
        at = frame.word_at(node)
        script = frame.script
        target = children[0]
        name = script.cut(target.start_byte, target.end_byte)
        value: Value = ""
        if len(children) > 2:
            source = children[2]
            if source.type == "array":
                words = [w for c in source.children if c.type not in ("(", ")", "comment") for w in _element(c, frame)]
                value = [w.text for w in words] if all(w.proven for w in words) else None
            else:
                value = frame.text(source)
            if len(children) > 3:
                frame.hidden(node, at.text)
        if target.type == "subscript":
            frame.scan(target)
            if self.tainted or "'" in name:
                self.report("code-unproven", at, "")
            return script.cut(target.children[0].start_byte, target.children[0].end_byte), None, at
        if children[1].type == "+=":
            old = frame.scope.variables.get(name)
            if isinstance(old, list) and isinstance(value, list):
                value = old + value
            else:
                value = old + value if isinstance(old, str) and isinstance(value, str) else None
        return name, value, at

    def _declaration(self, node: Node, frame: Frame) -> None:
        children = _children(node, frame)
        keyword = children[0].type
        act = commands.Act(keyword, [frame.word_at(node)], frame.depth, frame.scope.cwds)
        self.acts.append(act)
        flags = ""
        for child in children[1:]:
            kind = child.type
            if kind == "variable_assignment":
                name, value, word = self.assigned(child, frame)
                if "i" in flags and (self.tainted or (isinstance(value, str) and ("$(" in value or "`" in value))):
                    act.effects.append(("code-unproven", word, ""))
                if "n" in flags or "i" in flags:
                    value = None
                if frame.scope.locals is not None and keyword in ("local", "declare", "typeset"):
                    frame.scope.locals.setdefault(name, frame.scope.variables.get(name))
                commands.assign(self, frame, act, name, value, word)
            elif kind in ("file_redirect", "herestring_redirect"):
                self.report("unparsed", frame.word_at(child), "")
                frame.scan(child)
            else:
                for word in frame.words(child):
                    if word.text.startswith("-"):
                        flags += word.text
                    elif not word.proven or "=" in word.text or "[" in word.text:
                        act.effects.append(("word-unproven", word, ""))
                        commands.assign_dynamic(self, frame, act, word)

    def _unset(self, node: Node, frame: Frame) -> None:
        for child in _children(node, frame)[1:]:
            for word in frame.words(child):
                if "[" in word.text and ("$(" in word.text or "`" in word.text):
                    self.report("code-unproven", word, "")
                frame.scope.variables[word.text] = None
                if word.proven:
                    frame.scope.functions.pop(word.text, None)

    def _if(self, node: Node, frame: Frame) -> None:
        branches: list[Scope] = []
        current: Frame = frame
        has_else = False
        for child in _children(node, frame):
            kind = child.type
            if kind == "then":
                current = frame.fork()
                branches.append(current.scope)
            elif kind == "elif_clause":
                inner = frame.fork()
                branches.append(inner.scope)
                self.block(child, inner)
            elif kind == "else_clause":
                has_else = True
                inner = frame.fork()
                branches.append(inner.scope)
                self.block(child, inner)
            elif kind not in _TOKENS:
                self.statement(child, current)
        frame.scope.merge(branches if has_else else [*branches, frame.scope.copy()])

    def _loop(self, node: Node, frame: Frame) -> None:
        self._forget(node, frame)
        inner = frame.fork()
        for child in _children(node, frame):
            if child.type == "do_group":
                self.block(child, inner)
            elif child.type not in _TOKENS:
                self.statement(child, inner)
        frame.scope.merge([inner.scope, frame.scope.copy()])

    def _forget(self, node: Node, frame: Frame) -> None:
        """Drop what a loop's body changes, since the body runs again after it has changed it."""
        names, moves, everything = _changed_below(node, frame.script)
        if everything:
            frame.scope.variables = dict.fromkeys(frame.scope.variables)
            names |= {"IFS", "HOME"} & names
        for name in names:
            frame.scope.variables[name] = None
        if moves:
            frame.scope.cwds = None

    def _for(self, node: Node, frame: Frame) -> None:
        children = _children(node, frame)
        script = frame.script
        name, body, values, listed = "", None, [], False
        for child in children:
            kind = child.type
            if kind == "variable_name" and not name:
                name = script.cut(child.start_byte, child.end_byte)
            elif kind == "in":
                listed = True
            elif kind in ("do_group", "compound_statement"):
                body = child
            elif kind not in _TOKENS:
                values += frame.words(child)
        if body is None:
            self.report("unparsed", frame.word_at(node), "")
            return
        if not listed:
            values = [Word(a) for a in frame.scope.args] if frame.scope.args is not None else [Word(HOLE)]
        before = frame.scope.copy()
        constant = len(values) <= MAX_UNROLLED and all(w.proven for w in values)
        if not constant or children[0].type == "select":
            self._forget(body, frame)
            values = [Word(HOLE)]
        act = commands.Act("", [frame.word_at(node)], frame.depth, frame.scope.cwds)
        self.acts.append(act)
        for value in values:
            commands.assign(self, frame, act, name, None if HOLE in value.text else value.text, value)
            self.block(body, frame)
        frame.scope.merge([frame.scope.copy(), before])
        frame.scope.variables[name] = None

    def _c_for(self, node: Node, frame: Frame) -> None:
        self._forget(node, frame)
        inner = frame.fork()
        for child in _children(node, frame):
            if child.type in ("do_group", "compound_statement"):
                self.block(child, inner)
            else:
                frame.scan(child)
        if self.tainted:
            self.report("code-unproven", frame.word_at(node), "")
        frame.scope.merge([inner.scope, frame.scope.copy()])

    def _case(self, node: Node, frame: Frame) -> None:
        branches = [frame.scope.copy()]
        for child in _children(node, frame):
            if child.type == "case_item":
                inner = frame.fork()
                branches.append(inner.scope)
                seen = False
                for part in _children(child, frame):
                    if part.type == ")" and not seen:
                        seen = True
                    elif not seen:
                        frame.scan(part)
                    elif part.type not in _TOKENS:
                        self.statement(part, inner)
            elif child.type not in _TOKENS:
                frame.scan(child)
        frame.scope.merge(branches)

    def _function(self, node: Node, frame: Frame) -> None:
        script = frame.script
        name = next(script.cut(c.start_byte, c.end_byte) for c in node.children if c.type == "word")
        body = next(c for c in node.children if c.type in _HANDLERS)
        frame.scope.functions[name] = ((script, body),)
        for child in node.children:
            if child.type == "file_redirect":
                targets, extra = self._redirect(child, frame)
                self._loose(child, frame, targets, extra)

    def call_function(self, name: str, words: list[Word], frame: Frame) -> None:
        """Walk the body of a function with the arguments of one call."""
        for owner, body in frame.scope.functions[name]:
            if frame.depth + 1 > MAX_DEPTH:
                raise PastLimit(f"more than {MAX_DEPTH} commands inside one another")
            scope = frame.scope
            saved_args, saved_locals = scope.args, scope.locals
            scope.args = [w.text for w in words[1:]] if all(w.proven for w in words[1:]) else None
            scope.locals = {}
            self._body(Frame(self, owner, scope, frame.depth + 1, frame.stdin), body)
            for local, old in (scope.locals or {}).items():
                scope.variables[local] = old
            scope.args, scope.locals = saved_args, saved_locals

    def _body(self, frame: Frame, body: Node) -> None:
        self.walked.add(body.id)
        self.statement(body, frame)

    def substitution(self, node: Node, frame: Frame) -> Value:
        """Judge what a substitution runs; return its output where that is certain."""
        if frame.depth + 1 > MAX_DEPTH:
            raise PastLimit(f"more than {MAX_DEPTH} commands inside one another")
        inner = Frame(self, frame.script, frame.scope.copy(), frame.depth + 1, frame.stdin)
        before = len(self.acts)
        if node.children and node.children[0].type == "`" and b"\\" in frame.script.source[node.start_byte : node.end_byte]:
            # Inside backticks a backslash is removed once more than the grammar knows.
            self.report("unparsed", frame.word_at(node), ": a backslash inside backticks")
        targets: list[Target] = []
        for child in _children(node, inner):
            if child.type == "file_redirect":
                more, extra = self._redirect(child, inner)
                targets += more
                self._loose(child, inner, more, extra)
            elif child.type not in ("$(", "`", "<(", ">(", ")") and child.type not in _TOKENS:
                self.statement(child, inner)
        return commands.known_output(self.acts[before:])

    def _command(self, node: Node, frame: Frame, targets: Iterable[Target], extra: Iterable[Word]) -> None:
        words: list[Word] = []
        assignments: list[tuple[str, Value, Word]] = []
        targets = list(targets)
        stdin = frame.stdin
        last = node.start_byte
        for child in _children(node, frame):
            kind = child.type
            if kind == "variable_assignment":
                assignments.append(self.assigned(child, frame))
            elif kind == "command_name":
                inner = child.children[0] if child.children else child
                if inner.type == "word" and frame.script.cut(inner.start_byte, inner.end_byte) in _RESERVED:
                    self.report("unparsed", frame.word_at(node), "")
                words += frame.words(inner)
            elif kind == "file_redirect":
                more, after = self._redirect(child, frame)
                targets += more
                words += after
            elif kind == "herestring_redirect":
                frame.stdin = frame.text(child.children[-1]) + "\n"
            else:
                made = frame.words(child)
                if made and words and frame.script.source[last : child.start_byte] == b"\\\n":
                    # A line continuation inside a word: the grammar splits what bash joins.
                    words[-1] = Word(words[-1].text + made[0].text, words[-1].start, made[0].end, multi=words[-1].multi or made[0].multi)
                    made = made[1:]
                words += made
            last = child.end_byte
        words += extra
        if len(self.acts) >= MAX_COMMANDS:
            raise PastLimit(f"more than {MAX_COMMANDS} commands")
        commands.judge_words(self, frame, words, assignments, targets, frame.word_at(node))
        self._note_written(targets, frame)
        frame.stdin = stdin


def _element(node: Node, frame: Frame) -> list[Word]:
    if node.type == "variable_assignment":  # an element of an associative array: its key and value are data
        frame.scan(node)
        return [Word(HOLE)]
    return frame.words(node)


def _fresh(scope: Scope) -> Scope:
    """Return the scope of a new shell: what it inherits is its place and the environment, of which nothing is certain."""
    new = Scope(scope.cwds)
    new.variables = {name: None for name, value in scope.variables.items() if name in ("HOME", "PWD", "IFS", "TMPDIR")}
    return new


def _children(node: Node, frame: Frame) -> list[Node]:
    """Return a node's children; text between them that is not blank is something the grammar dropped, and is reported."""
    children: list[Node] = node.children
    source = frame.script.source
    last = node.start_byte
    for child in children:
        start = child.start_byte
        if start > last:
            gap = source[last:start]
            if gap.strip(b" \t\n") and gap.replace(b"\\\n", b"").strip(b" \t\n"):
                at = Word(gap.decode("utf-8", "replace"), *frame.script.span(last, start))
                frame.walker.report("unparsed", at, "")
        last = child.end_byte
    return children


def _first_error(root: Node) -> Node:
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            return node
        stack.extend(c for c in reversed(node.children) if c.has_error or c.is_missing)
    return root


def _names_below(node: Node) -> set[str]:
    names: set[str] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type in ("variable_name", "word") and current.text is not None:
            names.add(current.text.decode("utf-8", "replace"))
        stack.extend(current.children)
    return names


def _changed_below(node: Node, script: Script) -> tuple[set[str], bool, bool]:
    """Return the variables a loop may change, whether it may change directory, and whether it may change anything at all."""
    names: set[str] = set()
    moves = everything = False
    stack = [node]
    while stack:
        current = stack.pop()
        kind = current.type
        if kind == "variable_assignment" and current.children:
            names.add(script.cut(current.children[0].start_byte, current.children[0].end_byte).partition("[")[0])
        elif kind == "command_name":
            text = script.cut(current.start_byte, current.end_byte)
            moves = moves or text in _MOVERS
            everything = everything or text in _LOOP_SETTERS or not text.replace("_", "").replace("-", "").isalnum()
        elif kind == "for_statement":
            names |= {script.cut(c.start_byte, c.end_byte) for c in current.children if c.type == "variable_name"}
        elif kind in ("compound_statement", "arithmetic_expansion") and current.children and current.children[0].type in ("((", "$(("):
            names |= _names_below(current)
        elif kind in ("declaration_command", "unset_command"):
            names |= _names_below(current)
        stack.extend(current.children)
    return names, moves, everything


_HANDLERS: dict[str, Any] = {
    "command": Walker._command,
    "redirected_statement": Walker._redirected,
    "pipeline": Walker._pipeline,
    "list": Walker._list,
    "negated_command": Walker._negated,
    "subshell": Walker._subshell,
    "compound_statement": Walker._compound,
    "variable_assignment": Walker._assignment,
    "variable_assignments": Walker._assignments,
    "declaration_command": Walker._declaration,
    "unset_command": Walker._unset,
    "if_statement": Walker._if,
    "while_statement": Walker._loop,
    "for_statement": Walker._for,
    "c_style_for_statement": Walker._c_for,
    "case_statement": Walker._case,
    "function_definition": Walker._function,
    "test_command": Walker._test,
    "program": Walker._subshell,
}

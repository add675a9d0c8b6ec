"""Tracks the state of the shell at one point of a script: variables, functions, possible working directories."""

from __future__ import annotations

from corral._lib.lazy_regex import Following, pattern
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, PLAIN_VARIABLES, Expander, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.parser import Node, Script

    Functions = dict[str, tuple[tuple[Script, Node], ...]]  # the bodies that a name may have


UNSET = object()
_PLAIN_INDEX = pattern(r"[:\[\s]*(?:0|[1-9]\d*)(?:\s*:\s*(?:0|[1-9]\d*))?[\]\s]*")  # ${a[1]}, ${s:0:7}
MAX_CWDS = 4  # working directories that are followed side by side
MAX_ARGUMENTS = 1000  # of a function or the script that are known, against `f "$@"` in a function that is called so
MAX_DEPTH = 20  # of wrappers, nested shells, substitutions and function calls, against `env env env …`
_TAINT = Following(r"\w\[", r"\$\((?!\()|`|@P", "\n")
# The real PATH is unknown, but the user chose it, so it counts as a list of system directories.
_DEFAULTS = {"PATH": f"/usr/{HOLE}", "IFS": " \t\n"}
# Variables that have a value before the script sets one.
_INHERITED = frozenset({"HOME", "PWD", "IFS", "TMPDIR"} | {name for name in PLAIN_VARIABLES if name.isidentifier()})
# Variables that bash sets itself or that are read-only: a value that the script assigns does not last. Most are integers, so bash
# evaluates the assigned text as arithmetic.
DYNAMIC_VARIABLES = frozenset({
    "_", "BASHOPTS", "BASHPID", "BASH_ARGC", "BASH_ARGV", "BASH_ARGV0", "BASH_COMMAND", "BASH_LINENO", "BASH_MONOSECONDS",
    "BASH_REMATCH", "BASH_SOURCE", "BASH_SUBSHELL", "BASH_TRAPSIG", "BASH_VERSINFO", "COLUMNS", "COMP_WORDBREAKS", "COPROC",
    "COPROC_PID", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD", "LINENO", "LINES", "MAPFILE",
    "OLDPWD", "OPTARG", "OPTIND", "PIPESTATUS", "PPID", "RANDOM", "REPLY", "SECONDS", "SHELLOPTS", "SRANDOM", "UID",
})  # fmt: skip


def is_tainted(text: str) -> bool:
    """Return whether a line of a text has a command behind a subscript's bracket. Arithmetic expands it a second time and runs it."""
    return "[" in text and _TAINT.search(text)


class LimitExceeded(Exception):
    """The walk reached one of its limits; the message names it."""


class Scope:
    """State of the shell at one point of the script. `cwds` are the possible working directories, None if unknown."""

    __slots__ = (
        "args", "attributes", "cwds", "cwds_if_cd_failed", "functions", "locals", "maybe_undefined", "variables",
    )  # fmt: skip

    def __init__(self, cwds: tuple[str, ...] | None) -> None:
        self.variables: dict[str, Value] = {}
        self.functions: Functions = {}
        self.cwds = cwds
        self.args: list[str] | None = None
        self.locals: dict[str, Any] | None = None  # the value that each local variable hides, UNSET if it hides none
        self.attributes: dict[str, str] = {}  # flags of `declare` (-l -u -i -n -r) that change values when they are set
        self.maybe_undefined: frozenset[str] = frozenset()  # functions; if undefined, the program of that name runs
        self.cwds_if_cd_failed: tuple[str, ...] = ()

    def copy(self) -> Scope:
        """Return an independent copy."""
        new = Scope(self.cwds)
        new.variables, new.functions, new.attributes = (
            self.variables.copy(),
            self.functions.copy(),
            self.attributes.copy(),
        )
        new.args, new.locals = self.args, None if self.locals is None else self.locals.copy()
        new.maybe_undefined = self.maybe_undefined
        new.cwds_if_cd_failed = self.cwds_if_cd_failed
        return new

    def forget_variables(self) -> None:
        """Forget every variable, because any of them may have a new value."""
        self.variables = dict.fromkeys([*self.variables, *_INHERITED, HOLE])

    def distrust(self, name: str) -> None:
        """Forget a variable, and believe no later value of it: the script sets it in a way that the walker does not follow."""
        self.variables[name] = None
        self.attributes[name] = self.attributes.get(name, "") + "?"

    def restore(self, name: str, value: Any) -> None:
        """Give a variable the value that it had before a local variable or an assignment before a command hid it."""
        if name in self.attributes or name in DYNAMIC_VARIABLES:
            self.variables[name] = None
        elif value is UNSET:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def forget(self) -> None:
        """Drop all knowledge, because code that the guard has not seen ran in this shell."""
        self.forget_variables()
        self.functions = {}
        self.cwds = None
        self.args = None

    def hide(self, name: str) -> None:
        """Save the value that a local variable hides until its function ends."""
        if self.locals is not None:
            self.locals.setdefault(name, self.variables.get(name, UNSET))

    def undefine(self, name: str) -> None:
        """Note that a function may be undefined now; a name with a hole may be any function."""
        gone = self.functions.keys() if HOLE in name else {name} & self.functions.keys()
        self.maybe_undefined |= frozenset(gone)

    def merge(self, branches: list[Scope]) -> None:
        """Become the state after any one of the branches. A value on which they disagree is unknown."""
        first, *others = branches
        variables = first.variables
        for other in others:
            theirs = other.variables
            if (
                theirs != variables
            ):  # in a long script most branches change nothing, and comparing two dictionaries is fast
                for name in variables.keys() - theirs.keys():
                    variables[name] = None
                for name, value in theirs.items():
                    if name not in variables or variables[name] != value:
                        variables[name] = None
        maybe_undefined = frozenset().union(*(b.maybe_undefined for b in branches))
        if any(b.functions != first.functions for b in others):
            defined = [frozenset(b.functions) for b in branches]
            maybe_undefined |= frozenset().union(*defined) - frozenset(defined[0]).intersection(*defined)
        cwds = first.cwds
        for other in others:
            cwds = None if cwds is None or other.cwds is None else tuple(dict.fromkeys(cwds + other.cwds))
            first.attributes |= other.attributes
            first.cwds_if_cd_failed += other.cwds_if_cd_failed
            if other.args != first.args:
                first.args = None
            if other.locals is not None and first.locals is not None and other.locals != first.locals:
                both = first.locals.keys() & other.locals.keys()
                both = {n for n in both if first.locals[n] == other.locals[n]}
                first.locals = {n: first.locals[n] if n in both else None for n in first.locals | other.locals}
            for name, bodies in other.functions.items() if other.functions != first.functions else ():
                known = first.functions.get(name, ())
                first.functions[name] = known + tuple(b for b in bodies if b not in known)
        self.variables, self.functions, self.args = first.variables, first.functions, first.args
        self.locals, self.attributes, self.cwds_if_cd_failed = first.locals, first.attributes, first.cwds_if_cd_failed
        self.maybe_undefined = maybe_undefined
        self.cwds = cwds if cwds is None or len(cwds) <= MAX_CWDS else None


def new_shell_scope(scope: Scope) -> Scope:
    """Return the scope of a new shell, which inherits the directory, and an environment whose values are not certain."""
    new = Scope(scope.cwds)
    new.variables = {name: None for name in scope.variables if name in _INHERITED}
    return new


class Frame(Expander):
    """A script that is being walked in a scope."""

    __slots__ = ("depth", "scope", "stdin", "walker")

    def __init__(self, walker: Walker, script: Script, scope: Scope, depth: int, stdin: str | None = None) -> None:
        self.script = script
        self.walker = walker
        self.scope = scope
        self.depth = depth
        self.stdin = stdin  # the text that commands read here, if it is known

    def fork(self) -> Frame:
        """Return a frame for a subshell or a branch."""
        self.walker.spend(len(self.scope.variables) // 64 + 2)
        return Frame(self.walker, self.script, self.scope.copy(), self.depth, self.stdin)

    def enter(self) -> Frame:
        """Return a frame one level deeper, in the same scope."""
        self.check_depth()
        return Frame(self.walker, self.script, self.scope, self.depth + 1, self.stdin)

    def check_depth(self) -> None:
        """Raise LimitExceeded if one more level is too deep."""
        if self.depth + 1 > MAX_DEPTH:
            raise LimitExceeded(f"more than {MAX_DEPTH} commands inside one another")

    def merge(self, branches: list[Scope]) -> None:
        """Continue with the state after any one of the branches."""
        self.walker.spend(len(branches) * max(len(b.variables) for b in branches) // 16)
        self.scope.merge(branches)

    def allow_failed_cd(self) -> None:
        """Continue after a `cd` whose exit status the script ignores: the directory may not have changed."""
        scope = self.scope
        if scope.cwds_if_cd_failed:
            if scope.cwds is not None:
                both = tuple(dict.fromkeys(scope.cwds + scope.cwds_if_cd_failed))
                scope.cwds = both if len(both) <= MAX_CWDS else None
            scope.cwds_if_cd_failed = ()

    def allow_failed_redirect(self, before: Scope, *, keeps_cwds: bool) -> None:
        """Continue after a statement with a redirect that may fail: then bash runs nothing of the statement."""
        scope = self.scope
        if scope.variables != before.variables or scope.args != before.args or not keeps_cwds:
            after = scope.copy()
            self.merge([scope.copy(), before])
            if keeps_cwds:  # a list knows by the exit status whether `cd` ran
                scope.cwds = after.cwds

    def words(self, node: Node, kind: str = "") -> list[Word]:
        """Return the words that a node becomes, and note text that arithmetic would run."""
        made = Expander.words(self, node, kind)
        walker = self.walker
        walker.work += 2 * len(made)
        if walker.work > walker.next_look:
            walker.spend(0)
        for word in made:
            text = word.text
            if "[" in text and is_tainted(text):
                walker.tainted = True
            if "=" in text or "++" in text or "--" in text:
                walker.equations.append(text)
        return made

    def text(self, node: Node) -> str:
        """Return the text that a node becomes, and note text that arithmetic would run."""
        made = super().text(node)
        if is_tainted(made):
            self.walker.tainted = True
        if "=" in made or "++" in made or "--" in made:
            self.walker.equations.append(made)
        return made

    def spend(self, work: int) -> None:
        self.walker.spend(work)

    def set_default(self, name: str, value: str | None, node: Node) -> None:
        self.walker.set_default(self, name, value, self.word_at(node))

    def allow_error(self, text: str = "") -> None:
        """Note that an expansion may be an error here, so that bash drops the rest of the line. Arithmetic may be known to be none."""
        walker = self.walker
        if self.script.is_one_line and self.depth == 0:
            return
        if text:
            from corral.guard.analysis.arithmetic import may_fail  # noqa: PLC0415  few calls need it

            if not may_fail(self, text):
                return
        walker.spend(len(self.scope.variables) // 8 + 1)
        walker.line_exits.append(self.scope.copy())

    def allow_dropped_line(self, *, ends: bool = True) -> None:
        """Continue behind a line that an error may have ended early. The line may go on unless it `ends` here."""
        exits = self.walker.line_exits
        if not exits:
            return
        self.walker.line_exits = [] if ends else [scope.copy() for scope in exits]
        numbers = [name for name, value in self.scope.variables.items() if value == NUMBER_HOLE]
        for scope in exits:
            self.spend(len(numbers) // 8 + 1)
            for name in numbers:  # a number may be empty, and so is a variable that was not set
                scope.variables.setdefault(name, NUMBER_HOLE)
        self.merge([self.scope.copy(), *exits])

    def follow_arithmetic(self, text: str) -> None:
        if _PLAIN_INDEX.fullmatch(text) is None:
            self.allow_error()
        self.walker.follow_arithmetic(text, self)

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
        if name in PLAIN_VARIABLES:
            return NUMBER_HOLE
        if name == "PWD":
            return scope.cwds[0] if scope.cwds and len(scope.cwds) == 1 else None
        if name == "HOME":
            return self.walker.machine.home
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        if name in ("@", "*"):
            return list(scope.args) if scope.args is not None else None
        if name.isdigit() and scope.args is not None and name != "0":
            index = int(name) - 1
            if index < 0:
                return None
            return scope.args[index] if index < len(scope.args) else ""
        return None

    def array(self, name: str) -> Value:
        return self.scope.variables.get(name)

    def substitute(self, node: Node) -> Value:
        return self.walker.substitution(node, self)

    def arithmetic(self, node: Node) -> None:
        self.walker.arithmetic(node, self)

    def evaluate(self, text: str, node: Node) -> None:
        self.walker.evaluate(text, self, self.word_at(node))

    def report(self, key: str, node: Node) -> None:
        self.walker.report(key, self.word_at(node))

    def whole(self) -> Word:
        """Return a word that shows the script by its first characters."""
        return Word(self.script.text[:80], *self.script.span(0, len(self.script.source)))

    def word_at(self, node: Node) -> Word:
        """Return a word that shows where a node stands."""
        return Word(*self.script.piece(node.start_byte, node.end_byte))

"""Tracks the state of the shell at one point of a script: variables, functions, possible working directories."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
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
MAX_CWDS = 4  # working directories that are followed side by side
MAX_DEPTH = 20  # of wrappers, nested shells, substitutions and function calls, against `env env env …`
# A subscript that contains a command. Arithmetic evaluates it a second time and so runs the command.
TAINT = pattern(r"\w\[[^\]]*(?:\$\(|`)")
# corral sets TMPDIR to this value. The real PATH may differ, but the user chose it.
_DEFAULTS = {"TMPDIR": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/bin", "IFS": " \t\n"}  # noqa: S108
# Variables that have a value before the script sets one.
_INHERITED = frozenset({"HOME", "PWD", "IFS", "TMPDIR"} | {name for name in PLAIN_VARIABLES if name.isidentifier()})


class LimitExceeded(Exception):
    """The walk reached one of its limits; the message names it."""


class Scope:
    """State of the shell at one point of the script. `cwds` are the possible working directories, None if unknown."""

    __slots__ = (
        "args", "attributes", "created_dirs", "cwds", "cwds_if_cd_failed", "functions", "locals", "maybe_undefined", "variables",
    )  # fmt: skip

    def __init__(self, cwds: tuple[str, ...] | None) -> None:
        self.variables: dict[str, Value] = {}
        self.functions: Functions = {}
        self.cwds = cwds
        self.args: list[str] | None = None
        self.locals: dict[str, Any] | None = None  # the value that each local variable hides, UNSET if it hides none
        self.attributes: dict[str, str] = {}  # flags of `declare` (-l -u -i -n -r) that change values when they are set
        self.maybe_undefined: frozenset[str] = frozenset()  # functions; if undefined, the program of that name runs
        self.created_dirs: frozenset[str] = frozenset()  # directories that this call creates
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
        new.maybe_undefined, new.created_dirs = self.maybe_undefined, self.created_dirs
        new.cwds_if_cd_failed = self.cwds_if_cd_failed
        return new

    def forget(self) -> None:
        """Drop all knowledge, because code that the guard has not seen ran in this shell."""
        self.variables = dict.fromkeys([*self.variables, *_INHERITED])
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
        for name in {name for b in branches for name in b.variables}:
            values = [b.variables.get(name, False) for b in branches]
            same = values[0] is not False and all(v == values[0] for v in values)
            first.variables[name] = values[0] if same else None  # type: ignore[assignment]
        maybe_undefined = frozenset().union(*(b.maybe_undefined for b in branches))
        if any(b.functions for b in branches):
            defined = [frozenset(b.functions) for b in branches]
            maybe_undefined |= frozenset().union(*defined) - frozenset(defined[0]).intersection(*defined)
        created_dirs, cwds = first.created_dirs, first.cwds
        for other in others:
            created_dirs &= other.created_dirs
            cwds = None if cwds is None or other.cwds is None else tuple(dict.fromkeys(cwds + other.cwds))
            first.attributes |= other.attributes
            first.cwds_if_cd_failed += other.cwds_if_cd_failed
            if other.args != first.args:
                first.args = None
            if other.locals is not None and first.locals is not None and other.locals != first.locals:
                both = first.locals.keys() & other.locals.keys()
                first.locals = {n: first.locals[n] if n in both else None for n in first.locals | other.locals}
            for name, bodies in other.functions.items():
                known = first.functions.get(name, ())
                first.functions[name] = known + tuple(b for b in bodies if b not in known)
        self.variables, self.functions, self.args = first.variables, first.functions, first.args
        self.locals, self.attributes, self.cwds_if_cd_failed = first.locals, first.attributes, first.cwds_if_cd_failed
        self.maybe_undefined, self.created_dirs = maybe_undefined, created_dirs
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
        super().__init__(script)
        self.walker = walker
        self.scope = scope
        self.depth = depth
        self.stdin = stdin  # the text that commands read here, if it is known

    def fork(self) -> Frame:
        """Return a frame for a subshell or a branch."""
        self.walker.spend(len(self.scope.variables) // 8 + 1)
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
        self.walker.spend(len(branches) * max(len(b.variables) for b in branches) // 3)
        self.scope.merge(branches)

    def allow_failed_cd(self) -> None:
        """Continue after a `cd` whose exit status the script ignores: the directory may not have changed."""
        scope = self.scope
        if scope.cwds_if_cd_failed:
            if scope.cwds is not None:
                both = tuple(dict.fromkeys(scope.cwds + scope.cwds_if_cd_failed))
                scope.cwds = both if len(both) <= MAX_CWDS else None
            scope.cwds_if_cd_failed = ()

    def words(self, node: Node) -> list[Word]:
        """Return the words that a node becomes, and note text that arithmetic would run."""
        made = super().words(node)
        self.walker.spend(len(made) * 2)
        for word in made:
            if "[" in word.text and TAINT.search(word.text):
                self.walker.tainted = True
        return made

    def text(self, node: Node) -> str:
        """Return the text that a node becomes, and note text that arithmetic would run."""
        made = super().text(node)
        if "[" in made and TAINT.search(made):
            self.walker.tainted = True
        return made

    def set_default(self, name: str) -> None:
        self.scope.variables[name] = None

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
            return scope.args[index] if index < len(scope.args) else ""
        return None

    def array(self, name: str) -> Value:
        return self.scope.variables.get(name)

    def substitute(self, node: Node) -> Value:
        return self.walker.substitution(node, self)

    def arithmetic(self, node: Node) -> None:
        self.walker.arithmetic(node, self)

    def report(self, key: str, node: Node) -> None:
        self.walker.report(key, self.word_at(node))

    def word_at(self, node: Node) -> Word:
        """Return a word that shows where a node stands."""
        script = self.script
        return Word(script.text_of(node), *script.span(node.start_byte, node.end_byte))

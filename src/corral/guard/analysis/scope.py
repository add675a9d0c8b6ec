"""What is known at one point of a script: variables, functions, the possible working directories; and the frame that is walked in it."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, PLAIN_VARIABLES, Expander, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.parser import Script

    Node = Any

UNSET = object()
MAX_CWDS = 4  # working directories that are followed side by side
_INHERITED = frozenset(
    {"HOME", "PWD", "IFS", "TMPDIR"} | {name for name in PLAIN_VARIABLES if name.isidentifier()}
)  # names that have a value before anything is set
MAX_DEPTH = 20  # of wrappers, nested shells, substitutions and function calls: env env env … ends in a refusal


# A text that arithmetic would evaluate a second time: a subscript that holds a command.
TAINT = pattern(r"\w\[[^\]]*(?:\$\(|`)")


class LimitExceeded(Exception):
    """A bound of the walk was reached; the message says which."""


class Scope:
    """What is known at one point of the script. `cwds` are the possible working directories, None when unknown."""

    __slots__ = ("args", "attributes", "cwds", "functions", "locals", "made", "uncertain", "unmoved", "variables")

    def __init__(self, cwds: tuple[str, ...] | None) -> None:
        self.variables: dict[str, Value] = {}
        self.functions: dict[str, tuple[tuple[Script, Node], ...]] = {}
        self.cwds = cwds
        self.args: list[str] | None = None
        self.locals: dict[str, Any] | None = None  # what each local variable hides, UNSET where that was nothing
        self.attributes: dict[str, str] = {}  # names whose values are changed when they are set: declare -l -u -i -n -r
        self.uncertain: frozenset[str] = frozenset()  # functions that may be undefined: the command itself runs then
        self.made: frozenset[str] = frozenset()  # directories that exist because this call made them
        self.unmoved: tuple[str, ...] = ()  # where the shell still is if the last `cd` failed

    def copy(self) -> Scope:
        """Return a scope that can change on its own."""
        new = Scope(self.cwds)
        new.variables = self.variables.copy()
        new.functions = self.functions.copy() if self.functions else {}
        new.args = self.args
        new.locals = None if self.locals is None else self.locals.copy()
        new.attributes = self.attributes.copy() if self.attributes else {}
        new.uncertain, new.made, new.unmoved = self.uncertain, self.made, self.unmoved
        return new

    def forget(self) -> None:
        """Drop everything: code that nobody has seen ran in this shell."""
        self.variables = dict.fromkeys([*self.variables, *_INHERITED])
        self.functions = {}
        self.cwds = None
        self.args = None

    def hide(self, name: str) -> None:
        """Keep what a local variable hides until its function ends."""
        if self.locals is not None:
            self.locals.setdefault(name, self.variables.get(name, UNSET))

    def undefine(self, name: str) -> None:
        """Note that a function may be gone; with a hole in the name any of them."""
        gone = self.functions.keys() if HOLE in name else {name} & self.functions.keys()
        self.uncertain |= frozenset(gone)

    def merge(self, branches: list[Scope]) -> None:
        """Become what is true after any one of the branches."""
        first, *others = branches
        names = {name for b in branches for name in b.variables}
        for name in names:
            values = [b.variables.get(name, False) for b in branches]
            same = all(v == values[0] for v in values)
            first.variables[name] = values[0] if same and values[0] is not False else None  # type: ignore[assignment]
        uncertain = frozenset().union(*(b.uncertain for b in branches))
        made = first.made
        if any(b.functions for b in branches):
            defined = [frozenset(b.functions) for b in branches]
            uncertain |= frozenset().union(*defined) - frozenset(defined[0]).intersection(*defined)
        for other in others:
            made &= other.made
            first.attributes |= other.attributes
            first.unmoved += other.unmoved
            if other.args != first.args:
                first.args = None
            if other.locals is not None and first.locals is not None and other.locals != first.locals:
                both = first.locals.keys() & other.locals.keys()
                first.locals = {n: first.locals[n] if n in both else None for n in first.locals | other.locals}
            for name, bodies in other.functions.items():
                known = first.functions.get(name, ())
                first.functions[name] = known + tuple(b for b in bodies if b not in known)
        cwds = first.cwds
        for other in others:
            cwds = None if cwds is None or other.cwds is None else tuple(dict.fromkeys(cwds + other.cwds))
        self.variables, self.functions, self.args = first.variables, first.functions, first.args
        self.locals, self.attributes, self.unmoved = first.locals, first.attributes, first.unmoved
        self.uncertain, self.made = uncertain, made
        self.cwds = cwds if cwds is None or len(cwds) <= MAX_CWDS else None


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
        self.walker.spend(len(self.scope.variables) // 8 + 1)
        return Frame(self.walker, self.script, self.scope.copy(), self.depth, self.stdin if stdin is None else stdin)

    def merge(self, branches: list[Scope]) -> None:
        """Go on with what is true after any one of the branches."""
        self.spend_merge(branches)
        self.scope.merge(branches)

    def spend_merge(self, branches: list[Scope]) -> None:
        """Count what merging these costs."""
        self.walker.spend(len(branches) * max(len(b.variables) for b in branches) // 3)

    def settle(self) -> None:
        """Go on after a `cd` whose success nobody asked about: it may have moved nowhere."""
        scope = self.scope
        if scope.unmoved:
            if scope.cwds is not None:
                both = tuple(dict.fromkeys(scope.cwds + scope.unmoved))
                scope.cwds = both if len(both) <= MAX_CWDS else None
            scope.unmoved = ()

    def words(self, node: Node) -> list[Word]:
        """Return the words that a node becomes, and see whether one holds what arithmetic would evaluate."""
        made = super().words(node)
        self.walker.spend(len(made) * 2)
        for word in made:
            if "[" in word.text and TAINT.search(word.text):
                self.walker.tainted = True
        return made

    def text(self, node: Node) -> str:
        """Return the text that a node becomes, and see whether it holds what arithmetic would evaluate."""
        made = super().text(node)
        if "[" in made and TAINT.search(made):
            self.walker.tainted = True
        return made

    def defaulted(self, name: str) -> None:
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
        if name == "TMPDIR":
            return "/tmp"  # noqa: S108  the value corral gives it
        if name == "PATH":
            return "/usr/local/bin:/usr/bin:/bin"  # whatever it is, its owner chose it
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

    def arithmetic(self, node: Node) -> None:
        self.walker.arithmetic(node, self)

    def hidden(self, node: Node, text: str) -> None:
        self.walker.report("unparsed", self.word_at(node), "")

    def word_at(self, node: Node) -> Word:
        """Return a word that only says where a node stands."""
        return Word(self.script.cut(node.start_byte, node.end_byte), *self.script.span(node.start_byte, node.end_byte))

    def enter(self) -> Frame:
        """Return a frame one level deeper, in the same scope."""
        self.check_depth()
        return Frame(self.walker, self.script, self.scope, self.depth + 1, self.stdin)

    def check_depth(self) -> None:
        """Refuse to go deeper than MAX_DEPTH."""
        if self.depth + 1 > MAX_DEPTH:
            raise LimitExceeded(f"more than {MAX_DEPTH} commands inside one another")


def new_shell_scope(scope: Scope) -> Scope:
    """Return the scope of a new shell: what it inherits is its place and the environment, of which nothing is certain."""
    new = Scope(scope.cwds)
    new.variables = {name: None for name, value in scope.variables.items() if name in _INHERITED}
    return new

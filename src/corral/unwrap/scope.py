"""What is known at one point of a script: variables, functions, the possible working directories; and the frame that is walked in it."""

from __future__ import annotations

from corral.braces import HOLE
from corral.expand import Expander, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.expand import Value
    from corral.shell import Script
    from corral.unwrap.walk import Walker

    Node = Any

MAX_DEPTH = 20  # of wrappers, nested shells, substitutions and function calls: env env env … ends in a refusal


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

    def forget(self) -> None:
        """Drop everything: code that nobody has seen ran in this shell."""
        self.variables = dict.fromkeys([*self.variables, "HOME", "PWD", "TMPDIR", "IFS"])
        self.functions = {}
        self.cwds = None
        self.args = None

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
            raise PastLimit(f"more than {MAX_DEPTH} commands inside one another")


def fresh(scope: Scope) -> Scope:
    """Return the scope of a new shell: what it inherits is its place and the environment, of which nothing is certain."""
    new = Scope(scope.cwds)
    new.variables = {name: None for name, value in scope.variables.items() if name in ("HOME", "PWD", "IFS", "TMPDIR")}
    return new

"""Remembers what the earlier calls of a shell that lasts may have changed, so that no later call is proven from an old state.

A call may have ended anywhere, by an error or an interrupt, so no order is used to prove anything: a variable that it may have set
has an unknown value, and a function may have any of its bodies or none. The likely values only serve to find danger: each call is
judged a second time with them, and every finding counts.
"""

from __future__ import annotations

from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import Word
from corral.model.call import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.guard.analysis.scope import Frame, Functions, Scope
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.parser import Node, Script

MAX_NAMES = 2000  # of variables; with more, the value of every variable is unknown
MAX_FUNCTIONS = 500  # bodies, with at most MAX_FUNCTION_BYTES of text; with more, the session must end
MAX_FUNCTION_BYTES = 512 * 1024
MAX_EQUATIONS = 200  # words that would assign a variable; with more, all arithmetic is unproven
MAX_REPEATED = 20
# What a user may allow although the guard cannot follow it. It may change the meaning of every later call.
_CHANGES_MEANING = frozenset({"unparsed", "limit", "shadow"})
_CHANGES_ENVIRONMENT = frozenset({"code-loaded", "code-option"})
_SETTERS = frozenset({"", "declare", "export", "local", "readonly", "typeset"})
# The loop that reads the calls of a session uses it, so that no other function can come in between.
_RESERVED = "builtin"
_EARLIER = ": an earlier call of this session has done that, and it lasts"
_NOWHERE = (0, 0)  # the span of text that is not part of the call


class ShellMemory:
    """The possible state of a shell between two calls. Judging a call does not change it: `after` returns the next one."""

    __slots__ = (
        "_judged", "_recalled", "attributes", "bodies", "equations", "exports_functions", "functions", "has_limits", "is_concurrent", "is_tainted",
        "names", "repeated", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self._judged: tuple[Walker, Frame] | None = None  # the walk of the call that was judged last
        self._recalled: Frame | None = None  # the outermost frame of its second walk
        self.values: Mapping[str, Value] = {}  # that variables have if every call ran to its end
        self.names: frozenset[str] = frozenset()
        self.attributes: Mapping[str, str] = {}
        self.functions: Functions = {}
        self.bodies: tuple[tuple[str, Script, Node], ...] = ()
        self.repeated: tuple[tuple[str, str], ...] = ()  # effects that every later call has too, and their text
        self.equations: tuple[str, ...] = ()
        self.exports_functions = self.has_limits = self.is_concurrent = self.is_tainted = False

    def restore(self, walker: Walker, scope: Scope, *, recalls: bool) -> None:
        """Let a walk begin in this state: with unknown values, or with the likely ones if it `recalls` them."""
        scope.variables = dict.fromkeys(self.names)
        if HOLE in self.names:
            scope.forget_variables()
        if recalls:
            scope.variables |= self.values
        scope.attributes = dict(self.attributes)
        scope.functions = dict(self.functions)
        scope.maybe_undefined = frozenset(self.functions)
        walker.exports_functions = self.exports_functions
        walker.has_limits = self.has_limits
        walker.is_concurrent = self.is_concurrent
        walker.tainted = self.is_tainted
        walker.equations += self.equations
        # Bash or a child shell calls these at a time of its own. The others were walked where they were defined.
        walker.bodies += self.bodies
        walker.walked |= {body.id for _, _, body in self.bodies}
        for key, text in self.repeated:
            walker.report(key, Word(text, *_NOWHERE), _EARLIER)

    def note(self, walker: Walker, frame: Frame, *, recalls: bool) -> None:
        """Keep a walk of a judged call for `after`, and report a function that the session itself could not do without."""
        if any(name == _RESERVED for name, _, _ in walker.bodies):
            walker.report("shadow", Word(_RESERVED, *_NOWHERE), ": the session itself uses it")
        if recalls:
            self._recalled = frame
        else:
            self._judged, self._recalled = (walker, frame), None

    def after(self, decisions: Mapping[str, Decision]) -> ShellMemory:
        """Return the state after the call that was judged last, whether it ran to its end or was interrupted."""
        if self._judged is None:
            return self
        (walker, frame), self._judged = self._judged, None
        new = ShellMemory()
        scope = frame.scope
        likely = scope if self._recalled is None else self._recalled.scope
        new.values = {name: value for name, value in likely.variables.items() if value is not None and name != "PWD"}
        new.names = self.names | scope.variables.keys() | walker.assigned
        if walker.is_concurrent or len(new.names) > MAX_NAMES:
            # A trap may set any variable, at any time.
            new.names |= {HOLE}
        if len(new.values) > MAX_NAMES:
            new.values = {}
        new.attributes = _joined(self.attributes, scope.attributes)
        new.bodies = tuple({body.id: (name, script, body) for name, script, body in walker.bodies}.values())
        for name, script, body in new.bodies:
            # A finding about a body must not point into another call's text.
            script.fixed_span, script.is_plain, script.is_late = _NOWHERE, False, bool
            new.functions[name] = (*new.functions.get(name, ()), (script, body))
        new.exports_functions = walker.exports_functions
        new.has_limits = walker.has_limits
        new.is_concurrent = walker.is_concurrent
        equations = dict.fromkeys(walker.equations)
        new.is_tainted = walker.tainted or len(equations) > MAX_EQUATIONS
        new.equations = tuple(equations) if len(equations) <= MAX_EQUATIONS else ()
        new.repeated = self._repeated_after(walker, decisions)
        texts = {id(script): len(script.raw) for _, script, _ in new.bodies}
        if len(new.bodies) > MAX_FUNCTIONS or sum(texts.values()) > MAX_FUNCTION_BYTES:
            new.repeated = (*new.repeated, ("limit", "too many functions"))
        return new

    def _repeated_after(self, walker: Walker, decisions: Mapping[str, Decision]) -> tuple[tuple[str, str], ...]:
        found = dict.fromkeys(self.repeated)
        for command in walker.commands:
            for key, word, _ in command.effects:
                lasts = key in _CHANGES_MEANING or (key in _CHANGES_ENVIRONMENT and command.name in _SETTERS)
                if lasts and decisions[key] != Decision.ALLOW and len(found) < MAX_REPEATED:
                    found[key, word.text[:80]] = None
        return tuple(found)


def _joined(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    return {name: first.get(name, "") + second.get(name, "") for name in {**first, **second}}

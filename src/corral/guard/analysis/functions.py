"""Walks the bodies of functions: when a command calls one, and at the end those that only bash or a child shell may call."""

from __future__ import annotations

from corral.guard.analysis.scope import MAX_ARGUMENTS, Frame
from corral.guard.analysis.syntax_tree import redirect_may_fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.scope import Functions, Scope
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Word
    from corral.guard.shell.parser import Node

_CALLED_BY_BASH = "command_not_found_handle"


def call_function(walker: Walker, name: str, words: list[Word], frame: Frame) -> None:
    """Walk the bodies that a function may have, with the arguments of one call."""
    scope, before = frame.scope, frame.scope.copy()
    ends: list[Scope] = [scope.copy()] if name in scope.maybe_undefined else []
    bodies = scope.functions[name]
    for owner, body in bodies:
        frame.check_depth()
        inner = scope if len(bodies) == 1 else scope.copy()
        _call(Frame(walker, owner, inner, frame.depth + 1, frame.stdin), body, words)
        ends.append(inner.copy())
    if len(ends) > 1:
        frame.merge(ends)
    redirects = [(Frame(walker, owner, scope, 0), child) for owner, body in bodies for child in body.parent.children]
    if any(redirect_may_fail(child, inside) for inside, child in redirects):
        frame.allow_failed_redirect(before, keeps_cwds=False)


def _call(frame: Frame, body: Node, words: list[Word]) -> None:
    walker, scope = frame.walker, frame.scope
    saved_args, saved_locals = scope.args, scope.locals
    is_known = len(words) <= MAX_ARGUMENTS and not any(w.multi or w.glob for w in words[1:])
    scope.args = [w.text for w in words[1:]] if is_known else None
    scope.locals = {}
    walker.function_exits.append([])
    _walk_body(frame, body)
    exits = walker.function_exits.pop()
    if exits:
        frame.merge([scope.copy(), *exits])
    for local, old in (scope.locals or {}).items():
        scope.restore(local, old)
    scope.args, scope.locals = saved_args, saved_locals


def _walk_body(frame: Frame, body: Node) -> None:
    frame.walker.walked.add(body.id)
    frame.walker.statement(body, frame)


def walk_remaining_functions(walker: Walker, scope: Scope) -> None:
    """Walk the functions that no command calls, and those that bash itself or a child shell calls at a time of its own.

    Nothing is known about the variables at that time. Any function may be defined then, or not.
    """
    functions: Functions = {}
    done: set[int] = set()
    for name, script, body in walker.bodies:
        functions[name] = (*functions.get(name, ()), (script, body))
    for name, script, body in walker.bodies:  # a body may define more
        called_by_bash = name == _CALLED_BY_BASH or walker.exports_functions
        if body.id in done or not (called_by_bash or body.id not in walker.walked):
            continue
        done.add(body.id)
        walker.spend(len(functions) // 8)
        inner = scope.copy()
        inner.forget_variables()
        inner.args, inner.locals = None, {}
        inner.functions, inner.maybe_undefined = functions.copy(), frozenset(functions)
        if called_by_bash:
            inner.cwds = None
        _walk_body(Frame(walker, script, inner, 1), body)

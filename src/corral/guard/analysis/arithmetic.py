"""Follows the variables that arithmetic assigns. A variable in an expression stands for the expression that its value contains."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, Word, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker

MAX_EXPRESSIONS = 64  # values of variables that stand for one another, against a long chain of them
_QUOTES = pattern(r"\\\n|[\\'\"]")
_VARIABLE = pattern(r"\$(?:\{(\w+)\}|(\d|[A-Za-z_]\w*))")
_SUBSTITUTION = pattern(r"\$[({\[]|`")
# Names and operators. A comparison is listed so that its `=` does not count as an assignment.
_TOKEN = pattern(r"([A-Za-z_]\w*)|(<<=|>>=)|[<>!=]=|(:?[-+*/%&|^]?=|\+\+|--)|\d\w*|\s+|(.)")
_NAME = pattern(r"(\$?)([A-Za-z_]\w*)")
_OPERAND = r"[\s(]*+(?:\$?[A-Za-z_]\w*+|(?:0|[1-9]\d*+)(?!\w))[\s)]*+"
# An expression that is no error if its variables are numbers. It does not divide and has no sign, step or octal number.
_CERTAIN = pattern(rf"[\s(]*+(?:[A-Za-z_]\w*+\s*[-+*]?=(?!=))?{_OPERAND}(?:(?:[<>=!]=|&&|\|\||[-+*<>]){_OPERAND})*+")
_ASSIGNS = ("=", "++", "--")


def assigned_names(text: str) -> set[str]:
    """Return the names that arithmetic would assign if it evaluated a text. A hole among them stands for any name."""
    names: set[str] = set()
    if not any(mark in text for mark in _ASSIGNS):
        return names
    before: list[str] = []  # the names before open subscripts
    last = ""  # the name, subscript or other text before the operator
    steps = False  # `++` or `--` stands before the next name
    for match in _TOKEN.finditer(text):
        name, shift, operator, other = match.groups()
        if name is not None:
            if steps:
                names.add(name)
            last, steps = name, False
        elif shift is not None or operator is not None:
            if last:
                names.add(last)
            steps = operator in ("++", "--")
            last = ""
        elif other == "[":
            before.append(last)
            last = ""
        elif other == "]":
            last = before.pop() if before else HOLE
        elif other is not None:
            last = HOLE if other in (HOLE, ")", "}", "`") else ""
            steps = False
        elif match.group()[:1].isspace():
            continue
        else:
            last = ""
    return names


def follow_assignments(walker: Walker, frame: Frame, text: str) -> None:
    """Give every variable that an arithmetic expression may assign a number or no known value."""
    scope = frame.scope
    names: set[str] = set()
    unknown = False
    pending, seen = [_expanded(text, frame)], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        walker.spend(len(current) // 8 + 1)
        if len(seen) > MAX_EXPRESSIONS:
            scope.forget_variables()
            return
        names |= assigned_names(current)
        unknown = unknown or HOLE in current
        for match in _TOKEN.finditer(current):
            name = match.group(1)
            if name is not None and name in scope.variables:
                value = scope.variables[name]
                unknown = unknown or value is None
                pending += [value] if isinstance(value, str) else value or ()
    if unknown:
        while walker.equations:
            walker.equation_names |= assigned_names(walker.equations.pop())
        names |= walker.equation_names
    if HOLE in names:
        scope.forget_variables()
        return
    for name in names:
        _assign_number(frame, name)


def may_fail(frame: Frame, text: str) -> bool:
    """Return whether an expression may be an error, such as 1/0 or 08. Then bash drops the rest of the line."""
    if _CERTAIN.fullmatch(text) is None:
        return True
    for match in _NAME.finditer(text):
        value = frame.scope.variables.get(match.group(2), "")
        is_plain = isinstance(value, str) and value.isdecimal() and (value == "0" or value[0] != "0")
        if not is_plain and (match.group(1) or value not in ("", NUMBER_HOLE)):  # the empty text of $x is no operand
            return True
    return False


def _expanded(text: str, frame: Frame) -> str:
    """Return an expression as arithmetic gets it: without quotes, and with the values of variables."""
    text = _QUOTES.sub("", text)
    if "$" not in text and "`" not in text:
        return text

    def value(name: str) -> str:
        known = frame.lookup(name)
        return known if isinstance(known, str) else HOLE

    text = _VARIABLE.sub(lambda match: value(match.group(1) or match.group(2)), text)
    return _SUBSTITUTION.sub(HOLE, text)


def _assign_number(frame: Frame, name: str) -> None:
    variables = frame.scope.variables
    old = variables.get(name)
    frame.walker.set_default(frame, name, NUMBER_HOLE, Word(name))
    if is_number(old):  # otherwise unknown: behind `&&` the assignment may not happen
        variables[name] = NUMBER_HOLE

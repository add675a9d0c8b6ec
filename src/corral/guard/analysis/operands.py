"""Finds operands of arithmetic that are only known at run time.

bash evaluates the value of a variable as an expression of its own, and expands subscripts in it: with x='a[$(id)]', ((x)) runs id.
So every variable that arithmetic reads must be known, through all variables that its value names.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import PLAIN_VARIABLES, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.scope import Frame

MAX_REFERENCES = 8  # variables that name one another, against a circle
_NUMBERS = pattern(r"\$\{#\w++(?:\[[@*]\])?\}|\$[#?$]|\$\{[#?$]\}")
# A command, or an expansion other than ${x}, ${x:-0} and ${x[0]} with a short subscript.
_COMPUTES = pattern(r"`|\$\((?!\()|\$\{(?![\w@*]++(?:\[[^\]]{0,64}+\])?(?::?-\w*+)?\})")
_NAMES = pattern(r"\$\{(\d+|[@*])\}|\$([\d@*])|(?<![\w#])([A-Za-z_]\w*)")
_SET_BY_BASH = frozenset(
    {"_", "COMP_LINE", "COPROC", "DIRSTACK", "FUNCNAME", "MAPFILE", "OLDPWD", "OPTARG", "PWD", "REPLY"}
)
_PLAIN = pattern(r"-?\d+|")


def is_set_by_bash(name: str) -> bool:
    """Return whether bash sets a variable to text that the script chooses."""
    return name in _SET_BY_BASH or (name.startswith("BASH") and name not in PLAIN_VARIABLES)


def is_computed(frame: Frame, text: str, references: int = 0) -> bool:
    """Return whether arithmetic that evaluates a text may evaluate text that is only known at run time."""
    frame.walker.spend(len(text) // 8 + 1)
    text = _NUMBERS.sub("0", text)
    if HOLE in text or references > MAX_REFERENCES or _COMPUTES.search(text) is not None:
        return True
    variables = frame.scope.variables
    for match in _NAMES.finditer(text):
        braced, parameter, name = match.groups()
        if name and name not in variables:
            if HOLE in variables or is_set_by_bash(name):
                return True
            continue  # a number, or the user's own environment
        value = variables[name] if name else frame.lookup(braced or parameter)
        for part in value if isinstance(value, list) else (value,):
            if part is None:
                return True
            if not is_number(part) and not _PLAIN.fullmatch(part) and is_computed(frame, part, references + 1):
                return True
    return False

"""Follows the builtins that declare and unset variables, and those that set the positional parameters, in every spelling."""

from __future__ import annotations

from corral.guard.analysis.command import assign_from_word, assign_variable
from corral.guard.analysis.operands import is_set_by_bash
from corral.guard.analysis.scope import MAX_ARGUMENTS
from corral.guard.shell.braces import HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.guard.analysis.command import Assignment, Command
    from corral.guard.analysis.scope import Frame
    from corral.guard.shell.expansion import Word

# The options with which each builtin declares something. Another one is an error, or prints.
_FLAGS = {"export": frozenset("n"), "readonly": frozenset("aA")}
_DECLARE_FLAGS = frozenset("aAgIilunrtxc")
_SET_FLAGS = frozenset("abefhkmnptuvxBCEHPT")  # of `set`
_SET_NAMES = frozenset({
    "allexport", "errexit", "errtrace", "functrace", "noclobber", "noglob", "nounset", "pipefail", "verbose", "xtrace",
})  # fmt: skip


def _options(words: Sequence[Word | Assignment]) -> tuple[set[str], list[Word | Assignment]]:
    """Return the letters of the options at the front, and the operands. A `+` removes an attribute, which changes no less."""
    letters: set[str] = set()
    for index, word in enumerate(words):
        if isinstance(word, tuple) or word.text[:1] not in ("-", "+") or len(word.text) == 1:
            return letters, list(words[index:])
        if word.text == "--":
            return letters, list(words[index + 1 :])
        letters.update(word.text[1:])
    return letters, []


def declare(frame: Frame, command: Command, keyword: str, words: Sequence[Word | Assignment]) -> None:
    """Follow `declare`, `typeset`, `local`, `export` and `readonly`. The grammar shows some assignments; others are words."""
    walker, scope = frame.walker, frame.scope
    flags, operands = _options(words)
    if "f" in flags and (keyword == "export" or "x" in flags):
        walker.exports_functions = True
    in_function = scope.locals is not None
    works = flags <= _FLAGS.get(keyword, _DECLARE_FLAGS) and (keyword != "local" or in_function)
    # `local -f x` makes no variable, so a later assignment sets the x outside.
    is_local = works and in_function and keyword in ("local", "declare", "typeset") and "g" not in flags
    attributes = "".join(flag for flag in "nilucAr" if flag in flags) or ("r" if keyword == "readonly" else "")
    for operand in operands:
        if isinstance(operand, tuple):
            name, value, word = operand
        else:
            word = operand
            name, equals, text = word.text.partition("=")
            if not word.proven or not (name if equals else word.text).isidentifier():
                command.emit("word-unproven", word)
                assign_from_word(walker, frame, command, word)
                continue
            if not equals:
                _declare_bare(frame, command, word, is_local=is_local, attributes=attributes, flags=flags)
                continue
            value = text
        if "i" in flags:
            text = value if isinstance(value, str) else HOLE
            if "$(" in text or "`" in text:
                command.emit("code-unproven", word)
            walker.evaluate(text, frame, word)
            frame.follow_arithmetic(text)
        if "n" in flags:  # a later assignment to this name sets another variable
            command.emit("word-unproven", word)
        if is_local:
            scope.hide(name)
        # An attribute other than -r changes the value, and so does a text in parentheses if the variable is an array.
        is_plain = works and not attributes.strip("r") and not (isinstance(value, str) and value.startswith("("))
        assign_variable(walker, frame, command, name, value if is_plain else None, word)
        _add_attributes(frame, command, word.part(name), attributes, flags)


def _declare_bare(
    frame: Frame, command: Command, word: Word, *, is_local: bool, attributes: str, flags: set[str]
) -> None:
    """Follow a declaration without a value. A new local variable may inherit a value, and an existing one keeps its own."""
    if "n" in flags:
        command.emit("word-unproven", word)
    if is_local:
        frame.scope.hide(word.text)
        frame.scope.variables[word.text] = None
    _add_attributes(frame, command, word, attributes, flags)


def _add_attributes(frame: Frame, command: Command, word: Word, attributes: str, flags: set[str]) -> None:
    scope, name = frame.scope, word.text
    if "i" in attributes and is_set_by_bash(name):
        command.emit("code-unproven", word)  # with `declare -i REPLY`, `read` evaluates each line as arithmetic
    if attributes:
        scope.attributes[name] = scope.attributes.get(name, "") + attributes
    if "g" in flags and scope.locals is not None:
        scope.distrust(name)  # the variable outside changes, and a local one of that name does not


def unset(frame: Frame, command: Command, words: list[Word]) -> None:
    """Follow `unset`. In a function it may uncover the variable of a caller, so no later value is believed."""
    walker, scope = frame.walker, frame.scope
    flags, operands = _options(words)
    for word in operands:
        if isinstance(word, tuple):
            continue
        name, subscript, index = word.text.partition("[")
        if not word.proven and not subscript:
            scope.forget_variables()
            scope.undefine(HOLE)
            if flags != {"f"}:
                walker.evaluate(word.text, frame, word)  # the name may have a subscript
        if subscript:
            if "$(" in index or "`" in index:
                command.emit("code-unproven", word)
            walker.evaluate(index, frame, word)
            walker.follow_arithmetic(index, frame)
        if "v" not in flags:
            scope.undefine(name)
        if flags == {"f"}:
            continue
        assign_variable(walker, frame, command, name, "", word.part(name))  # PATH without a value means this directory
        # Elsewhere it may fail, or uncover another value. Without HOME, `~` is still the home directory.
        is_plain = word.proven and not flags and name.isidentifier() and name not in scope.attributes and name != "HOME"
        is_alone = scope.locals is None and not scope.functions and not is_set_by_bash(name)
        scope.variables[name] = "" if is_plain and is_alone and not subscript else None
        if scope.locals is not None:
            scope.distrust(name)


def set_positional_parameters(frame: Frame, name: str, words: list[Word]) -> None:
    """Follow `shift`, `shift N` and `set -- …`; other options of `set` keep the parameters."""
    scope = frame.scope
    args, scope.args = scope.args, None
    texts = [w.text for w in words]
    if name == "shift":
        count = texts[0] if len(texts) == 1 else "1"
        if args is not None and len(texts) < 2 and count.isascii() and count.isdigit() and int(count) <= len(args):
            scope.args = args[int(count) :]
        return
    index = 0
    while index < len(words) and words[index].proven and texts[index][:1] in ("-", "+") and len(texts[index]) > 1:
        text = texts[index]
        index += 1
        if text == "--":
            rest = words[index:]
            scope.args = None if len(rest) > MAX_ARGUMENTS or any(w.multi or w.glob for w in rest) else texts[index:]
            return
        option = texts[index : index + 1] if text[-1] == "o" else []
        if not _SET_FLAGS.issuperset(text[1:].removesuffix("o")) or not _SET_NAMES.issuperset(option):
            return
        if "a" in text or option == ["allexport"]:
            frame.walker.exports_functions = True
        index += len(option)
    if index == len(words):
        scope.args = args

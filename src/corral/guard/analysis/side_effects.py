"""Applies the changes that a command makes for later commands: working directory, new directories and links, implicit variables."""

from __future__ import annotations

from corral.guard.shell.braces import HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Word

_IMPLICIT_VARIABLES = {
    "read": ("REPLY",), "mapfile": ("MAPFILE",), "readarray": ("MAPFILE",), "getopts": ("OPTARG", "OPTIND"), "select": ("REPLY",),
    "cd": ("OLDPWD", "DIRSTACK"), "pushd": ("OLDPWD", "DIRSTACK"), "popd": ("OLDPWD", "DIRSTACK"),
}  # fmt: skip
# Shell options that change how bash reads the rest of the script.
_MODES = frozenset({
    "posix", "keyword", "histexpand", "lastpipe", "cdable_vars", "expand_aliases", "xpg_echo", "autocd", "cdspell",
})  # fmt: skip


def note_side_effects(frame: Frame, command: Command, before: tuple[str, ...] | None) -> None:
    """Apply the changes of one command; `before` are the working directories it ran in."""
    walker, name = frame.walker, command.real
    for variable in _IMPLICIT_VARIABLES.get(name, ()):
        frame.scope.variables[variable] = None
    if name in ("return", "break", "continue"):
        walker.leave(name, frame.scope)
    elif name in ("cd", "pushd", "popd", "chdir"):
        _change_directory(frame, command, before)
    elif name in ("set", "shopt"):
        _report_modes(command)
    elif name == "mkdir":
        _note_new_directories(frame, command)
    elif name in ("mv", "gmv"):
        _note_moves(frame, command)
    elif name in ("ln", "gln"):
        _note_new_links(walker, command)
    if any(effect == "deletes" for effect, _, _ in command.effects):
        walker.has_deleted = True


def _split(words: list[Word]) -> tuple[list[Word], str]:
    """Return the operands of a command, and the letters of its short options."""
    operands: list[Word] = []
    letters = ""
    for index, word in enumerate(words[1:], 1):
        if word.text == "--":
            return operands + words[index + 1 :], letters
        if word.text[:1] == "-" and len(word.text) > 1:
            letters += word.text[1:]
        else:
            operands.append(word)
    return operands, letters


def _change_directory(frame: Frame, command: Command, before: tuple[str, ...] | None) -> None:
    scope, machine = frame.scope, frame.walker.machine
    scope.variables.pop("PWD", None)
    operands, letters = _split(command.words)
    if command.real != "cd" and "n" in letters:
        scope.cwds = before
        return
    if scope.cwds is None or before is None or not operands:
        return
    text = operands[0].text
    if "CDPATH" in scope.variables and not text.startswith(("/", "./", "../")):
        scope.cwds = None
        return
    paths = [machine.absolute(text, cwd) for cwd in before]
    exists = not frame.walker.has_deleted and all(p in scope.created_dirs or machine.is_directory(p) for p in paths)
    if not exists or len(operands) > 1 or letters.strip("PLe@n-"):
        scope.cwds_if_cd_failed = before


def _report_modes(command: Command) -> None:
    """Report options of `set` and `shopt` that change how bash reads the rest of the script."""
    follows_o = False
    for word in command.words[1:]:
        text = word.text
        if text in ("--", "-") and command.real == "set":
            return
        short = command.real == "set" and text[:1] == "-" and ("k" in text or "H" in text)
        if text in _MODES or short or (HOLE in text and (follows_o or command.real == "shopt")):
            command.emit("unparsed", word, ": it changes the meaning of the rest")
        follows_o = text[:1] in ("-", "+") and text[-1:] == "o"


def _note_new_directories(frame: Frame, command: Command) -> None:
    scope, machine = frame.scope, frame.walker.machine
    if scope.cwds is None or len(scope.cwds) != 1:
        return
    operands, letters = _split(command.words)
    for word in operands:
        if not word.proven:
            continue
        at = machine.absolute(word.text, scope.cwds[0])
        missing = []
        while at not in scope.created_dirs and not machine.is_directory(at) and at != "/":
            missing.append(at)
            at = at.rpartition("/")[0] or "/"
        if (len(missing) <= 1 or "p" in letters) and not any(machine.exists(path, "/") for path in missing):
            scope.created_dirs |= frozenset(missing)


def _note_moves(frame: Frame, command: Command) -> None:
    scope, walker = frame.scope, frame.walker
    walker.has_deleted = True
    for word in _split(command.words)[0]:
        for cwd in scope.cwds or ():
            path = walker.machine.absolute(word.text, cwd)
            if cwd == path or cwd.startswith(path + "/"):
                scope.cwds = None  # the working directory itself moves, so `..` leads elsewhere
                return


def _note_new_links(walker: Walker, command: Command) -> None:
    operands, letters = _split(command.words)
    if "s" not in letters or not operands:
        return
    *sources, target = operands if len(operands) > 1 else [operands[0], operands[0].part(".")]
    for cwd in command.cwds or ():
        path = walker.machine.absolute(target.text, cwd)
        if not walker.machine.is_directory(path):
            walker.links.add(path)
        walker.links.update(f"{path}/{source.text.rstrip('/').rpartition('/')[2]}" for source in sources)


def distrust_new_links(walker: Walker) -> None:
    """Add an unknown path for every path that goes through a link that the call itself makes."""
    for command in walker.commands:
        if command.real in ("ln", "gln"):
            continue
        for verb, word, _ in list(command.effects):
            is_path = verb in ("reads", "writes", "deletes", "runs")
            if is_path and any(_passes_new_link(walker, word.text, cwd) for cwd in command.cwds or ()):
                command.emit("reads", word.part(f"{HOLE}/{word.text}"))


def _passes_new_link(walker: Walker, text: str, cwd: str) -> bool:
    at = "/" if text.startswith("/") else cwd
    for part in text.split("/"):
        at = walker.machine.absolute(part or ".", at)
        if at in walker.links:
            return True
    return False

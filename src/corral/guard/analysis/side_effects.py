"""What a command changes for those behind it: the working directory, directories and links it makes, names it sets unasked."""

from __future__ import annotations

from corral.guard.shell.braces import HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Word

_IMPLICIT = {
    "read": ("REPLY",),
    "mapfile": ("MAPFILE",),
    "readarray": ("MAPFILE",),
    "getopts": ("OPTARG", "OPTIND"),
    "cd": ("OLDPWD", "DIRSTACK"),
    "pushd": ("OLDPWD", "DIRSTACK"),
    "popd": ("OLDPWD", "DIRSTACK"),
    "select": ("REPLY",),
}
_MODES = frozenset(
    {"posix", "keyword", "histexpand", "lastpipe", "cdable_vars", "expand_aliases", "xpg_echo", "autocd", "cdspell"}
)
_CD_OPTIONS = frozenset("PLe@n-")
_PATHS = frozenset({"reads", "writes", "deletes", "runs"})


def note_side_effects(
    walker: Walker, frame: Frame, act: Command, words: list[Word], before: tuple[str, ...] | None
) -> None:
    """Note what one command changes for the next; `before` are the working directories it ran in."""
    name = act.real
    for variable in _IMPLICIT.get(name, ()):
        frame.scope.variables[variable] = None
    if name in ("return", "break", "continue"):
        walker.leave(name, frame.scope)
    elif name in ("cd", "pushd", "popd", "chdir"):
        _moved(walker, frame, act, words, before)
    elif name in ("set", "shopt"):
        _mode(act, words)
    elif name == "mkdir":
        _made(walker, frame, words)
    elif name in ("mv", "gmv"):
        _renamed(walker, frame, words)
    elif name in ("ln", "gln"):
        _linked(walker, act, words)
    if any(effect == "deletes" for effect, _, _ in act.effects):
        walker.vanished = True


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


def _moved(walker: Walker, frame: Frame, act: Command, words: list[Word], before: tuple[str, ...] | None) -> None:
    scope = frame.scope
    scope.variables.pop("PWD", None)
    operands, letters = _split(words)
    if act.real != "cd" and "n" in letters:
        scope.cwds = before
        return
    if scope.cwds is None or before is None or not operands:
        return
    text = operands[0].text
    if "CDPATH" in scope.variables and not text.startswith(("/", "./", "../")):
        scope.cwds = None
        return
    machine = walker.machine
    exists = not walker.vanished and all(
        path in scope.made or machine.is_directory(path) for path in (machine.absolute(text, cwd) for cwd in before)
    )
    if not exists or len(operands) > 1 or not _CD_OPTIONS.issuperset(letters):
        scope.unmoved = before


def _mode(act: Command, words: list[Word]) -> None:
    """Report what changes how the rest of the text is read."""
    option = False
    for word in words[1:]:
        text = word.text
        if text in ("--", "-") and act.real == "set":
            return
        short = act.real == "set" and text[:1] == "-" and ("k" in text or "H" in text)
        if text in _MODES or short or (HOLE in text and (option or act.real == "shopt")):
            act.effects.append(("unparsed", word, ": it changes what the rest means"))
        option = text[:1] in ("-", "+") and text[-1:] == "o"


def _made(walker: Walker, frame: Frame, words: list[Word]) -> None:
    scope, machine = frame.scope, walker.machine
    if scope.cwds is None or len(scope.cwds) != 1:
        return
    operands, letters = _split(words)
    for word in operands:
        if not word.proven:
            continue
        path = machine.absolute(word.text, scope.cwds[0])
        parents = []
        at = path
        while at not in scope.made and not machine.is_directory(at) and at != "/":
            parents.append(at)
            at = at.rpartition("/")[0] or "/"
        if (len(parents) <= 1 or "p" in letters) and not any(machine.exists(p, "/") for p in parents):
            scope.made |= frozenset(parents)


def _renamed(walker: Walker, frame: Frame, words: list[Word]) -> None:
    walker.vanished = True
    operands, _ = _split(words)
    scope = frame.scope
    for word in operands:
        for cwd in scope.cwds or ():
            path = walker.machine.absolute(word.text, cwd)
            if cwd == path or cwd.startswith(path + "/"):
                scope.cwds = None  # the directory itself was moved: `..` is another one now
                return


def _linked(walker: Walker, act: Command, words: list[Word]) -> None:
    operands, letters = _split(words)
    if "s" not in letters or not operands:
        return
    *sources, target = operands if len(operands) > 1 else [operands[0], operands[0].part(".")]
    for cwd in act.cwds or ():
        path = walker.machine.absolute(target.text, cwd)
        if not walker.machine.is_directory(path):
            walker.links.add(path)
        walker.links.update(f"{path}/{source.text.rstrip('/').rpartition('/')[2]}" for source in sources)


def distrust_new_links(walker: Walker) -> None:
    """Make every path unproven that leads through a link which the call itself makes."""
    for act in walker.acts:
        if act.real in ("ln", "gln"):
            continue
        for verb, word, _ in list(act.effects):
            if verb in _PATHS and any(_passes(walker, word.text, cwd) for cwd in act.cwds or ()):
                act.effects.append(("reads", word.part(f"{HOLE}/{word.text}"), ""))


def _passes(walker: Walker, text: str, cwd: str) -> bool:
    at = "/" if text.startswith("/") else cwd
    for part in text.split("/"):
        at = walker.machine.absolute(part or ".", at)
        if at in walker.links:
            return True
    return False

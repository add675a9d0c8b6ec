"""Applies the changes that a command makes for later commands: working directory, new directories and links, implicit variables."""

from __future__ import annotations

from corral.guard.path_zones import is_standard_device, may_become_protected
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.analysis.option_parser import OptionParser
    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Word

WORK_TO_RESOLVE = 10  # a path
MAX_PATH = 4096  # characters; the walker does not follow a longer path directory by directory
_IMPLICIT_VARIABLES = {
    "read": ("REPLY",), "mapfile": ("MAPFILE",), "readarray": ("MAPFILE",), "getopts": ("OPTARG", "OPTIND"), "select": ("REPLY",),
    "cd": ("OLDPWD", "DIRSTACK"), "pushd": ("OLDPWD", "DIRSTACK"), "popd": ("OLDPWD", "DIRSTACK"),
}  # fmt: skip
_PROGRAMS_AND_BUILTINS = frozenset({"[", "echo", "false", "kill", "printf", "pwd", "test", "true"})
# Options of `set -o` that change how bash reads the rest of the script.
_MODES = frozenset({"braceexpand", "histexpand", "history", "keyword", "posix"})
_MODE_LETTERS = frozenset("BHk")
# Options of `shopt` that do not. Every other one may: lastpipe, extdebug, expand_aliases, compat44, an option of a later bash.
_HARMLESS_OPTIONS = frozenset({
    "checkhash", "checkjobs", "checkwinsize", "cmdhist", "complete_fullquote", "direxpand", "dirspell", "dotglob", "extglob",
    "globasciiranges", "globskipdots", "globstar", "gnu_errfmt", "histappend", "histreedit", "histverify", "hostcomplete", "huponexit",
    "inherit_errexit", "interactive_comments", "lithist", "localvar_inherit", "localvar_unset", "mailwarn", "no_empty_cmd_completion",
    "nocaseglob", "nocasematch", "nullglob", "patsub_replacement", "progcomp", "progcomp_alias", "promptvars", "shift_verbose", "sourcepath",
})  # fmt: skip

_SYMBOLIC = frozenset({"-s", "--symbolic", "--symbolic-link"})  # of ln and cp
_RELATIVE = frozenset({"-r", "--relative"})
_LINKING = _SYMBOLIC | {"-l", "--link"}
_MOVING_VERBS = frozenset({"mv", "move", "ren", "rename"})  # subcommands of git, svn and hg
# The commands that `note_side_effects` knows. Most commands are none of them.
_CHANGING = frozenset({
    "return", "break", "continue", "chdir", "set", "shopt", "ulimit", "prlimit", "enable", "mv", "gmv", "trap", *_IMPLICIT_VARIABLES,
})  # fmt: skip


def note_side_effects(frame: Frame, command: Command, before: tuple[str, ...] | None) -> None:
    """Apply the changes of one command; `before` are the working directories it ran in."""
    walker, name = frame.walker, command.real
    if name not in _CHANGING:
        if command.verbs and command.verbs[0].text in _MOVING_VERBS:
            walker.has_moved = True
        return
    for variable in _IMPLICIT_VARIABLES.get(name, ()):
        frame.scope.variables[variable] = None
    if name in ("return", "break", "continue"):
        walker.leave(name, frame.scope)
    elif name in ("cd", "pushd", "popd", "chdir"):
        _change_directory(frame, command, before)
    elif name in ("set", "shopt"):
        _report_modes(command)
    elif name in ("ulimit", "prlimit"):
        walker.has_limits = True
    elif name == "enable" and _split(command.words)[0]:
        _report_disabled_builtins(command)
    elif name in ("mv", "gmv"):
        walker.has_moved = True
    elif name == "trap":
        walker.is_concurrent = True


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
    if command.name not in ("cd", "pushd", "popd"):  # another shell's builtin, or a program, which moves no shell
        scope.cwds = None
        return
    if command.real != "cd" and "n" in letters:
        scope.cwds = before
        return
    if scope.cwds is None or before is None or not operands:
        return
    text = operands[0].text
    if "CDPATH" in scope.variables and not text.startswith(("/", "./", "../")):
        scope.cwds = None
        return
    # Before any other command the directory is as the guard sees it. Later a command may have removed it, or disabled `cd`.
    is_first = len(frame.walker.commands) == 1 and len(command.words) == 2
    # bash enters neither `file/..` nor `missing/../src`, and no directory that it may not search.
    if not is_first or not all(
        machine.is_directory(machine.absolute(text, cwd))
        and machine.is_directory(f"{text if text[:1] == '/' else f'{cwd}/{text}'}/.")
        for cwd in before
    ):
        scope.cwds_if_cd_failed = before


def _report_modes(command: Command) -> None:
    """Report options of `set` and `shopt` that change how bash reads the rest of the script."""
    is_set = command.real == "set"
    follows_o = False
    for word in command.words[1:]:
        text = word.text
        if text in ("--", "-") and is_set:
            return
        is_option = text[:1] in ("-", "+")
        if is_set:
            letters = text if is_option else ""
            changes = (
                text in _MODES or not _MODE_LETTERS.isdisjoint(letters) or (HOLE in text and (is_option or follows_o))
            )
        else:
            changes = (
                not (is_option and word.proven)
                and text not in _HARMLESS_OPTIONS
                and not (follows_o and text not in _MODES)
            )
        if changes:
            command.emit("unparsed", word, ": it changes the meaning of the rest")
        follows_o = is_option and text[-1:] == "o"


def _report_disabled_builtins(command: Command) -> None:
    """Report a builtin that `enable` switches off, unless a program of that name does the same."""
    operands, letters = _split(command.words)
    if "n" in letters or "d" in letters or HOLE in letters:
        for word in operands:
            if word.text not in _PROGRAMS_AND_BUILTINS:
                command.emit("shadow", word, f": {word.text.replace(HOLE, '…')} is no builtin any more")


def note_copies(parser: OptionParser) -> None:
    """Judge the files that a copy or a link puts into a directory: the name of the directory alone does not show them."""
    *sources, target = parser.operands
    if parser.target is not None:
        sources, target = parser.operands, parser.target
    elif not sources:
        sources, target = [target], target.part(".")  # `ln x/y` makes y
    walker, cwds, emit = parser.walker, parser.command.cwds, parser.emit
    machine, copies = walker.machine, walker.copies
    is_link = not parser.seen.isdisjoint(_SYMBOLIC)
    placed = walker.links if is_link else walker.placed
    if not all(word.proven for word in parser.operands):
        placed.add(HOLE)
    for source in sources:
        base = source.text.rstrip("/").rpartition("/")[2]
        for cwd in cwds or ():  # running the copy or link counts as running the original
            path = machine.absolute(target.text, cwd)
            copies[path] = copies[f"{path}/{base}"] = base
            placed.add(machine.absolute(base, path))
            if not machine.is_directory(path):
                placed.add(path)
        if source.text != target.text:
            emit("reads", source)  # a moved file can be read under its new name
        if is_link and source.text[:1] != "/" and parser.seen.isdisjoint(_RELATIVE):
            for place in (
                target.text,
                target.text.rstrip("/").rpartition("/")[0] or ".",
            ):  # it leads there from its own directory
                emit("reads", source.part(f"{place}/{source.text}"))
        if parser.row["id"] == "ln" or not parser.seen.isdisjoint(_LINKING):
            walker.note_written(source, cwds)  # a write to either name is a write to both
        if not base or base in (".", ".."):
            continue
        put = target.part(f"{target.text.rstrip('/')}/{base}")
        put.glob, put.multi = source.glob or target.glob, False
        walker.note_written(put, cwds)
        folder = target.text.endswith(("/", ".")) or len(sources) > 1 or may_become_protected(target.text)
        if folder or any(machine.is_directory(machine.absolute(target.text, c)) for c in cwds or ()):
            emit("writes", put)


def distrust_changed_paths(walker: Walker) -> None:
    """Add an unknown path for every path that leads elsewhere after a change that the call itself makes."""
    if walker.links:
        walker.links |= walker.placed  # one of the new links may be among the files that the call copies or moves
        walker.links |= {_behind_links(walker, link) for link in walker.links}
    if HOLE in walker.links or (walker.is_concurrent and walker.linked_from is not None):
        walker.linked_from = 0
    for index, command in enumerate(walker.commands):
        is_later = walker.linked_from is not None and index >= walker.linked_from
        if command.real in ("ln", "gln") and not is_later:
            continue
        for verb, word, _ in list(command.effects):
            if verb not in ("reads", "writes", "deletes", "runs") or is_standard_device(word.text):
                continue
            if is_later or _leads_elsewhere(walker, word, command.cwds):
                command.emit("reads", word.part(f"{HOLE}/{word.text}"))


def _leads_elsewhere(walker: Walker, word: Word, cwds: tuple[str, ...] | None) -> bool:
    text = word.text
    if walker.has_moved and text[:1] != "/" and ".." in text.split("/"):
        return True  # the working directory may have moved
    return any(_passes_new_link(walker, word, cwd) for cwd in cwds or ())


def _passes_new_link(walker: Walker, word: Word, cwd: str) -> bool:
    if len(word.text) > MAX_PATH:
        return True
    at = "/" if word.text.startswith("/") else cwd
    for part in word.text.split("/"):
        if HOLE in part or NUMBER_HOLE in part or (word.glob and any(mark in part for mark in "*?[")):
            return any(link.startswith((at + "/", walker.machine.resolve(at, "/") + "/")) for link in walker.links)
        at = walker.machine.absolute(part or ".", at)
        if at in walker.links or _behind_links(walker, at) in walker.links:
            return True
    return False


def _behind_links(walker: Walker, path: str) -> str:
    """Return a path whose directory is resolved: a link that is made in a link to a directory has two names."""
    walker.spend(WORK_TO_RESOLVE)
    folder, _, name = path.rpartition("/")
    return f"{walker.machine.resolve(folder or '/', '/')}/{name}"

"""Judges simple commands: finds the program that a name stands for, applies assignments, and records the effects."""

from __future__ import annotations

from corral.guard.analysis import side_effects
from corral.guard.analysis.heuristics import judge_text
from corral.guard.analysis.option_parser import OptionParser
from corral.guard.analysis.rows import UNKNOWN_ROW, Slot, slots_of
from corral.guard.analysis.scope import DYNAMIC_VARIABLES, UNSET, is_tainted
from corral.guard.analysis.slots import fill
from corral.guard.path_zones import inside, is_secret_variable
from corral.guard.rules.loader import row as row_of
from corral.guard.rules.loader import variable as variable_slots
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from corral.guard.analysis.rows import Row
    from corral.guard.analysis.scope import Frame, Scope
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value
    from corral.guard.shell.parser import Node

    Assignment = tuple[str, Value, Word]

MAX_VALUE = 16 * 1024  # characters or elements of a variable, against x+=$x forty times
_SYSTEM_PATHS = ("/usr/", "/bin", "/sbin", "/lib", "/opt/", "/snap/")
_HARMLESS_COMMANDS = frozenset({"true", "false", ":", "cat", "less", "more"})  # as a pager or an editor
# Package managers put programs into these directories, and their programs are what their names say.
_INSTALLED = frozenset({
    "bin", ".bin", "sbin", "Scripts", "node_modules", "vendor", "venv", ".venv", "env", ".tox", ".nox", "site-packages",
})  # fmt: skip
# Commands that may make an assignment before them last: x=1 export x, also by another builtin or in a function.
_MAY_KEEP_PREFIX = frozenset({
    ".", "builtin", "command", "declare", "eval", "export", "getopts", "let", "local", "readonly", "source", "time", "typeset", "unset",
})  # fmt: skip
_WORKS_EMPTY = frozenset(
    {"POSIXLY_CORRECT"}
)  # variables that need no value: bash enters its POSIX mode at any assignment
_PRINTING_BUILTINS = frozenset({"command", "echo", "printf", "pwd"})
_SETS_BY_NAME = frozenset({"mapfile", "printf", "read", "readarray", "wait"})
_DECLARATIONS = frozenset({"declare", "export", "local", "readonly", "typeset", "unset"})
# Programs that behave as the program whose name they are called by.
_MULTI_CALL = frozenset({"busybox", "coreutils", "rustup", "toybox", "uutils"})

REDIRECT = "redirect"  # the detail of an effect that a redirect has
PLAIN_SSH = "plain ssh"  # the detail of a GIT_SSH_COMMAND that is ssh with options that the broker ignores


class Command:
    """A command that a call could run, and its effects as (key or verb, word, detail)."""

    __slots__ = ("cwds", "depth", "effects", "name", "output", "real", "row", "verbs", "words")

    def __init__(self, name: str, words: list[Word], depth: int, cwds: tuple[str, ...] | None) -> None:
        self.name = name
        self.words = words
        self.depth = depth
        self.cwds = cwds
        self.output: str | None = None  # the text that it prints, if that is certain
        self.real = ""  # the base name of the program behind links and copies
        self.row: Row | None = None
        self.verbs: list[Word] = []  # its subcommands: `remote` and `add` of `git remote add`
        self.effects: list[tuple[str, Word, str]] = []

    def emit(self, key: str, word: Word, detail: str = "") -> None:
        """Record an effect."""
        self.effects.append((key, word, detail))


def printed_since(before: int, frame: Frame) -> str | None:
    """Return the output of the commands since index `before`, if it is certain; a hole stands for an unknown part."""
    scope, walker = frame.scope, frame.walker
    commands = walker.commands[before:]
    # Without a free file descriptor bash makes no pipe; with another PATH it may not find the program. Then there is no output.
    if walker.has_limits or (scope.functions and any(command.name in scope.functions for command in commands)):
        return None
    if "PATH" in scope.variables and any(command.name not in _PRINTING_BUILTINS for command in commands):
        return None
    return _known_output(commands)


def _known_output(commands: list[Command]) -> str | None:
    """Return the output of a single command if it is certain; a hole stands for an unknown part."""
    if len(commands) != 1:
        return None
    command = commands[0]
    name, words = command.name, command.words[1:]
    if command.output is not None:
        return command.output.rstrip("\n")
    is_proven = all(w.proven for w in words)
    texts = [w.text for w in words]
    if command.row is not None and texts and texts[0] in command.row.get("hooks", ()) and is_proven:
        return ":"  # the program's own shell settings, which the call cannot influence
    if (name == "nproc" and not texts) or (name == "id" and texts in (["-u"], ["-g"])):
        return NUMBER_HOLE
    if name in ("which", "command") and words and words[-1].proven and "/" not in texts[-1]:
        named = len(words) == 1 if name == "which" else texts[:-1] == ["-v"]
        return f"{HOLE}/{texts[-1]}" if named else None
    if name == "pwd":
        return command.cwds[0] if command.cwds and len(command.cwds) == 1 and not words else None
    if name not in ("echo", "printf") or command.effects or not is_proven:
        return None
    if name == "echo":
        while texts and texts[0][:1] == "-" and texts[0][1:] and not texts[0][1:].strip("neE"):
            texts.pop(0)
        return None if any("\\" in t for t in texts) else " ".join(texts)
    if len(texts) == 1 and "%" not in texts[0] and "\\" not in texts[0] and texts[0][:1] != "-":
        return texts[0]
    return texts[1] if len(texts) == 2 and texts[0] in ("%s", "%s\\n") else None


def assign_variable(walker: Walker, frame: Frame, command: Command, name: str, value: Value, word: Word) -> None:
    """Set a variable, and judge it if it changes what later commands mean or load."""
    if value is not None and len(value) > MAX_VALUE:
        value = None
    walker.spend(5)
    walker.assigned.add(name)
    attributes = frame.scope.attributes.get(name, "i" if name in DYNAMIC_VARIABLES else "")
    if attributes:
        if "i" in attributes:
            text = value if isinstance(value, str) else HOLE
            walker.evaluate(text, frame, word)
            walker.follow_arithmetic(text, frame)
        frame.allow_error()  # the variable may be read-only
        value = None
    frame.scope.variables[name] = value
    text = value if isinstance(value, str) else HOLE
    if isinstance(value, str) and is_tainted(value):
        walker.tainted = True
    if name == "PATH":
        for part in text.split(":"):
            if not _is_system(walker, part):
                command.emit("shadow", word, f": {part.replace(HOLE, '…') or 'an empty entry'} comes into PATH")
    elif name in ("BASH_CMDS", "BASH_ALIASES"):
        command.emit("shadow", word, f": {name} changes what names mean")
    elif name == "HISTFILE" and text:
        command.emit("writes", word.part(text))
    if text and HOLE not in text and is_secret_variable(name):
        command.emit("secret-inline", word.part(name))
    slots = slots_of(variable_slots(name) or ())
    if not slots or (not text and name not in _WORKS_EMPTY):
        return
    loads, kind = slots[0].effect == "loads", slots[0].kind
    if kind == "shell" and text in _HARMLESS_COMMANDS:
        return
    if slots[0].label == "maybe" and HOLE in text:
        command.emit("word-unproven", word)
        return
    if loads:
        command.emit("code-loaded", word.part(f"{name}={text}"))
    elif kind in ("shell", "code"):
        command.emit("code-option", word.part(f"{name}={text}"), PLAIN_SSH if _is_plain_ssh(name, text) else "")
    row: Row = {"id": f"variable-{name}", "style": "none", "options": {}, "operands": ()}
    parser = OptionParser(walker, frame, command, row)
    for slot in slots:
        if slot.kind == "code":
            continue
        if slot.kind == "text":
            judge_text(parser, word.part(text))
        if loads:
            slot = Slot._make(("reads", *slot[1:]))
        for part in text.split(":") if loads and slot.kind != "args" else [text]:
            if part:
                fill(parser, slot, word.part(part))


def _is_plain_ssh(name: str, text: str) -> bool:
    if name != "GIT_SSH_COMMAND":
        return False
    from corral.guard.broker_shapes import is_plain_ssh_command  # noqa: PLC0415  few calls set it

    return is_plain_ssh_command(text)


def assign_implicitly(frame: Frame, name: str, value: Value, word: Word) -> None:
    """Set a variable that an expansion or arithmetic assigns, and judge the change."""
    command = Command("", [word], frame.depth, frame.scope.cwds)
    assign_variable(frame.walker, frame, command, name, value, word)
    if command.effects:
        frame.walker.commands.append(command)


def assign_from_word(walker: Walker, frame: Frame, command: Command, word: Word) -> None:
    """Judge an assignment that a declaration makes of an expanded word."""
    name, equals, value = word.text.partition("=")
    if HOLE in name:
        frame.scope.forget_variables()
    elif equals:
        is_plain = HOLE not in value and name.isidentifier()  # x+=1 and x[0]=1 change a part of the variable
        assign_variable(
            walker, frame, command, name.rstrip("+").partition("[")[0], value if is_plain else None, word.part(value)
        )


def judge_simple_command(
    frame: Frame, node: Node, words: list[Word], assignments: Iterable[Assignment], targets: Sequence[tuple[str, Word]]
) -> None:
    """Record one simple command: its assignments, its redirects, and what its words do."""
    walker, scope = frame.walker, frame.scope
    command = walker.add_command(frame, words or [frame.word_at(node)])
    command.effects += [(verb, word, REDIRECT) for verb, word in targets]
    saved: dict[str, Any] = {}
    for name, value, word in assignments:
        saved.setdefault(name, scope.variables.get(name, UNSET))
        assign_variable(walker, frame, command, name, value, word)
    if not words:
        return
    if frame.stdin is not None and len(words) == 1 and words[0].text == "cat" and not targets:
        command.output = frame.stdin  # `cat <<E` prints its input
    before = scope.cwds
    judge_command(walker, frame, words, command, direct=True)
    if targets and before is not None and frame.scope.cwds != before:
        frame.scope.cwds_if_cd_failed = before  # if a redirect fails, bash does not run `cd`
    is_keeper = command.name in _MAY_KEEP_PREFIX or command.name in frame.scope.functions
    for name, value in saved.items():  # bash drops an assignment before a command when the command ends
        keeps = is_keeper or (command.name in _SETS_BY_NAME and any(_may_name(word, name) for word in words[1:]))
        frame.scope.restore(name, None if keeps else value)
        if keeps and frame.scope.locals is not None and name in frame.scope.locals:
            frame.scope.locals[name] = None


def _may_name(word: Word, name: str) -> bool:
    """Return whether a builtin's argument may name a variable, also by an expression in a subscript."""
    return name in word.text or HOLE in word.text or "[" in word.text


def judge_command(
    walker: Walker, frame: Frame, words: list[Word], command: Command | None = None, *, direct: bool = False
) -> None:
    """Judge a command given as words. `direct` commands run in this shell and may be functions."""
    command = command or walker.add_command(frame, words)
    first = words[0]
    if not first.proven:
        base = first.text.rpartition("/")[2]
        if first.glob or not base or HOLE in base or NUMBER_HOLE in base:
            command.emit("name-unproven", first)
            return
        # Only the directory is unknown: "$VENV/bin/python" is a python somewhere.
    name = command.name = first.text.replace(HOLE, "…")
    called_function: Scope | None = None
    if direct and name in frame.scope.functions:
        from corral.guard.analysis.functions import call_function  # noqa: PLC0415  few calls define one

        call_function(walker, name, words, frame)
        if name not in frame.scope.maybe_undefined:
            return
        called_function = frame.scope.copy()
    called = base = name.rpartition("/")[2]
    if "/" in name:
        command.emit("runs", first)
        base = _program_name(walker, frame, command, first, base)
    else:
        for folder in walker.machine.path:
            if walker.machine.exists(first.text, folder):
                command.emit("runs", first.part(f"{folder}/{first.text}"))
                break
    command.real = base
    row = row_of(base)
    if row is None and base.startswith("git-"):
        words, base = [first, first.part(base[4:]), *words[1:]], "git"  # a program of git's own directory
        row = row_of(base)
    is_own = row is not None and base == called and "/" in name and _is_project_program(walker, frame, first, row)
    if row is None or (is_own and "group" not in row):
        row = UNKNOWN_ROW
    command.row = row  # the name axis refuses a name of the network group even if the program is the project's own
    if "scripts" in row and walker.written:
        from corral.guard.analysis.written_files import report_scripts  # noqa: PLC0415  most calls write nothing

        report_scripts(walker, frame, command, row["scripts"])
    before = frame.scope.cwds
    if name in _DECLARATIONS:
        walker.follow_declaration(frame, command, name, words[1:])
    else:
        parser = OptionParser(walker, frame, command, UNKNOWN_ROW if is_own else row)
        parser.parse(words if base != "trap" else _without_signals(words))
        if name in ("set", "shift"):
            walker.follow_declaration(frame, command, name, words[1:])
    side_effects.note_side_effects(frame, command, before)
    if called_function is not None:
        frame.merge([frame.scope.copy(), called_function])


def _without_signals(words: list[Word]) -> list[Word]:
    """Return the words of `trap` up to its command; the signals behind it may contain a meaningless `-`."""
    at = next((i for i, w in enumerate(words) if i and (w.text == "-" or w.text[:1] != "-")), len(words))
    return words[: at + 1]


def _is_system(walker: Walker, path: str) -> bool:
    # A project may be in /opt or /usr/src, where commands can write to it.
    return path.startswith(_SYSTEM_PATHS) and not inside(path, walker.machine.root)


def _program_name(walker: Walker, frame: Frame, command: Command, first: Word, base: str) -> str:
    """Return the name of the program behind a path, through links, and copies that this call makes."""
    for cwd in frame.scope.cwds or ():
        absolute = walker.machine.absolute(first.text, cwd)
        if walker.may_be_written(first.text, cwd):
            command.emit("run-written", first)
        if absolute in walker.copies:
            return walker.copies[absolute]
        if not _is_system(walker, absolute):
            real = walker.machine.resolve(first.text, cwd).rpartition("/")[2]
            if real != base and row_of(real) is not None and not (real in _MULTI_CALL and row_of(base) is not None):
                return real
    return base


def _is_project_program(walker: Walker, frame: Frame, first: Word, row: Row) -> bool:
    """Return whether a path leads to a program of the project that only shares its name with a known one (`support/mkdocs`).

    The guard judges it as any script of the project, if it exists and this call does not write to its path or above. A program
    that a profile refuses by name keeps that name: it may be a copy from an earlier call, and the kernel does not keep `tools/rm`
    from deleting the project.
    """
    base = first.text.rpartition("/")[2]
    if (
        not first.proven
        or row.get("group", "network") != "network"
        or "interpreter" in row
        or base in row.get("wrappers", ())
    ):
        return False
    machine = walker.machine
    for cwd in frame.scope.cwds or ("",):
        path = machine.resolve(first.text, cwd)
        if (
            not machine.exists(first.text, cwd)
            or not inside(path, machine.root)
            or not _INSTALLED.isdisjoint(path.split("/"))
            or walker.may_be_written(first.text, cwd)
        ):
            return False
    return True

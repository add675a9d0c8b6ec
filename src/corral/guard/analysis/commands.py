"""From words to acts: which program a name really is, and what assignments change for it."""

from __future__ import annotations

from corral.guard.analysis import side_effects
from corral.guard.analysis.command import Command
from corral.guard.analysis.option_parser import OptionParser
from corral.guard.analysis.scope import TAINT
from corral.guard.path_zones import inside, is_secret_variable
from corral.guard.rules.loader import row as row_of
from corral.guard.rules.loader import variable as variable_slots
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Value

    Row = dict[str, Any]

MAX_VALUE = 16 * 1024  # characters or elements of a variable: against x+=$x forty times
_SYSTEM_PATH = ("/usr/", "/bin", "/sbin", "/lib", "/opt/", "/snap/")
_HARMLESS_COMMANDS = frozenset({"true", "false", ":", "cat", "less", "more"})  # of a pager or an editor
# Directories into which package managers put programs: those are what they are called.
_INSTALLED = frozenset(
    {
        "bin",
        ".bin",
        "sbin",
        "Scripts",
        "node_modules",
        "vendor",
        "venv",
        ".venv",
        "env",
        ".tox",
        ".nox",
        "site-packages",
    }
)
_BY_NAME = frozenset(
    {"busybox", "coreutils", "rustup", "toybox", "uutils"}
)  # programs that are what they are called by
_GUESS: Row = {"id": "unknown", "style": "guess", "options": {}, "operands": (("reads", "any", "*", "", (), ()),)}


def assign_variable(walker: Walker, frame: Frame, act: Command, name: str, value: Value, word: Word) -> None:
    """Set a variable, and judge the ones that change what later commands mean or load."""
    if value is not None and len(value) > MAX_VALUE:
        value = None
    walker.spend(5)
    attributes = frame.scope.attributes.get(name)
    if attributes is not None:
        if "i" in attributes and walker.tainted:
            act.effects.append(("code-unproven", word, ""))
        value = None
    frame.scope.variables[name] = value
    text = value if isinstance(value, str) else HOLE
    if isinstance(value, str) and "[" in value and TAINT.search(value):
        walker.tainted = True
    if name == "PATH":
        for part in text.split(":"):
            if _is_system(walker, part):
                continue
            act.effects.append(("shadow", word, f": {part.replace(HOLE, '…') or 'an empty entry'} comes into PATH"))
    elif name in ("BASH_CMDS", "BASH_ALIASES"):
        act.effects.append(("shadow", word, f": {name} says what names mean"))
    elif name == "HISTFILE" and text:
        act.effects.append(("writes", word.part(text), ""))
    if text and HOLE not in text and is_secret_variable(name):
        act.effects.append(("secret-inline", word.part(name), ""))
    slots = variable_slots(name)
    if not slots or not text:
        return
    effect, kind = slots[0][0], slots[0][1]
    if kind == "shell" and text in _HARMLESS_COMMANDS:
        return
    if effect == "loads":
        act.effects.append(("code-loaded", word.part(f"{name}={text}"), ""))
    elif kind in ("shell", "code"):
        act.effects.append(("code-option", word.part(f"{name}={text}"), ""))
    reader = OptionParser(
        walker, frame, act, {"id": f"variable-{name}", "style": "none", "options": {}, "operands": ()}
    )
    for slot in slots:
        if effect == "loads":
            slot = ("reads", *slot[1:])
        if slot[1] == "code":
            continue
        if slot[1] == "args":
            reader.fill(slot, word.part(text))
            continue
        for part in text.split(":") if effect == "loads" else [text]:
            if part:
                reader.fill(slot, word.part(part))


def assign_from_word(walker: Walker, frame: Frame, act: Command, word: Word) -> None:
    """Judge an assignment that a declaration makes of an expanded word."""
    name, equals, value = word.text.partition("=")
    if HOLE in name:
        frame.scope.variables = dict.fromkeys([*frame.scope.variables, HOLE])  # any variable may be set
    elif equals:
        assign_variable(walker, frame, act, name.rstrip("+"), value if HOLE not in value else None, word.part(value))


def judge_simple_command(
    walker: Walker,
    frame: Frame,
    words: list[Word],
    assignments: Iterable[tuple[str, Value, Word]],
    targets: Sequence[tuple[str, Word]],
    whole: Word,
) -> None:
    """Record one simple command: its assignments, its redirects, and what its words do."""
    act = Command("", words or [whole], frame.depth, frame.scope.cwds)
    act.effects += [(verb, word, "") for verb, word in targets]
    walker.acts.append(act)
    if not words:
        for name, value, word in assignments:
            assign_variable(walker, frame, act, name, value, word)
        return
    if frame.stdin is not None and len(words) == 1 and words[0].text == "cat" and not targets:
        act.output = frame.stdin  # `cat <<E` prints what it is given
    saved: dict[str, Any] = {}
    for name, value, word in assignments:
        saved.setdefault(name, frame.scope.variables.get(name, saved))
        assign_variable(walker, frame, act, name, value, word)
    before = frame.scope.cwds
    judge_command(walker, frame, words, act, direct=True)
    if targets and before is not None and frame.scope.cwds != before:
        frame.scope.unmoved = before  # a redirect that fails keeps `cd` from running
    for name, value in saved.items():  # a prefix lasts for its command only
        if value is saved:
            frame.scope.variables.pop(name, None)
        else:
            frame.scope.variables[name] = value


def judge_command(
    walker: Walker, frame: Frame, words: list[Word], act: Command | None = None, *, direct: bool = False
) -> None:
    """Judge a command given as words, however it came about."""
    if act is None:
        act = Command("", words, frame.depth, frame.scope.cwds)
        walker.acts.append(act)
    first = words[0]
    if not first.proven:
        base = first.text.rpartition("/")[2]
        if first.glob or not base or HOLE in base or NUMBER_HOLE in base:
            act.effects.append(("name-unproven", first, ""))
            return
        # The directory is unknown, the name is not: "$VENV/bin/python" is a python somewhere.
    act.name = first.text.replace(HOLE, "…")
    if direct and act.name in frame.scope.functions:
        walker.call_function(act.name, words, frame)
        if act.name not in frame.scope.uncertain:
            return
    base = act.name.rpartition("/")[2]
    if base in ("set", "shift"):
        _positional(frame, base, words[1:])
    if "/" in act.name:
        act.effects.append(("runs", first, ""))
        base = _program(walker, frame, act, first, base)
    elif walker.machine.path:
        _shadowed(walker, frame, act, first)
    act.real = base
    row = row_of(base)
    is_called_so = base == act.name.rpartition("/")[2]
    is_own = row is not None and is_called_so and "/" in act.name and _is_own(walker, frame, first, row)
    if row is None or (is_own and "group" not in row):
        row = _GUESS
    act.row = row  # the name axis refuses a name of the network's group, whosever program it is
    for script in row.get("scripts", ()):
        if any(walker.machine.absolute(script, cwd) in walker.written for cwd in frame.scope.cwds or ()):
            act.effects.append(("run-written", first.part(script), ""))
    before = frame.scope.cwds
    OptionParser(walker, frame, act, _GUESS if is_own else row).read(words if base != "trap" else _trapped(words))
    side_effects.note_side_effects(walker, frame, act, words, before)


def _trapped(words: list[Word]) -> list[Word]:
    """Return the words of `trap` without its signals: among them a `-` means nothing."""
    at = next((i for i, w in enumerate(words) if i and (w.text == "-" or w.text[:1] != "-")), len(words))
    return words[: at + 1]


def _positional(frame: Frame, name: str, words: list[Word]) -> None:
    """Follow `shift`, `shift N` and `set -- …`; other options of `set` leave the parameters alone."""
    args = frame.scope.args
    texts = [w.text for w in words]
    if name == "shift":
        count = int(texts[0]) if texts and texts[0].isdigit() else 1
        known = args is not None and (not texts or texts[0].isdigit())
        frame.scope.args = args[count:] if known and args is not None else None
    elif "--" in texts:
        rest = words[texts.index("--") + 1 :]
        frame.scope.args = None if any(w.multi or w.glob for w in rest) else [w.text for w in rest]
    elif not all(t.startswith(("-", "+")) or t == "pipefail" for t in texts):
        frame.scope.args = None


def _is_system(walker: Walker, path: str) -> bool:
    # A project may lie in /opt or /usr/src, and commands write it there.
    return path.startswith(_SYSTEM_PATH) and not inside(path, walker.machine.root)


def _program(walker: Walker, frame: Frame, act: Command, first: Word, base: str) -> str:
    """Return the name that decides for a program given by its path: what a link or a copy made in this call really is."""
    for cwd in frame.scope.cwds or ():
        absolute = walker.machine.absolute(first.text, cwd)
        if absolute in walker.copies:
            return walker.copies[absolute]
        if absolute in walker.written or HOLE in walker.written:
            act.effects.append(("run-written", first, ""))
        if not _is_system(walker, absolute):
            real = walker.machine.resolve(first.text, cwd).rpartition("/")[2]
            if real != base and row_of(real) is not None and not (real in _BY_NAME and row_of(base) is not None):
                return real
    return base


def _is_own(walker: Walker, frame: Frame, first: Word, row: Row) -> bool:
    """Say whether a path leads to a program of the project that only shares its name with a known one (`support/mkdocs`).

    It is judged as any script of the project, if it is there and this call writes nothing at its path or above. Others that a profile
    refuses by name stay what they are called: they may be copies that an earlier call made, and no kernel keeps `tools/rm` from
    deleting the project.
    """
    base = first.text.rpartition("/")[2]
    if (
        not first.proven
        or HOLE in walker.written
        or row.get("group", "network") != "network"
        or "interpreter" in row
        or base in row.get("wrappers", ())
    ):
        return False
    machine = walker.machine
    changed = walker.written | {machine.resolve(path, "/") for path in walker.written}
    for cwd in frame.scope.cwds or ("",):
        path, named = machine.resolve(first.text, cwd), machine.absolute(first.text, cwd)
        if (
            not machine.exists(first.text, cwd)
            or not inside(path, machine.root)
            or not _INSTALLED.isdisjoint(path.split("/"))
            or any(inside(place, written) for place in (path, named) for written in changed)
        ):
            return False
    return True


def _shadowed(walker: Walker, frame: Frame, act: Command, first: Word) -> None:
    for folder in walker.machine.path:
        if walker.machine.exists(first.text, folder):
            act.effects.append(("runs", first.part(f"{folder}/{first.text}"), ""))
            return

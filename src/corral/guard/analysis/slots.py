"""Judges the words that fill slots: one function for each kind of slot. Finds danger; proves nothing safe."""

from __future__ import annotations

from itertools import pairwise

from corral.guard.analysis import addresses, heuristics
from corral.guard.analysis.rows import EFFECT_OF_VERB, GUESSED_OPERANDS, slots_of
from corral.guard.analysis.scope import new_shell_scope
from corral.guard.path_zones import is_standard_device, path_work
from corral.guard.rules.loader import row as row_of
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import PROCESS_SUBSTITUTION, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corral.guard.analysis.option_parser import OptionParser
    from corral.guard.analysis.rows import RawSlot, Slot

_RECIPE_CODE = ("$(", "${", "`", ";", "|", "&", "\n")  # make runs a variable's value that contains one of these
_RUNS_ELSEWHERE = frozenset({"-execdir", "-okdir"})  # in the directory of each file that `find` finds
_FOLLOWS = frozenset({"-L", "-H", "-follow"})
_OF_WRITTEN_FILES = ("source", "outdir", "worktree", "input")
_RUNS_ARGUMENTS = frozenset({"doctest", "inspect", "pydoc", "unittest"})  # modules of python
_SAME_SHELL = frozenset({"eval", "source", "."})


def fill(parser: OptionParser, slot: RawSlot, word: Word) -> None:
    """Judge a word in its slot."""
    parser.walker.spend(5 if len(word.text) < 256 else 5 + len(word.text) // 256 + path_work(word.text))
    effect, kind, _, label, _, _ = slot
    if kind in ("text", "literal"):
        return
    if not kind:
        parser.emit(EFFECT_OF_VERB[effect], word, label)
        return
    if kind in ("path", "any"):
        parser.paths.append(word)
    if (handler := _HANDLERS.get(kind)) is not None:
        handler(parser, effect, word, label)
    elif kind in _OF_WRITTEN_FILES:
        from corral.guard.analysis import written_files  # noqa: PLC0415  few programs need it

        written_files.HANDLERS[kind](parser, word)
    else:
        _embedded(parser, kind[5:], effect, word)  # `lang:sed`


def _embedded(parser: OptionParser, language: str, effect: str, word: Word) -> None:
    """Judge text in an embedded language."""
    if HOLE in word.text:
        parser.emit("word-unproven", word)
        return
    from corral.guard.analysis.embedded_languages import SedSyntaxError, interpret  # noqa: PLC0415  few programs need it

    try:
        found = interpret(language, effect, word.text)
    except SedSyntaxError:
        parser.emit("unparsed", word, f": not a sed script that {parser.row['id']} is known to read")
        return
    for kind, key, text in found:
        part = word if text == word.text else word.part(text)
        if not kind:
            parser.emit(key, part)
        elif kind == "nested":
            parser.walker.nested(text, part, parser.frame)
        else:
            _HANDLERS[kind](parser, key, part, "")


def _path(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Record that a path is read, written, deleted, loaded or entered."""
    if effect == "chdir":
        _chdir(parser, word)
        return
    if "://" in word.text or word.text.startswith("file:"):
        local = _local_path(parser, word)
        if local is not word:  # to a program that knows no addresses the whole word is a path
            parser.emit(effect if effect in ("writes", "deletes", "runs") else "reads", local, label)
    if effect == "loads":
        parser.emit("code-loaded", word, label)
        for part in word.text.split(":") if "://" not in word.text else [word.text]:  # a class path has several parts
            parser.emit("reads", word.part(part), label)
        return
    if effect == "runs":
        _script(parser, "runs", word, label)
        return
    if word.text.startswith(("@/", "@../", "@~/")):  # a file that contains further arguments
        parser.emit("reads", word.part(word.text[1:]), label)
    if effect == "writes" and word.text.startswith(("|", "!", "%pipe%", "pipe:|")):
        parser.emit("code-option", word, label)  # programs that print run these as commands
    if effect == "writes" and "|" in word.text:
        heuristics.judge_text(parser, word)  # `ffmpeg -f tee 'a|b'` writes both
    if effect not in ("reads", "writes", "deletes"):
        if effect in EFFECT_OF_VERB:
            # Installing the project itself fetches only its declared dependencies.
            is_project = effect == "installs" and (word.text == "." or word.text.startswith(("./", ".[")))
            parser.emit("fetch" if is_project else EFFECT_OF_VERB[effect], word, label)
        effect = "reads"
    parser.emit(effect, word, label)
    if effect == "writes":
        parser.walker.note_written(word, parser.command.cwds, is_empty=parser.row["id"] in ("mkdir", "touch"))


def _local_path(parser: OptionParser, word: Word) -> Word:
    """Return the path of a `file:` address. Record any other address, which the program may fetch."""
    if word.text.startswith("file:"):
        return word.part(word.text[5:].removeprefix("//").removeprefix("localhost").partition("?")[0])
    if addresses.is_address(word.text):
        parser.emit("network-maybe", word)
    return word


def _chdir(parser: OptionParser, word: Word) -> None:
    scope, command = parser.frame.scope, parser.command
    if parser.row["id"] != "cd":
        parser.saved_cwds.append(scope.cwds)
    elif word is command.words[0] or (word.text[:1] == "+" and command.real != "cd"):
        # Without an operand `cd` goes home. `popd` and `pushd` go to a directory that is only known at run time, as `cd -` does.
        word = word.part(parser.frame.home() if command.real == "cd" else "-")
    parser.emit("reads", word)
    if not word.proven or word.text == "-" or scope.cwds is None:
        scope.cwds = None
        return
    machine = parser.walker.machine
    moved: list[str] = []
    for cwd in scope.cwds:
        logical = machine.absolute(word.text, cwd)
        physical = machine.resolve(word.text, cwd)
        if logical != physical and machine.exists(word.text, cwd):
            moved += [physical, logical]  # `cd link; cat ..` and `cd link/..` differ, so both are judged
        else:
            moved.append(logical)
        if not machine.is_directory(logical) and parser.frame.depth == 0 and not logical.startswith(machine.root):
            moved.append(cwd)
    scope.cwds = tuple(dict.fromkeys(moved))[:4]


def _command_line(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge a text that the program splits into the words of a command."""
    if HOLE in word.text:
        parser.emit("code-unproven", word)
        return
    parts = [word.part(p) for p in _split(word.text)]
    while parts and "=" in parts[0].text and not parts[0].text.startswith("-"):
        name, _, value = parts.pop(0).text.partition("=")
        parser.walker.assign(parser.frame, parser.command, name, value, word)
    if parts:
        judge_nested_command(parser, parts)


def judge_shell_text(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge shell text."""
    row_id, frame = parser.row["id"], parser.frame
    is_same_shell = row_id in _SAME_SHELL
    if not is_same_shell and not row_id.startswith("variable-"):
        _code(parser, effect, word, label)
    if word.glob or HOLE in word.text:
        # A hole at the start may be any command. A hole further on is an unknown word of the command there.
        parser.emit("code-unproven" if word.text[:1] == HOLE else "word-unproven", word)
        if is_same_shell:
            frame.scope.forget()
        if HOLE in word.text and word.text.strip(HOLE) == "":
            return
    scope = frame.scope if is_same_shell else new_shell_scope(frame.scope)
    if parser.rest and all(w.proven for w in parser.rest):
        scope.args = [w.text for w in parser.rest[1:]]  # bash -c TEXT NAME ARGUMENT…
    parser.walker.nested(heuristics.with_unknown_variables(word.text), word, frame, scope)


def _code(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Record code in a language that the guard does not read."""
    parser.emit("code" if parser.row.get("interpreter") else "code-option", word, label)


def _script(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge a file that is run as code."""
    text = word.text
    if text in ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        _stdin_code(parser, effect, word, label)
        return
    # The program runs what another command writes to a process substitution or another open file.
    if text == PROCESS_SUBSTITUTION or (is_standard_device(text) and text != "/dev/null"):
        parser.emit("code-stdin", word)
        return
    if "://" in text or text.startswith(("npm:", "jsr:", "data:")):  # fetched and run
        parser.emit("network", word, label)
        parser.emit("code-option", word, label)
        return
    if "@" in text.rpartition("/")[2][1:]:  # `go run example.com/x@latest`
        parser.emit("network-maybe", word)
    parser.emit("runs", word, label)
    if parser.row.get("interpreter"):
        parser.emit("reads", word, label)  # timeit.py of the system's Python runs its argument
    if parser.row["id"] in _SAME_SHELL:
        parser.frame.scope.forget()  # the script may set any variable
    absolute = parser.walker.machine.absolute
    folders = [absolute(text, cwd).rpartition("/")[0] for cwd in parser.command.cwds or ()]
    _run_written(parser, word, "", folders=folders)
    heuristics.judge_script_arguments(parser, word)


def _run_written(parser: OptionParser, word: Word, *suffixes: str, folders: Iterable[str] | None = None) -> None:
    """Report code that this call writes itself, and modules that it writes to folders in which the program looks first."""
    if parser.walker.written:
        from corral.guard.analysis import written_files  # noqa: PLC0415  most calls write nothing

        written_files.report_written(parser, word, *suffixes)
        if folders is not None:
            written_files.report_shadowing(parser, word, folders)


def _environment(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge variables that the program expands again: make runs `$(shell …)` in any of them."""
    for name, value in parser.frame.scope.variables.items():
        if isinstance(value, str) and ("$(" in value or "`" in value):
            parser.emit("code-option", word.part(f"{name}={value}"), label)


def _module(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge a module that is run by its name. A module that the row does not list belongs to the project or is a tool."""
    slots = parser.row.get("modules", {}).get(word.text)
    if not word.proven:
        parser.emit("name-unproven", word)
    else:
        if slots is None and row_of(word.text) is not None:
            judge_nested_command(parser, [word, *parser.rest])  # `python -m pip` is pip
        _run_written(parser, word.part(word.text.replace(".", "/")), "", ".py", folders=parser.command.cwds or ())
        if word.text in _RUNS_ARGUMENTS:
            for argument in parser.rest:
                _run_written(parser, argument, "", ".py")
    for slot in slots_of(slots or ()):
        if slot.kind and slot.kind != "code":
            fill(parser, slot, word)
        else:
            parser.emit("code" if slot.effect == "runs" else EFFECT_OF_VERB[slot.effect], word, label)


def _revision(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge a revision of git: `HEAD:path` names a file."""
    heuristics.judge_revision(parser, word)


def _stdin_code(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge an interpreter that reads its program from standard input, or a program that reads names of files there."""
    if effect == "reads":
        parser.emit("reads", word.part(HOLE))
        return
    parser.emit("code-stdin", word)
    if parser.row.get("interpreter") == "shell" and parser.frame.stdin is not None:
        parser.walker.nested(parser.frame.stdin, word, parser.frame, None, "")


def _list_file(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Record a file that lists further operands."""
    parser.emit("reads", word)
    parser.emit("word-unproven", word)


def _assignment(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge VAR=value."""
    name, _, value = word.text.partition("=")
    if "-i" in parser.seen and parser.row["id"] == "declare":
        parser.walker.evaluate(value, parser.frame, word)
    parser.walker.assign(parser.frame, parser.command, name, value, word.part(value))


def _variable_name(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Forget the value of a variable that the command sets."""
    if not word.proven or "[" in word.text:
        parser.walker.evaluate(word.text, parser.frame, word)
    parser.walker.assign(parser.frame, parser.command, word.text, None, word)


def _alias(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge NAME=text of an alias: it changes the meaning of NAME, and the text may run with any arguments."""
    name, equals, text = word.text.partition("=")
    if equals:
        parser.emit("shadow", word, f": {name} becomes an alias")
        parser.walker.nested(heuristics.with_unknown_variables(text), word.part(text), parser.frame)


def _make_variable(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge VAR=value of make, which expands $(shell …) in the value. Any other word is a target or a path."""
    name, equals, value = word.text.partition("=")
    if not equals:
        heuristics.judge_undescribed_word(parser, word)
    elif name[-1:] == "!" or name == "SHELL" or any(mark in value for mark in _RECIPE_CODE):
        parser.emit("code-option", word, label)
    else:
        parser.walker.assign(parser.frame, parser.command, name.rstrip(":?+!"), value, word.part(value))
        heuristics.judge_undescribed_word(parser, word.part(value))


def _args(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge the arguments that a word holds for the program that the label names (`git-push`; `ld,`: separated by commas)."""
    label, commas, _ = label.partition(",")
    row = row_of(label.partition("-")[0])
    for name in label.split("-")[1:]:
        row = (row or {}).get("sub", {}).get(name)
    if row is None or HOLE in word.text:
        parser.emit("code-option", word, label)
        return
    inner = {key: value for key, value in row.items() if key not in ("sub", "bare", "effects")}
    inner["operands"] = GUESSED_OPERANDS
    reader = parser.for_row(inner)
    reader.parse([word, *(word.part(part) for part in (word.text.split(",") if commas else _split(word.text)))])
    if reader.operand_effects:
        parser.emit("code-option", word, label)  # `--remove-files`: the operands are only known when the program runs


def _arithmetic(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge an arithmetic expression: the shell evaluates the text of the word again."""
    if "$(" in word.text or "`" in word.text or HOLE in word.text:
        parser.emit("code-unproven", word)
    parser.walker.evaluate(word.text, parser.frame, word)
    parser.walker.follow_arithmetic(word.text, parser.frame)


def _placeholder(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Remember a string that the program replaces with an input item, as `{}`."""
    if word.text:
        parser.placeholders = (*parser.placeholders, word.text)


def _config(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge key=value of a program's configuration by the row's table of keys."""
    key, _, value = word.text.partition("=")
    key = key.strip()
    known = _config_slots(parser, key)
    for slot in known or ():
        if slot.kind != "shell":
            fill(parser, slot, word.part(value))
        elif value.lower() not in ("true", "false", "cat", "less", ""):
            fill(parser, slot, word.part(value.removeprefix("!")))
    if known is None:
        heuristics.judge_text(parser, word.part(value))
        if HOLE in key:
            parser.emit("word-unproven", word)


def _setting(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge KEY with VALUE as the next operand. Setting a key of the row's table has its effect; another key has none."""
    operands = parser.operands
    at = next((i for i, w in enumerate(operands) if w is word), len(operands))
    value = operands[at + 1] if at + 1 < len(operands) else None
    key, equals, text = word.text.partition("=")
    if equals:
        word, value = word.part(key), word.part(text)  # `npm config set key=value`
    if value is None or (at > 0 and operands[at - 1].text == "get"):
        return
    known = _config_slots(parser, word.text)
    if not word.proven or (known and known[0].effect not in ("", "reads")):
        parser.emit(EFFECT_OF_VERB[effect], word.part(f"{word.text} {value.text}"), label)
    elif known:
        fill(parser, known[0], value)
    else:
        heuristics.judge_text(parser, value)


def _config_slots(parser: OptionParser, key: str) -> list[Slot] | None:
    """Return the slots of the first key in the row's table that fits; `*` in a key stands for any text."""
    key = key.lower()
    for pattern, slots in parser.row.get("config", {}).items():
        head, star, tail = pattern.lower().partition("*")
        fits = key.startswith(head) and key.endswith(tail) and len(key) >= len(head) + len(tail)
        if fits if star else key == head:
            return slots_of(slots)
    return None


def _unpacked(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge an archive or a patch, which writes files that no word names."""
    from corral.guard.analysis import unpacking  # noqa: PLC0415  few programs need it

    (unpacking.judge_patch if label == "patch" else unpacking.judge_archive)(parser, word)


def _class(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Judge a class that is run by its name. If its file is in the project it is a script, otherwise code from elsewhere."""
    is_file = word.text.endswith((".java", ".jar"))
    path = word.text.replace(".", "/")
    names = (word.text,) if is_file else (f"{path}.class", f"{path}.java", word.text)
    known = [n for n in names if any(parser.walker.machine.exists(n, cwd) for cwd in parser.command.cwds or ())]
    if word.proven and (known or is_file):
        _script(parser, "runs", word.part(known[0] if known else word.text), label)
    else:
        parser.emit("code-option", word, label)


def _url(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Record a network address. Without an effect the program may use it."""
    if word.text.startswith("file:"):
        parser.emit("reads", _local_path(parser, word))
        return
    unknown = HOLE in addresses.host_of(word.text)
    key = "network-unproven" if unknown else addresses.network_effect(word.text)
    parser.emit(key if effect else "network-maybe", word, label)


def _remote(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Record a git remote or rsync place: a name, an address, or a path."""
    kind = addresses.remote_kind(word.text)
    if kind == "path":
        parser.emit("reads", _local_path(parser, word))
    elif kind == "ext":
        parser.emit("code-option", word)
    else:
        parser.emit("network" if kind != "local" else "network-local", word, label)


def _host_path(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Record host:path, or a plain path."""
    parser.paths.append(word)
    kind = addresses.remote_kind(word.text)
    if kind in ("path", "name"):
        _path(parser, effect or "reads", word, "")
    else:
        parser.emit("network-local" if kind == "local" else "network", word, label)


def _at_path(parser: OptionParser, effect: str, word: Word, label: str) -> None:
    """Record the file of @file, name@file or name=<file; anything else is text."""
    paths = [part for mark in ("=@", "=<", "@") if (part := word.text.partition(mark)[2])]
    if word.text.startswith("@"):
        paths = [word.text[1:]]
    for path in dict.fromkeys(paths):
        parser.emit("reads", word.part(path.partition(";")[0]))


def judge_nested_command(parser: OptionParser, words: list[Word], *, until_semicolon: bool = False) -> int:
    """Judge a command that this one runs; return how many words it takes."""
    used = len(words)
    if until_semicolon:
        for index, word in enumerate(words):
            if word.text in (";", "+"):
                used = index + 1
                words = words[:index]
                break
    parser.walker.spend(len(words))
    words = [_with_holes(parser, w) for w in words]
    if words:
        heuristics.judge_launched_name(parser, words[0])
    if parser.row.get("appends"):
        words.append(Word(HOLE, words[-1].end if words else 0, multi=True))
    if words:
        frame = parser.frame.enter()
        if not parser.seen.isdisjoint(_RUNS_ELSEWHERE):
            frame.scope = frame.scope.copy()
            frame.scope.cwds = None
        parser.walker.judge_wrapped_command(frame, parser.command, words)
    return used


def _with_holes(parser: OptionParser, word: Word) -> Word:
    """Return a word with its placeholders replaced by holes, or for `find` by a glob below the starting point."""
    text, operands = word.text, parser.operands
    is_found = parser.row["style"] == "find" and "{}" in text and len(operands) == 1 and operands[0].proven
    # `find` also finds its starting point: {}. and {}{} may be `..`
    is_name = ".." not in text.replace("{}", ".").split("/")
    if is_found and is_name and not _follows_links(parser, text):
        found = text.replace("{}", f"{operands[0].text}/?")
        return Word(found, word.start, word.end, glob=True, argument=word.argument)
    for placeholder in parser.placeholders:
        text = text.replace(placeholder, HOLE)
    return word if text == word.text else word.part(text)


def _follows_links(parser: OptionParser, text: str) -> bool:
    """Return whether `find`, or a path such as `{}/x`, goes through a link that `find` finds, or `{}` may be the dot of a `..`."""
    texts = [word.text for word in parser.command.words]
    behind = text.partition("{}")[2]
    is_longer = "{}" in behind or behind == "." or behind.startswith(("/", "./"))
    return is_longer or not _FOLLOWS.isdisjoint(texts) or ("-type", "l") in pairwise(texts)


_HANDLERS: dict[str, Callable[[OptionParser, str, Word, str], object]] = {
    "alias": _alias, "args": _args, "arithmetic": _arithmetic, "assign": _assignment, "atpath": _at_path, "class": _class,
    "code": _code, "config": _config, "environment": _environment, "hostpath": _host_path,
    "listfile": _list_file, "makevar": _make_variable, "mark": _placeholder, "module": _module, "name": _variable_name,
    "path": _path, "ref": _revision, "remote": _remote, "script": _script, "setting": _setting, "shell": judge_shell_text, "stdin": _stdin_code,
    "ownremote": heuristics.judge_own_remote, "url": _url, "words": _command_line,
    "any": lambda parser, effect, word, label: heuristics.judge_undescribed_word(parser, word),
    "argv": lambda parser, effect, word, label: judge_nested_command(parser, [word]),
    "package": lambda parser, effect, word, label: _path(parser, "writes", word.part("package.json"), ""),
    "unnamed": lambda parser, effect, word, label: parser.walker.written.add(HOLE),  # it writes files that no word names
    "unpacked": _unpacked,
}  # fmt: skip


def _split(text: str) -> list[str]:
    """Split a string into words as a shell does, without the quotes."""
    from shlex import split  # noqa: PLC0415  only for the few programs that split strings

    try:
        return split(text)
    except ValueError:
        return text.split()

"""Judges words that no row describes: each may be a path, an address or a command. Finds danger; proves nothing safe."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.analysis.addresses import is_address
from corral.guard.analysis.rows import slots_of
from corral.guard.path_zones import classify_path, inside, is_credential_file, protected
from corral.guard.rules.loader import row as row_of
from corral.guard.shell.braces import HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.option_parser import OptionParser
    from corral.guard.analysis.rows import Row
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Word

_SEPARATOR = pattern(r"[=,:;@|\[\]'\"]")
MAX_GUESSES = 8  # commands that the arguments of one command may name, against a call that names a hundred
_BLANKS = (" ", "\t", "\n")
# Options that take a command, and options that take a sentence.
_COMMAND_OPTIONS = frozenset({"cmd", "command", "exec", "execute", "hook", "run", "shell-command", "then"})
_TEXT_OPTIONS = frozenset({
    "b", "body", "comment", "desc", "description", "label", "m", "message", "msg", "name", "note", "prompt", "query", "reason",
    "subject", "summary", "t", "text", "title",
})  # fmt: skip
_SHELL_MARKS = (";", "|", "&", "$(", "`", ">", "<", HOLE)
# Shell builtins, which no other program can start, and names that are also ordinary words.
_ORDINARY = frozenset({
    ".", "source", "eval", "exec", "alias", "set", "export", "trap", "command", "builtin", "enable", "host",
})  # fmt: skip

# Names that other programs use for their subcommands. One of these counts as a command only if its arguments fit.
_SUBCOMMANDS = frozenset({
    "act", "alpine", "at", "batch", "bridge", "cancel", "cf", "check", "code", "crash", "cron", "daemon", "defaults",
    "del", "dump", "eject", "halt", "init", "isolate", "kill", "login", "mount", "open", "passwd", "perf",
    "pkg", "port", "reboot", "restore", "rm", "rmdir", "script", "scrub", "security", "service", "shutdown",
    "skill", "snap", "supervise", "trash", "truncate", "trust", "umount", "unlink", "wall", "wipe",
})  # fmt: skip
# The names among them that do not begin a sentence and are seldom the value of an option.
_POWER = frozenset({"halt", "reboot", "shutdown"})
_ONLY_COMMANDS = _POWER | {"passwd", "rm", "rmdir", "umount", "unlink"}
# Groups of programs that only start a session or a desktop. Their arguments are judged word by word.
_SESSION_GROUPS = frozenset({"session", "clipboard"})
# Groups of programs that sentences mention and options choose. Interpreters have no group.
_TOPIC_GROUPS = _SESSION_GROUPS | {"container", None}


def judge_undescribed_word(parser: OptionParser, word: Word) -> None:
    """Record the effects that an undescribed word may have in its program."""
    unknown = parser.row["id"] == "unknown"
    for part in _path_candidates(word, parser.walker.machine, parser.command.cwds):
        parser.emit("writes" if _may_write(parser, part, every=unknown) else "reads", part)
        if unknown and parser.walker.written and _may_run_written(parser, word, part):
            parser.emit("run-written", part)
    if (unknown or "://" in word.text) and is_address(word.text):
        parser.emit("network-maybe", word)
    if unknown and not word.proven and HOLE in word.text:
        parser.emit("word-unproven", word)
    if parser.row["id"].startswith("git"):
        judge_revision(parser, word)
    else:
        _command(parser, word, unknown=unknown)


def judge_revision(parser: OptionParser, word: Word) -> None:
    """Record that git prints a file of credentials: `HEAD:.env`, or a path of an older commit that need not exist now."""
    root = parser.walker.machine.root
    path = word.text.rpartition(":")[2].rpartition(")")[2].lstrip("/")
    if path and HOLE not in path and classify_path(f"{root}/{path.removeprefix('./')}", root, "/nonexistent") == "env":
        parser.emit("reads", word.part(path))


def judge_own_remote(parser: OptionParser, _effect: str, word: Word, _label: str) -> None:
    """Record that git would change a remote that the user has set up: the change would stay in the commands' copy of the settings."""
    for cwd in parser.command.cwds or ():
        remotes = parser.walker.machine.remotes(cwd)
        if remotes is not None and word.text in remotes.urls and word.text not in remotes.unconfirmed:
            parser.emit("remote", word)
            return


def judge_text(parser: OptionParser, word: Word) -> None:
    """Record the paths in a word that a row calls text: the program may open one, as `java -Xlog:gc:file=../x` does."""
    text = word.text
    if "://" in text and "file:" not in text:
        return
    for path in _SEPARATOR.split(text):
        if "/" in path or path == ".." or path[:1] == "~":
            part = word.part(path if path[:1] != "-" else path[2:])  # the option before takes no value: `-f -e../x`
            parser.emit("writes" if _may_write(parser, part, every=True) else "reads", part)


def judge_script_arguments(parser: OptionParser, script: Word) -> None:
    """Judge the arguments of a script that has a row of its own: `php artisan …`, `python manage.py …`."""
    row = row_of(script.text.rpartition("/")[2]) if parser.rest and script.proven else None
    if row is not None and "group" not in row and "interpreter" not in row and "copies" not in row:
        parser.walker.judge_possible_command(parser.frame.enter(), [script, *parser.rest])


_OFFLINE = frozenset({"--no-install", "--no", "--offline"})


def judge_launched_name(parser: OptionParser, name: Word) -> None:
    """Judge the command name that a launcher gets: it may be several words, or a package that the launcher fetches."""
    text = name.text
    if any(blank in text for blank in _BLANKS) and HOLE not in text:
        parser.walker.nested(text, name, parser.frame)
    # `uv run x.py` runs a file of the working directory. A name without a dot is a program, unless the call writes one of that name.
    if parser.walker.written and any(
        parser.walker.may_be_written(text, cwd, named="." not in text) for cwd in parser.command.cwds or ()
    ):
        parser.emit("run-written", name)
    if "://" in text and is_address(text):
        parser.emit("network", name)
        parser.emit("code-option", name)
    elif parser.row.get("downloads") and name.proven:
        is_named = ":" in text or text.rfind("@") > 0  # an address, or a version, is always fetched
        if "/" in text and text[0] != "@" and ":" not in text:
            return
        if is_named or row_of(text) is None:
            if ":" in text or not _is_installed(parser, text):
                parser.emit("network-maybe", name)
        elif not (_OFFLINE & {word.text for word in parser.command.words} or _is_installed(parser, text)):
            parser.emit("fetch-missing", name)


def _is_installed(parser: OptionParser, name: str) -> bool:
    """Say whether a launcher of packages finds a program: in node_modules/.bin here or further up in the project, or in PATH."""
    machine = parser.walker.machine
    for cwd in parser.command.cwds or ():
        place = cwd
        while inside(place, machine.root):
            if machine.exists(name, f"{place}/node_modules/.bin"):
                return True
            place = place.rpartition("/")[0]
    return any(machine.exists(name, place) for place in machine.search_path.split(":") if place.startswith("/"))


def with_unknown_variables(text: str) -> str:
    """Return shell text with a variable that is never set in place of each hole, so that the rest can be judged."""
    return text.replace(HOLE, "${unproven}")


def _may_run_written(parser: OptionParser, word: Word, part: Word) -> bool:
    """Return whether a launcher or an interpreter may run a file that this call writes. The value of a long option is no program."""
    option = "" if part.text.startswith("./") else _option_of(parser, word)
    if option == "o" or (len(option) > 1 and option != "--" and option not in _COMMAND_OPTIONS):
        return False
    return any(parser.walker.may_be_written(part.text, cwd, glob=part.glob) for cwd in parser.command.cwds or ())


def _may_write(parser: OptionParser, part: Word, *, every: bool) -> bool:
    """Return whether a path counts as written: it is in .git, or with `every` it is any protected path."""
    machine = parser.walker.machine
    for cwd in parser.command.cwds or ():
        path = machine.absolute(part.text, cwd)
        if (every or "/.git/" in path) and inside(path, machine.root) and protected(path, machine.root):
            return True
    return False


def _command(parser: OptionParser, word: Word, *, unknown: bool) -> None:
    """Judge a word that names a command, and the words behind it, as a command that the program may run.

    A known program runs only dangerous commands here. An unknown one may be a launcher, so it may run any command with arguments.
    """
    text = word.text.strip()
    words = parser.command.words
    if any(blank in text for blank in _BLANKS):
        first, *rest = text.split()
        row = _dangerous(first)
        if row is None:
            known = _described(first) if unknown else None
            may_run = known is not None and (_fits(known, rest) or any(_lists_option(known, text) for text in rest))
        else:
            may_run = (
                first[0] == "/"
                or _fits(row, rest)
                or any(mark in text for mark in _SHELL_MARKS)
                or _may_run_text(row, first, _option_of(parser, word))
            )
        if may_run:
            parser.walker.nested(with_unknown_variables(text), word, parser.frame)
        return
    row = _dangerous(text)
    at = _position(parser, word)
    has_arguments = at is not None and at < len(words) - 1
    if id(word) in parser.walker.names_judged:
        return
    if row is None:
        may_run = unknown and has_arguments and _described(text) is not None
    elif unknown:
        may_run = _option_runs(row, text, _option_of(parser, word)) or _unknown_program_may_run(row, words, at)
    else:  # to a known program a lone name is a file or one of its own terms
        may_run = has_arguments and text not in _SUBCOMMANDS
    if not may_run:
        return
    parser.guesses += 1
    if parser.guesses > MAX_GUESSES:
        parser.emit("word-unproven", word)
        return
    parser.walker.judge_possible_command(parser.frame.enter(), [word] if at is None else words[at:])


def _position(parser: OptionParser, word: Word) -> int | None:
    """Return the index of a word in its command, or None for a part of one."""
    if parser.positions is None:
        parser.positions = {}
        for index, given in enumerate(parser.command.words):
            parser.positions.setdefault(id(given), index)
            if given.text[:1] == "-":
                parser.option_words.setdefault((given.start, given.argument), given.text)
    return parser.positions.get(id(word))


def _option_of(parser: OptionParser, word: Word) -> str:
    """Return the name, without dashes, of the option whose value a word may be; `--` if the word follows that; or nothing."""
    at = _position(parser, word)
    if at is not None:
        before = parser.command.words[at - 1].text if at else ""
        return before.lstrip("-") or "--" if before[:1] == "-" else ""
    return parser.option_words.get((word.start, word.argument), "").partition("=")[0].lstrip("-")


def _may_run_text(row: Row, first: str, option: str) -> bool:
    """Return whether a text that begins with a name may be a command rather than a sentence (`note 'docker support'`)."""
    if first in _POWER or (first not in _SUBCOMMANDS and row.get("group") not in _TOPIC_GROUPS):
        return True
    return option not in _TEXT_OPTIONS and (option != "" or first in _ONLY_COMMANDS)


def _option_runs(row: Row, name: str, option: str) -> bool:
    """Return whether an option makes a lone name a command. A name that changes the user, such as `sudo`, needs no option."""
    if row.get("group") == "privilege" and name not in _SUBCOMMANDS:
        return True
    return option in _COMMAND_OPTIONS or option.startswith("on-") or (option in ("e", "x") and name in _POWER)


def _unknown_program_may_run(row: Row, words: list[Word], at: int | None) -> bool:
    """Return whether an unknown program may run a word: a path, or a name with arguments that only fit a command."""
    if at is None:
        return False  # `--shell=bash`, `--name=alpine`
    text, before, behind = words[at].text, words[at - 1].text, [word.text for word in words[at + 1 : at + 3]]
    if text[0] == "/" or before == "--":
        return True
    runs_operands = any(slot.kind == "argv" for slot in slots_of(row["operands"]))
    if not behind or (row.get("group") in _SESSION_GROUPS and not runs_operands):
        return False  # `tool completion bash`, `tool baseline init`, `tool --provider codex`
    if before[:1] == "-" and before[:2] != "--":
        return True  # `tool -v rm x`: a letter is usually a flag
    if text in _SUBCOMMANDS:
        is_verb = not any(word.text[:1] == "-" or "/" in word.text for word in words[1:at])
        is_help = behind in (["-h"], ["--help"])
        if before[:2] == "--" and text in _ONLY_COMMANDS:
            return not is_help
        is_path = text in _ONLY_COMMANDS and "/" in behind[0]
        return not is_help and (is_path or _lists_option(row, behind[0]) if is_verb else _fits(row, behind))
    return before[:2] != "--" or row.get("group") not in _TOPIC_GROUPS or _fits(row, behind)


def _fits(row: Row, behind: list[str]) -> bool:
    """Return whether words look like arguments of a command: an option or subcommand of it, a path, an address, a command."""
    first = behind[0] if behind else ""
    if first[:1] == "-":
        return _lists_option(row, first)
    is_plain = HOLE not in first and first not in row.get("sub", {}) and not any(c in first for c in "/.:~")
    return bool(behind) and (not is_plain or _dangerous(first) is not None)


def _lists_option(row: Row, text: str) -> bool:
    options = {**row["options"], **row.get("globals", {})}
    return text[:1] == "-" and (text.partition("=")[0] in options or (text[1:2] != "-" and text[:2] in options))


def _dangerous(name: str) -> Row | None:
    """Return the row of a command that profiles refuse by name or that runs code, if a word is its name or absolute path."""
    row = _described(name)
    return row if row is not None and ("group" in row or "interpreter" in row) else None


def _described(name: str) -> Row | None:
    """Return the row of a command if a word is its name or absolute path."""
    if "/" in name and name[0] != "/":
        return None
    base = name.rpartition("/")[2]
    return row_of(base) if base and base not in _ORDINARY else None


def _path_candidates(word: Word, machine: Machine, cwds: tuple[str, ...] | None) -> list[Word]:
    """Return the parts of a word that may be a path: the word itself, or the text behind `=`, `@` or `file://`."""
    text = word.text
    if not text or text == "-":
        return []
    scheme, found, rest = text.partition("://")
    if found:
        # To a program that knows no addresses an address is a path, and only `..` leads out of the project.
        plain = [word] if ".." in rest.split("/") else []
        if scheme.rpartition("=")[2].lower() == "file":
            return [word.part("/" + rest.partition("/")[2]), *plain]
        if scheme.replace("+", "").replace("-", "").replace(".", "").isalnum():
            return plain
    parts = [text]
    if "=" in text:
        parts.append(text.partition("=")[2].removeprefix("@"))
    if text[0] == "@":
        parts.append(text[1:])
    if text[0] == "-" and len(text) > 2 and text[1] != "-":
        parts.append(text[2:])
    made = []
    for part in parts:
        if part.startswith("~"):
            head, slash, tail = part.partition("/")
            made.append(word.part((machine.home if head == "~" else f"/home/{head[1:]}") + slash + tail))
        elif "/" in part or part == "..":
            if not part.startswith("-"):
                made.append(word.part(part))
        elif part and part is text and not text.startswith("-") and any(machine.exists(part, c) for c in cwds or ()):
            made.append(word)
        elif (name := part.rpartition(":")[2])[:1] == "." and is_credential_file(name):
            made.append(word.part(name))  # `git show HEAD:.env`: the file need not exist
    return made

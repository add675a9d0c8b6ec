"""What a word may be that no row describes: a path, an address, a command. Danger is looked for everywhere; nothing is proven here."""

from __future__ import annotations

from corral.guard.analysis.addresses import is_address
from corral.guard.path_zones import inside, is_credential_file, protected
from corral.guard.rules.loader import row as row_of
from corral.guard.shell.braces import HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.slots import Row, Slots
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Word

MAX_GUESSES = 8  # commands that one command may be hiding, against a call that names a hundred
_BLANKS = (" ", "\t", "\n")
# Options that are given a command, and options that are given a sentence.
_RUNNING = frozenset({"cmd", "command", "exec", "execute", "hook", "run", "shell-command", "then"})
_TELLING = frozenset({
    "b", "body", "comment", "desc", "description", "label", "m", "message", "msg", "name", "note", "prompt", "query", "reason",
    "subject", "summary", "t", "text", "title",
})  # fmt: skip
_SHELL_MARKS = (";", "|", "&", "$(", "`", ">", "<", HOLE)
# What only a shell has, so that no other program can start it, and names that are ordinary words and directories everywhere.
_ORDINARY = frozenset(
    {".", "source", "eval", "exec", "alias", "set", "export", "trap", "command", "builtin", "enable", "host"}
)

# Names that other programs have for their subcommands: one of these needs more than its name to count as a command.
_SUBCOMMANDS = frozenset({
    "act", "alpine", "at", "batch", "bridge", "cancel", "cf", "check", "code", "crash", "cron", "daemon", "defaults",
    "del", "dump", "eject", "halt", "init", "isolate", "kill", "login", "mount", "open", "passwd", "perf",
    "pkg", "port", "reboot", "restore", "rm", "rmdir", "script", "scrub", "security", "service", "shutdown",
    "skill", "snap", "supervise", "trash", "truncate", "trust", "umount", "unlink", "wall", "wipe",
})  # fmt: skip
# Those among them that begin no sentence, and are seldom the value of an option.
_POWER = frozenset({"halt", "reboot", "shutdown"})
_ONLY_COMMANDS = _POWER | {"passwd", "rm", "rmdir", "umount", "unlink"}
# They keep a session or a desktop; what else they are given is looked at word by word.
_ONLY_START = frozenset({"session", "clipboard"})
# Groups of programs that people write about, and that options choose; interpreters have no group.
_SUBJECTS = _ONLY_START | {"container", None}


def judge_undescribed_word(slots: Slots, word: Word) -> None:
    """Record what an undescribed word may mean to the program that gets it."""
    unknown = slots.row["id"] == "unknown"
    for part in candidates(word, slots.walker, slots.act.cwds):
        slots.emit("writes" if _kept_by_git(slots, part, every=unknown) else "reads", part)
    if (unknown or "://" in word.text) and is_address(word.text):
        slots.emit("network-maybe", word)
    if unknown and not word.proven and HOLE in word.text:
        slots.emit("word-unproven", word)
    if unknown or not slots.row["id"].startswith("git"):
        _command(slots, word, unknown=unknown)


def judge_script_arguments(slots: Slots, script: Word) -> None:
    """Judge the words behind a script that is a program with a row of its own: `php artisan …`, `python manage.py …`."""
    row = row_of(script.text.rpartition("/")[2]) if slots.rest and script.proven else None
    if row is not None and "group" not in row and "interpreter" not in row and "copies" not in row:
        slots.walker.command(slots.frame.enter(), [script, *slots.rest])


def is_project_path(text: str) -> bool:
    """Say whether what is to be installed lies in the project: only what it declares is then fetched."""
    return text == "." or text.startswith(("./", ".["))


def judge_launched_name(slots: Slots, name: Word) -> None:
    """Judge the name that a launcher is given: several words that it splits itself, or what it would fetch to run."""
    text = name.text
    if any(blank in text for blank in _BLANKS) and HOLE not in text:
        slots.walker.nested(text, name, slots.frame)
    if "://" in text and is_address(text):
        slots.emit("network", name)
        slots.emit("code-option", name)
    elif slots.row.get("downloads") and name.proven and (":" in text or text.rfind("@") > 0 or row_of(text) is None):
        machine = slots.walker.machine
        places = (f"{cwd}/node_modules/.bin" for cwd in slots.act.cwds or ())
        if "/" in text and text[0] != "@" and ":" not in text:
            return
        if ":" in text or not any(machine.exists(text, place) for place in places):
            slots.emit("network-maybe", name)


def _kept_by_git(slots: Slots, part: Word, *, every: bool) -> bool:
    """Say whether a path is one that nobody but git has to name, or for an unknown program any that is protected: it may be written."""
    machine = slots.walker.machine
    for cwd in slots.act.cwds or ():
        path = machine.absolute(part.text, cwd)
        if (every or "/.git/" in path) and inside(path, machine.root) and protected(path, machine.root):
            return True
    return False


def _command(slots: Slots, word: Word, *, unknown: bool) -> None:
    """Judge a word that names what the profile may refuse, and the words behind it, as the command that an unknown launcher may run."""
    text = word.text.strip()
    if any(blank in text for blank in _BLANKS):
        first, *rest = text.split()
        row = _dangerous(first)
        if row is not None and (
            first[0] == "/"
            or _fits(row, rest)
            or any(mark in text for mark in _SHELL_MARKS)
            or _may_run_text(row, first, _option_of(slots.act.words, word))
        ):
            slots.walker.nested(text.replace(HOLE, "${unproven}"), word, slots.frame)
        return
    row = _dangerous(text)
    if row is None or any(act.words[0] is word for act in slots.walker.acts[1:]):
        return
    words = slots.act.words
    at = next((i for i, w in enumerate(words) if w is word), None)
    is_told = unknown and _is_told(row, text, _option_of(words, word))
    if not (is_told or (_may_run(row, words, at) if unknown else _may_be_run(words, at))):
        return
    slots.guesses += 1
    if slots.guesses > MAX_GUESSES:
        slots.emit("word-unproven", word)
        return
    slots.walker.command(slots.frame.enter(), [word] if at is None else words[at:])


def _option_of(words: list[Word], word: Word) -> str:
    """Return the name of the option whose value a word is or may be, without its dashes, `--` behind that, or nothing."""
    for at, given in enumerate(words):
        if given is word:
            before = words[at - 1].text if at else ""
            return before.lstrip("-") or "--" if before[:1] == "-" else ""
        if given.start == word.start and given.argument == word.argument and given.text[:1] == "-":
            return given.text.partition("=")[0].lstrip("-")
    return ""


def _may_run_text(row: Row, first: str, option: str) -> bool:
    """Say whether a text of several words that begins with a name may be a command rather than a sentence (`note 'docker support'`)."""
    if first in _POWER or (first not in _SUBCOMMANDS and row.get("group") not in _SUBJECTS):
        return True
    return option not in _TELLING and (option != "" or first in _ONLY_COMMANDS)


def _is_told(row: Row, name: str, option: str) -> bool:
    """Say whether an option makes a lone name a command; who becomes another user needs no option for it."""
    if row.get("group") == "privilege" and name not in _SUBCOMMANDS:
        return True
    return option in _RUNNING or option.startswith("on-") or (option in ("e", "x") and name in _POWER)


def _may_be_run(words: list[Word], at: int | None) -> bool:
    """Say whether a known program may run a word: by a lone name it means a file or a subject of its own."""
    return at is not None and at < len(words) - 1 and words[at].text not in _SUBCOMMANDS


def _may_run(row: Row, words: list[Word], at: int | None) -> bool:
    """Say whether an unknown program may run a word: it is a path, or a name that is followed as only a command is."""
    if at is None:
        return False  # `--shell=bash`, `--name=alpine` only name it
    text, before, behind = words[at].text, words[at - 1].text, [word.text for word in words[at + 1 :]]
    if text[0] == "/" or before == "--":
        return True
    is_start = row.get("group") in _ONLY_START and not any(slot[1] == "argv" for slot in row["operands"])
    if not behind or is_start:
        return False  # `tool completion bash`, `tool baseline init`, `tool --provider codex`
    if before[:1] == "-" and before[:2] != "--":
        return True  # `tool -v rm x`: a letter is a flag more often than not
    if text in _SUBCOMMANDS:
        is_verb = not any(word.text[:1] == "-" or "/" in word.text for word in words[1:at])
        is_help = behind in (["-h"], ["--help"])
        if before[:2] == "--" and text in _ONLY_COMMANDS:
            return not is_help
        return not is_help and (_lists_option(row, behind[0]) if is_verb else _fits(row, behind))
    return before[:2] != "--" or row.get("group") not in _SUBJECTS or _fits(row, behind)


def _fits(row: Row, behind: list[str]) -> bool:
    """Say whether words look like the arguments of a command: an option or a subcommand of it, a path, an address, a further command."""
    if not behind:
        return False
    first = behind[0]
    if first[:1] == "-":
        return _lists_option(row, first)
    return (
        HOLE in first or first in row.get("sub", {}) or any(c in first for c in "/.:~") or _dangerous(first) is not None
    )


def _lists_option(row: Row, text: str) -> bool:
    options = {**row["options"], **row.get("globals", {})}
    return text[:1] == "-" and (text.partition("=")[0] in options or (text[1:2] != "-" and text[:2] in options))


def _dangerous(name: str) -> Row | None:
    """Return the row of a word that is the name, or the absolute path, of a command that is refused by name or runs code."""
    if "/" in name and name[0] != "/":
        return None
    base = name.rpartition("/")[2]
    row = row_of(base) if base and base not in _ORDINARY else None
    return row if row is not None and ("group" in row or "interpreter" in row) else None


def candidates(word: Word, walker: Walker, cwds: tuple[str, ...] | None) -> list[Word]:
    """Return the parts of a word that could be a path: the word itself, or what stands behind `=`, `@`, `file://`, `,`."""
    text = word.text
    if not text or text == "-":
        return []
    scheme, found, rest = text.partition("://")
    if found:
        if scheme.rpartition("=")[2].lower() == "file":
            return [word.part("/" + rest.partition("/")[2])]
        if scheme.replace("+", "").replace("-", "").replace(".", "").isalnum():
            return []
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
            made.append(word.part((walker.machine.home if head == "~" else f"/home/{head[1:]}") + slash + tail))
        elif "/" in part or part == "..":
            if not part.startswith("-"):
                made.append(word.part(part))
        elif (
            part
            and part is text
            and not text.startswith("-")
            and any(walker.machine.exists(part, c) for c in cwds or ())
        ):
            made.append(word)
        elif (name := part.rpartition(":")[2])[:1] == "." and is_credential_file(name):
            made.append(word.part(name))  # `git show HEAD:.env`, whether the file is there or not
    return made

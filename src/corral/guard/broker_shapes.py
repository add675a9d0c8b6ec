"""Matches the words of a command against the shapes of broker.toml: the commands that the broker may run outside.

Pure. The guard asks which shape a command has; the broker asks the same about the words that it received, and runs `Match.argv`, which
this module builds from checked parts. So the program never parses words in another way than they were judged.
"""

from __future__ import annotations

from posixpath import normpath

from corral._lib.lazy_regex import pattern
from corral._lib.records import Record, frozen
from corral.guard.rules.loader import broker_programs
from corral.model.grant import BROKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.model.grant import Grant

    Shape = dict[str, Any]
    Option = tuple[str, str]  # the option's last spelling, and its value; of a flag ""

SLUG = "{remote.slug}"
_HASH_DIGITS = 32
_ANY_SLUG = "*/*"  # where the remote is not known
_HOST = pattern(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*")
_PLAIN_WORD = pattern(r"[A-Za-z0-9-]+")
_PLAIN_VALUE = pattern(r"[A-Za-z0-9=/._-]+")  # the shell that git starts changes nothing in it
_REMOTE_CONTEXT = ("://", "git@", "github.com/")  # docker would fetch these
_PARTS = pattern(r"[,/.]")


@frozen
class Match(Record):
    """A command that has the shape `target`, such as gh/read."""

    target: str
    asks: str  # family or once
    argv: tuple[str, ...]  # for the program, without its name; a file is still the path in the command
    files: tuple[
        tuple[int, str], ...
    ] = ()  # positions in `argv` that name files, and what stands there before the path
    takes_stdin: bool = False
    types: str = ""  # the word that the user types to say yes
    packs: str = ""  # the directory that becomes an archive on standard input


@frozen
class Mismatch(Record):
    """The reason why the broker does not run a command, and what can be typed instead."""

    reason: str
    instead: str = ""


class _NoMatchError(Exception):
    """The command does not have the shape."""


def is_brokered(program: str) -> bool:
    """Say whether the broker runs any command of this program."""
    return program in broker_programs()


def is_ignored_ssh_option(value: str) -> bool:
    """Say whether agents give ssh an option by habit, such as `-o StrictHostKeyChecking=no`. The user's own settings hold instead."""
    shapes = broker_programs()["ssh"]["shapes"]
    choices = next(shape["options"]["-o"][2] for shape in shapes if "-o" in shape["options"])
    return any(_is_like(value, each) for each in choices)


def is_plain_ssh_command(text: str) -> bool:
    """Say whether a GIT_SSH_COMMAND is `ssh` from PATH, with no options but ignored ones."""
    program, *words = text.split(" ")
    while words[:1] == ["-o"]:
        if len(words) == 1 or not _PLAIN_VALUE.fullmatch(words[1]) or not is_ignored_ssh_option(words[1]):
            return False
        del words[:2]
    return program == "ssh" and not words


def shape_of(program: str, words: tuple[str, ...], slug: str = "") -> str | None:
    """Return the target of the grant that lets the broker run a command, such as gh/read. `words` follow the program's name."""
    found = match_shape(program, words, slug)
    return found.target if isinstance(found, Match) else None


def sentences_about(grants: Iterable[Grant]) -> list[str]:
    """Return what a question says about commands that run outside: what each does, and that its files may still change."""
    found: list[str] = []
    for target in [grant.target for grant in grants if grant.kind == BROKER]:
        program, _, name = target.partition(" ")[0].partition("/")
        for shape in (broker_programs().get(program) or {"shapes": ()})["shapes"]:
            if shape["id"] in (name, "HOST" if program == "ssh" else name):
                found += [shape["says"]] if shape["says"] else []
                if any(kind == "file" for _, kind, _, _ in shape["options"].values()):
                    found.append("A file that it names is handed over as it is when the command runs.")
    return list(dict.fromkeys(found))


def granted_target(match: Match, words: tuple[str, ...]) -> str:
    """Return the target of the grant for a command. A yes that is only for once is for these very words: it has their hash."""
    if match.asks == "family":
        return match.target
    from corral._lib.sha256 import sha256_hex  # noqa: PLC0415  few commands need it

    told = "\0".join(words).encode("utf-8", "surrogatepass")
    return f"{match.target} {sha256_hex(told)[:_HASH_DIGITS]}"


def match_shape(program: str, words: tuple[str, ...], slug: str = "") -> Match | Mismatch:
    """Match a command against all shapes of its program. `slug` is owner/name of the project's remote, or "" for any."""
    row = broker_programs().get(program)
    if row is None:
        return Mismatch(f"The broker does not run {program}.")
    if any("\0" in word for word in words):
        return Mismatch("An argument contains a NUL byte.")
    for refused, why, instead in row["never"]:
        # Options that may stand before the first word do not hide it.
        if any(_begins(words[at:], refused) for at in _first_word_positions(words, row["leading"])):
            return Mismatch(why, instead)
    why, depth = "", -1
    for shape in row["shapes"]:
        try:
            return _matched(program, shape, row["leading"], words, slug)
        except _NoMatchError as error:
            reason, reached = error.args
            if reached > depth:
                why, depth = reason, reached
    return Mismatch(why)


def _first_word_positions(words: tuple[str, ...], leading: frozenset[str]) -> list[int]:
    """Return the position of the first word that is no option: behind leading options, each with or without a value."""
    at = 0
    while at < len(words) and words[at].partition("=")[0] in leading:
        at += 1 if "=" in words[at] else 2
    return [at]


def _begins(words: tuple[str, ...], patterns: tuple[tuple[str, ...], ...]) -> bool:
    return len(words) >= len(patterns) and all(map(_is_word, words, patterns))


def _is_word(word: str, choices: tuple[str, ...]) -> bool:
    """Say whether a word is one of the choices, in which * stands for letters, digits and dashes."""
    return any(
        word == each or ("*" in each and _PLAIN_WORD.fullmatch(word) and _is_like(word, each)) for each in choices
    )


def _is_like(text: str, wanted: str) -> bool:
    """Say whether a text fits a pattern in which each * stands for any text."""
    head, *rest = wanted.split("*")
    if not rest:
        return text == wanted
    *middle, tail = rest
    if not text.startswith(head) or not text.endswith(tail) or len(text) < len(head) + len(tail):
        return False
    at, end = len(head), len(text) - len(tail)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _matched(program: str, shape: Shape, leading: frozenset[str], words: tuple[str, ...], slug: str) -> Match:
    first, given, operands = _parsed(shape, leading, words)
    # A shape that knows the first words explains a refusal better than one that does not.
    depth = len(first) + 1
    options = [_checked(shape, name, value, slug, depth) for name, value in given]
    operands = [word.replace("{owner}/{repo}", slug) if slug else word for word in operands]
    _check_operands(shape, operands, slug, depth)
    packs = operands[0] if "context" in shape["operands"] and operands != ["-"] else ""
    if packs:
        operands = ["-"]
        options = [(name, _in_context(value, packs, depth) if name == "--file" else value) for name, value in options]
    for names in shape["needs"]:
        if not any(name in names for name, _ in options):
            raise _NoMatchError(f"It needs {' or '.join(names)}.", depth)
    added = _added(shape, options, operands, slug)
    argv, files = [*first, *added], []
    kinds = {canonical: kind for canonical, kind, _, _ in shape["options"].values()}
    for name, value in options:
        if any(_is_like(f"{name} {value}", each) for each in shape["drops"]):
            continue
        if kinds[name] == "flag":
            argv.append(name)
        elif name.startswith("--"):
            # In one word: a value may begin with a dash.
            argv.append(f"{name}={value}")
        else:
            argv += [name, value]
        if kinds[name] == "file":
            files.append((len(argv) - 1, f"{name}=" if name.startswith("--") else ""))
    target = f"{program}/{operands[0] if shape['id'] == 'HOST' else shape['id']}"
    return Match(target, shape["asks"], (*argv, *operands), tuple(files), shape["stdin"], shape["types"], packs)


def _in_context(path: str, directory: str, depth: int) -> str:
    """Return the path of a Dockerfile relative to the directory that is packed."""
    above, found = normpath(directory), normpath(path)
    if above != ".":
        found = found[len(above) + 1 :] if found.startswith(f"{above}/") else ".."
    if found.partition("/")[0] in ("", ".."):
        raise _NoMatchError(f"{path!r} must be in {directory!r}.", depth)
    return found


def _parsed(
    shape: Shape, leading: frozenset[str], words: tuple[str, ...]
) -> tuple[tuple[str, ...], list[Option], list[str]]:
    """Return the first words, the options by their last spelling, and the operands."""
    known = shape["options"]
    options: list[Option] = []
    plain: list[str] = []
    first: tuple[str, ...] = ()
    has_first = not any(shape["words"])
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if len(word) < 2 or word[0] != "-":
            plain.append(word)
            if not has_first:
                for wanted in shape["words"]:
                    if len(wanted) == len(plain) and _begins(tuple(plain), wanted):
                        first, plain, has_first = tuple(plain), [], True
                        break
            elif shape["stops"]:
                # The other words are for the program that the operand names.
                plain += words[at:]
                break
            continue
        depth = len(first) + bool(first)
        name, equals, value = word.partition("=")
        if word[1] != "-" and len(word) > 2:
            raise _NoMatchError(f"Options must be separate words: {word!r}.", depth)
        if name not in known or (not has_first and name not in leading):
            raise _NoMatchError(f"{name!r} is not one of the options that the broker passes on.", depth)
        canonical, kind, _, repeats = known[name]
        if kind == "flag":
            if equals:
                raise _NoMatchError(f"{name!r} takes no value.", depth)
        elif not equals:
            if at == len(words):
                raise _NoMatchError(f"{name!r} needs a value.", depth)
            value = words[at]
            at += 1
            if not canonical.startswith("--") and value.startswith("-"):
                raise _NoMatchError(f"The value of {name!r} begins with a dash.", depth)
        if not repeats and any(canonical == each for each, _ in options):
            raise _NoMatchError(f"{name!r} is given twice.", depth)
        options.append((canonical, value))
    if not has_first:
        shown = " ".join(plain[:2])
        raise _NoMatchError(f"{shown!r} is not one of the commands that the broker runs.", 0)
    return first, options, plain


def _checked(shape: Shape, name: str, value: str, slug: str, depth: int) -> Option:
    _, kind, choices, _ = shape["options"][name]
    if kind == "choice" and not any(_is_like(value, _with_slug(each, slug)) for each in choices):
        wanted = " or ".join(_with_slug(each, slug or "the project's repository") for each in choices)
        raise _NoMatchError(f"{name} must be {wanted}, not {value!r}.", depth)
    if kind == "file" and (value in ("", "-") or "://" in value):
        raise _NoMatchError(f"{name} needs the name of a file, not {value!r}.", depth)
    _check_value(shape, name, value, depth)
    return name, value


def _with_slug(text: str, slug: str) -> str:
    return text.replace(SLUG, slug or _ANY_SLUG)


def _check_value(shape: Shape, name: str, value: str, depth: int) -> None:
    for spelled, refused in shape["refuse"]:
        if spelled in ("*", name) and pattern(refused).search(value) is not None:
            raise _NoMatchError(f"{value!r} is not a value that the broker passes on.", depth)


def _check_operands(shape: Shape, operands: list[str], slug: str, depth: int) -> None:
    left = list(operands)
    for wanted in shape["operands"]:
        repeats, is_optional = wanted == "text*", wanted.endswith("?")
        plain = wanted.removesuffix("?") if is_optional else wanted
        plain = "text" if repeats else plain
        if not left and not repeats and not is_optional:
            raise _NoMatchError("An operand is missing.", depth)
        while left:
            word = left.pop(0)
            is_option = word.startswith("-") and word != plain and not shape["stops"]
            if not _is_operand(word, plain, slug) or (is_option and (plain, word) != ("context", "-")):
                raise _NoMatchError(f"{word!r} is not what the broker passes on here.", depth)
            _check_value(shape, "operands", word, depth)
            for part in [word, *_PARTS.split(word)] if shape["refused"] else []:
                if any(_is_like(part.lower(), refused) for refused in shape["refused"]):
                    raise _NoMatchError(f"{word!r} is never passed on: it names credentials, or too much.", depth)
            if not repeats:
                break
    if left:
        raise _NoMatchError(f"{left[0]!r} is one operand too many.", depth)


def _is_operand(word: str, wanted: str, slug: str) -> bool:
    if wanted in ("text", "word"):
        return wanted == "text" or not word.startswith("-")
    if wanted == "context":
        return word != "" and not any(sign in word for sign in _REMOTE_CONTEXT)
    if wanted == "host":
        return _HOST.fullmatch(word) is not None
    return word != "" and _is_like(word, _with_slug(wanted, slug))


def _added(shape: Shape, options: list[Option], operands: list[str], slug: str) -> list[str]:
    """Return the words that the shape adds, without those that the call has itself."""
    given = {name for name, _ in options}
    added: list[str] = []
    for text in shape["adds"]:
        word = text.replace(SLUG, slug) if slug else text
        option = shape["options"].get(word.partition("=")[0])
        has_it = bool(operands) if not word.startswith("-") else option is not None and option[0] in given
        added += [] if has_it else [word]
    return added

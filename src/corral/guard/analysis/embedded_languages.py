"""Readers of the small languages that hide in arguments. Each returns what its text runs, reads and writes, and refuses what it cannot read."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.expansion import NUMBER_HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.shell.expansion import Word

    Reader = Any

_JQ_LOADS = pattern(r"\b(?:import|include|modulemeta)\b|(?<![.\w])(?:load\w*|eval)\s*\(|\binput_line_number\b")
# What reaches out of languages that otherwise only compute.
_REACHES = {
    "m4": pattern(r"syscmd|include|sinclude|undivert|mkstemp|maketemp"),
    "sbt": pattern(r"(?:^|;)\s*(?:eval|set|apply|alias|console\w*|shell|!)(?:\s|$)|^!|;\s*!"),
    "goflags": pattern(r"-(?:extld|extldflags|toolexec|linkmode)\b"),
    "duckdb": pattern(
        r"(?im)^\s*\.(?!tables|schema|mode|header|databases|indexes|timer|help|print|quit|exit|show)\w"
        r"|\b(?:copy|attach|install|load|export|import|read_\w+|glob|parquet_scan|getenv)\b|://|from\s+'",
    ),
}
# The parts of a filter graph of ffmpeg, or of the address of an input, that open files or load a library.
_FILTER_LOADS = pattern(r"\b(?:ladspa|frei0r\w*|lv2|libplacebo|openvino|dnn_\w+)=")
_FILTER_PATHS = pattern(r"(?:^|[=:,|'\s])((?:\.\.?|~)?/[^:,;|'\[\]\s]*|\.\./?[^:,;|'\[\]\s]*)")
_MAGICK_RUNS = frozenset({"msl", "ephemeral", "pipe", "delegate", "url", "https", "http", "ftp"})
# The dot commands of sqlite3 that only show something; any other may run, open or write.
_SQLITE_SHOWS = pattern(
    r"\.(?:tables|schema|fullschema|dump|mode|headers?|databases|index(?:es)?|indices|stats|timer|echo|bail|nullvalue"
    r"|separator|help|version|print|quit|exit|eqp|explain|changes|width|show|dbinfo|lint)\b"
)
_SQLITE_REACHES = pattern(
    r"(?i)\b(?:edit|load_extension|readfile|writefile|fts3_tokenizer|zipfile|fsdir)\b\W*\(|\battach\b|\bvacuum\b[^;]*\binto\b"
)


class SedSyntaxError(ValueError):
    """The text does not follow its language."""


def judge_text(language: str, reader: Reader, effect: str, word: Word) -> None:
    """Judge a word in one of the languages, by calling back the reader of its command."""
    if "\0" in word.text:
        reader.emit("word-unproven", word)
        return
    if language == "jq":
        if _JQ_LOADS.search(word.text):
            reader.emit("code-loaded", word)
        return
    if language in _REACHES:
        if _REACHES[language].search(word.text):
            reader.emit("code-option", word)
        return
    if language == "sqlite":
        text = word.text
        if (text.startswith(".") and not _SQLITE_SHOWS.match(text)) or _SQLITE_REACHES.search(text):
            reader.emit("code-option", word)
        return
    if language in ("filtergraph", "ffinput"):
        if language == "ffinput":
            reader.fill(("reads", "hostpath", "", "", (), ()), word)
        if _FILTER_LOADS.search(word.text):
            reader.emit("code-loaded", word)
        for found in _FILTER_PATHS.finditer(word.text):
            reader.path("reads", word.part(found[1]))
        return
    if language == "magick":
        coder, _, path = word.text.rpartition(":")
        if word.text.startswith("|") or path.startswith("|") or coder.lower() in _MAGICK_RUNS:
            reader.emit("code-option", word)
        reader.any("reads", word.part(path.removeprefix("@") if coder.isalnum() else word.text))
        return
    if language == "tex":
        if word.text.startswith(("\\", "&", "*")):
            reader.code(effect, word)
        else:
            reader.script("runs", word)
        return
    try:
        for verb, text in parse_sed(word.text.replace(NUMBER_HOLE, "1")):
            if verb == "runs":
                reader.emit("code-option", word.part(text))
                if text:
                    reader.walker.nested(text, word, reader.frame)
            else:
                reader.path(verb, word.part(text))
    except SedSyntaxError:
        reader.emit("unparsed", word, f": not a sed script that {reader.row['id']} is known to read")


def parse_sed(text: str) -> list[tuple[str, str]]:
    """Return what a sed script runs, reads and writes."""
    found: list[tuple[str, str]] = []
    at = 0
    size = len(text)
    while at < size:
        if text[at] in " \t\n;":
            at += 1
            continue
        if text[at] == "#":
            at = _line(text, at)
            continue
        at = _addresses(text, at)
        while at < size and text[at] in " \t!":
            at += 1
        if at >= size:
            break
        command = text[at]
        at += 1
        if command in "{}=dDgGhHnNpPxzF":
            continue
        if command in "qQlL":
            while at < size and (text[at].isdigit() or text[at] == " "):
                at += 1
        elif command in ":btTv":
            while at < size and text[at] in " \t":
                at += 1
            while at < size and text[at] not in "\n;} \t":  # a blank ends a label, and a command may follow
                at += 1
        elif command in "aic":
            while True:
                end = _line(text, at)
                continued = text[at:end].endswith("\\")
                at = end + 1
                if not continued or at >= size:
                    break
        elif command in "rRwW":
            end = _line(text, at)
            name = text[at:end].strip()
            if name not in ("/dev/stdout", "/dev/stderr", "/dev/stdin"):
                found.append(("reads" if command in "rR" else "writes", name))
            at = end
        elif command == "e":
            end = _line(text, at)
            found.append(("runs", text[at:end].strip()))
            at = end
        elif command in "sy":
            at = _substitute(text, at, command, found)
        else:
            raise SedSyntaxError(command)
    return found


def _line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _delimited(text: str, at: int, mark: str) -> int:
    """Return the offset behind the next unescaped mark; a mark inside brackets counts too, as GNU sed does for none but regexes."""
    bracket = False
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
            continue
        if char == "[" and not bracket:
            bracket = True
            at += 2 if text[at + 1 : at + 2] == "]" else 3 if text[at + 1 : at + 3] == "^]" else 1
            continue
        if char == "]":
            bracket = False
        if char == mark and not bracket:
            return at + 1
        at += 1
    raise SedSyntaxError(mark)


def _plain(text: str, at: int, mark: str) -> int:
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == mark:
            return at + 1
        else:
            at += 1
    raise SedSyntaxError(mark)


def _addresses(text: str, at: int) -> int:
    while at < len(text):
        char = text[at]
        if char.isdigit() or char in "$,+~ \t":
            at += 1
        elif char == "/":
            at = _flags(text, _either(text, at + 1, "/"))
        elif char == "\\" and at + 1 < len(text):
            at = _flags(text, _either(text, at + 2, text[at + 1]))
        else:
            break
    return at


def _either(text: str, at: int, mark: str) -> int:
    try:
        return _delimited(text, at, mark)
    except SedSyntaxError:
        return _plain(text, at, mark)


def _flags(text: str, at: int) -> int:
    while at < len(text) and text[at] in "IM":
        at += 1
    return at


def _substitute(text: str, at: int, command: str, found: list[tuple[str, str]]) -> int:
    mark = text[at : at + 1]
    if not mark or mark in "\n\\":
        raise SedSyntaxError(command)
    middle = _either(text, at + 1, mark) if command == "s" else _plain(text, at + 1, mark)
    at = _plain(text, middle, mark)
    if command == "y":
        return at
    while at < len(text) and text[at] not in "\n;}# \t":
        flag = text[at]
        at += 1
        if flag == "e":
            found.append(("runs", ""))
        elif flag == "w":
            end = _line(text, at)
            name = text[at:end].strip()
            if name not in ("/dev/stdout", "/dev/stderr"):
                found.append(("writes", name))
            return end
        elif not (flag.isdigit() or flag in "gpiImM"):
            raise SedSyntaxError(flag)
    return at

"""Interprets texts in small languages that programs take as arguments: sed, jq, SQL, filter graphs. Finds the danger in them."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.expansion import NUMBER_HOLE

# Patterns that find text with more than computation in its language.
_REACHES = {
    "jq": pattern(r"\b(?:import|include|modulemeta)\b|(?<![.\w])(?:load\w*|eval)\s*\(|\binput_line_number\b"),
    "m4": pattern(r"syscmd|include|sinclude|undivert|mkstemp|maketemp"),
    "sbt": pattern(r"(?:^|;)\s*(?:eval|set|apply|alias|console\w*|shell|!)(?:\s|$)|^!|;\s*!"),
    "goflags": pattern(r"-(?:extld|extldflags|toolexec|linkmode)\b"),
    # A dot command that does more than show something, or SQL that opens a file. Comments may stand between a name and its bracket.
    "duckdb": pattern(
        r"(?im)^[^\S\n]*+\.(?!tables|schema|mode|header|databases|indexes|timer|help|print|quit|exit|show)\w"
        r"|\b(?:copy|attach|install|load|export|import|glob|getenv|set|pragma|use|secret|query(?:_table)?|json_execute\w*|sniff_csv"
        r"|read_\w+|parquet_\w+|\w+_scan)\b|://|\b(?:from|join|into)\b[^;]{0,80}?['\"]|['\"][^'\"\n]{0,200}[/~\\]",
    ),
    "sqlite": pattern(
        r"(?m)^\s*\.(?!(?:tables|schema|fullschema|dump|mode|headers?|databases|index(?:es)?|indices|stats|timer|echo|bail|nullvalue"
        r"|separator|help|version|print|quit|exit|eqp|explain|changes|width|show|dbinfo|lint)\b)"
        r"|(?i:\b(?:edit|load_extension|readfile|writefile|fts3_tokenizer|zipfile|fsdir|sha3_query|attach|writable_schema|\w+_store_directory)\b"
        r"|\bvacuum\b(?!\s*+(?:;|\Z)))"
    ),
}
# Parts of an ffmpeg filter graph or input address that load a library or open a file.
_FILTER_LOADS = pattern(r"\b(?:ladspa|frei0r\w*|lv2|libplacebo|openvino|dnn_\w+)=")
_FILTER_PATHS = pattern(r"(?:^|[=:,|'\s])((?:\.\.?|~)?/[^:,;|'\[\]\s]*|\.\./?[^:,;|'\[\]\s]*)")
_MAGICK_RUNS = frozenset({"msl", "ephemeral", "pipe", "delegate", "url", "https", "http", "ftp"})
_STANDARD_OUTPUTS = ("/dev/stdout", "/dev/stderr")


class SedSyntaxError(ValueError):
    """The text is not a sed script that this parser understands."""


def interpret(language: str, effect: str, text: str) -> list[tuple[str, str, str]]:
    """Return the effects of a text as (kind of slot, effect, text); without a kind the effect is final. Raises SedSyntaxError."""
    if language in _REACHES:
        key = "code-loaded" if language == "jq" else "code-option"
        reaches = _REACHES[language].search(text)
        return [("", key, text)] if reaches else []
    if language == "tex":
        return [("code", effect, text) if text.startswith(("\\", "&", "*")) else ("script", "runs", text)]
    found: list[tuple[str, str, str]] = []
    if language == "magick":
        coder, _, path = text.rpartition(":")
        if text.startswith("|") or path.startswith("|") or coder.lower() in _MAGICK_RUNS:
            found.append(("", "code-option", text))
        found.append(("any", "reads", path.removeprefix("@") if coder.isalnum() else text))
    elif language in ("filtergraph", "ffinput"):
        if language == "ffinput":
            found.append(("hostpath", "reads", text))
        if _FILTER_LOADS.search(text):
            found.append(("", "code-loaded", text))
        found += [("path", "reads", path[1]) for path in _FILTER_PATHS.finditer(text)]
    else:
        for verb, name in parse_sed(text.replace(NUMBER_HOLE, "1")):
            if verb == "runs":
                found += [("", "code-option", name)] + ([("nested", "", name)] if name else [])
            else:
                found.append(("path", verb, name))
    return found


def parse_sed(text: str) -> list[tuple[str, str]]:
    """Return the commands that a sed script runs (`runs`) and the files that it reads and writes, in every reading of `[\\]`."""
    if "[" not in text or "\\" not in text:
        return _parse_sed(text, escapes=True)
    try:
        found = _parse_sed(text, escapes=False)  # as GNU sed reads it: a backslash in brackets is a character
    except SedSyntaxError:
        return _parse_sed(text, escapes=True)
    try:
        return list(dict.fromkeys([*found, *_parse_sed(text, escapes=True)]))
    except SedSyntaxError:
        return found


def _parse_sed(text: str, *, escapes: bool) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    size = len(text)
    while at < size:
        if text[at] in " \t\n;":
            at += 1
            continue
        if text[at] == "#":
            at = _line_end(text, at)
            continue
        at = _skip(text, _skip_addresses(text, at, escapes=escapes), " \t!")
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
            at = _skip(text, at, " \t")
            while at < size and text[at] not in "\n;} \t":  # a blank ends a label, and a command may follow
                at += 1
        elif command in "aic":
            is_continued = True
            while is_continued and at < size:
                end = _line_end(text, at)
                line = text[at:end]
                is_continued = (
                    len(line) - len(line.rstrip("\\"))
                ) % 2 == 1  # two backslashes stand for one in the text
                at = end + 1
        elif command in "rRwWe":
            end = _line_end(text, at)
            name = text[at:end].strip()
            if command == "e":
                found.append(("runs", name))
            elif name not in (*_STANDARD_OUTPUTS, "/dev/stdin"):
                found.append(("reads" if command in "rR" else "writes", name))
            at = end
        elif command in "sy":
            at = _skip_substitution(text, at, command, found, escapes=escapes)
        else:
            raise SedSyntaxError(command)
    return found


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _skip(text: str, at: int, chars: str) -> int:
    while at < len(text) and text[at] in chars:
        at += 1
    return at


def _skip_addresses(text: str, at: int, *, escapes: bool) -> int:
    while at < len(text):
        char = text[at]
        if char.isdigit() or char in "$,+~ \t":
            at += 1
        elif char == "/":
            at = _skip(text, _skip_to(text, at + 1, "/", is_regex=True, escapes=escapes), "IM")
        elif char == "\\" and at + 1 < len(text):
            at = _skip(text, _skip_to(text, at + 2, text[at + 1], is_regex=True, escapes=escapes), "IM")
        else:
            break
    return at


def _skip_to(text: str, start: int, mark: str, *, is_regex: bool, escapes: bool = True) -> int:
    """Return the offset behind the next unescaped mark. In a regex a mark inside brackets counts only if no other follows."""
    at = start
    bracket = False
    while at < len(text):
        char = text[at]
        if char == "\\" and (escapes or not bracket):
            at += 2
        elif char == "[" and is_regex and not bracket:
            bracket = True
            at += 2 if text[at + 1 : at + 2] == "]" else 3 if text[at + 1 : at + 3] == "^]" else 1
        else:
            at += 1
            bracket = bracket and char != "]"
            if char == mark and not bracket:
                return at
    if is_regex:
        return _skip_to(text, start, mark, is_regex=False)
    raise SedSyntaxError(mark)


def _skip_substitution(text: str, at: int, command: str, found: list[tuple[str, str]], *, escapes: bool) -> int:
    """Return the offset behind the arguments of `s` or `y`, and add the effects of the flags to `found`."""
    mark = text[at : at + 1]
    if not mark or mark in "\n\\":
        raise SedSyntaxError(command)
    middle = _skip_to(text, at + 1, mark, is_regex=command == "s", escapes=escapes)
    at = _skip_to(text, middle, mark, is_regex=False)
    if command == "y":
        return at
    while at < len(text) and text[at] not in "\n;}# \t":
        flag = text[at]
        at += 1
        if flag == "e":
            found.append(("runs", ""))
        elif flag == "w":
            end = _line_end(text, at)
            name = text[at:end].strip()
            if name not in _STANDARD_OUTPUTS:
                found.append(("writes", name))
            return end
        elif not (flag.isdigit() or flag in "gpiImM"):
            raise SedSyntaxError(flag)
    return at

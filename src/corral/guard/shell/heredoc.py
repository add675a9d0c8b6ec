"""Cut here-documents out of shell text before it is parsed. Total, and length-preserving: offsets stay what they were.

tree-sitter-bash reads here-documents wrongly in many ways (a `-` before one is swallowed, backticks in the body are missed,
a second one on a line or `cat <<A; cmd` is an error), so each `<<WORD` becomes `<0000` and its body becomes blanks.
The walk must then meet a redirect at exactly that offset: text that only looks like a here-document is refused there.
This can go when the grammar reads what bash reads.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral._lib.records import Record, frozen

_STOPS = pattern(rb"[\\'\"`$(){}#<\n]")
_WORD_END = pattern(rb"[ \t\n;&|<>()]")
MAX_PENDING = 16  # here-documents on one line, against time that grows with their square
_BLANK = bytes(10 if code == 10 else 32 for code in range(256))
_BREAKS = b" \t\n;&|("


@frozen
class Heredoc(Record):
    """One here-document: its text, and whether its delimiter was quoted (then nothing in it is expanded)."""

    body: bytes
    quoted: bool
    start: int
    end: int


class HeredocError(ValueError):
    """The text holds a here-document that cannot be read with certainty."""


def extract(source: bytes) -> tuple[bytes, dict[int, Heredoc]]:
    """Return the text without here-documents, and these by the offset of their operator."""
    out = bytearray(source)
    found: dict[int, Heredoc] = {}
    pending: list[tuple[int, bytes, bool, bool]] = []
    stack = ["cmd"]
    size = len(source)
    at = 0
    while True:
        match = _STOPS.search(source, at)
        if match is None:
            break
        at = match.start()
        char = source[at : at + 1]
        top = stack[-1]
        if char == b"\\":
            at += 2
        elif char == b"\n":
            at += 1
            if pending and top in ("cmd", "paren", "tick"):
                at = _bodies(source, out, at, pending, found, to_the_end=len(stack) == 1)
                pending = []
        elif char == b'"':
            if top == "dq":
                stack.pop()
            else:
                stack.append("dq")
            at += 1
        elif char == b"'" and top not in ("dq", "brace-dq", "arith"):
            ansi = source[at - 1 : at] == b"$" and at > 0
            at = _quote_end(source, at, ansi)
        elif char == b"`":
            if "tick" in stack and top in ("tick", "paren"):
                while stack.pop() != "tick":
                    pass
            else:
                stack.append("tick")
            at += 1
        elif char == b"$":
            if source.startswith(b"$((", at):
                stack += ["arith", "arith"]
                at += 3
            elif source.startswith(b"$(", at):
                stack.append("paren")
                at += 2
            elif source.startswith(b"${", at):
                stack.append("brace-dq" if top == "dq" else "brace")
                at += 2
            else:
                at += 1
        elif char == b"(" and top != "dq":
            if top in ("cmd", "paren", "tick") and source.startswith(b"((", at):
                stack += ["arith", "arith"]
                at += 2
            else:
                stack.append("arith" if top == "arith" else "paren")
                at += 1
        elif (char == b")" and top in ("paren", "arith")) or (char == b"}" and top in ("brace", "brace-dq")):
            stack.pop()
            at += 1
        elif char == b"#" and top in ("cmd", "paren", "tick") and (at == 0 or source[at - 1] in _BREAKS):
            end = source.find(b"\n", at)
            at = size if end < 0 else end
        elif char == b"<" and top in ("cmd", "paren", "tick") and source.startswith(b"<<", at):
            if source.startswith(b"<<<", at):
                at += 3
                continue
            at = _operator(source, out, at, pending)
        else:
            at += 1
    if pending:
        raise HeredocError("a here-document has no body")
    return bytes(out), found


def _quote_end(source: bytes, at: int, ansi: bool) -> int:
    at += 1
    while True:
        end = source.find(b"'", at)
        if end < 0:
            return len(source)
        if not ansi:
            return end + 1
        slashes = 0
        while source[end - 1 - slashes : end - slashes] == b"\\" and end - 1 - slashes >= at:
            slashes += 1
        if slashes % 2 == 0:
            return end + 1
        at = end + 1


def _operator(source: bytes, out: bytearray, at: int, pending: list[tuple[int, bytes, bool, bool]]) -> int:
    """Read `<<WORD` at `at`, blank it to a plain redirect, and return the offset behind it."""
    start = at
    at += 2
    tabs = source[at : at + 1] == b"-"
    at += tabs
    while source[at : at + 1] in (b" ", b"\t"):
        at += 1
    delimiter = bytearray()
    quoted = False
    begin = at
    while at < len(source):
        char = source[at : at + 1]
        if char in (b"'", b'"'):
            end = source.find(char, at + 1)
            if end < 0:
                raise HeredocError("the delimiter of a here-document has an open quote")
            delimiter += source[at + 1 : end]
            quoted = True
            at = end + 1
        elif char == b"\\":
            delimiter += source[at + 1 : at + 2]
            quoted = True
            at += 2
        elif char in (b"$", b"`"):
            raise HeredocError("the delimiter of a here-document holds an expansion")
        elif _WORD_END.match(char):
            break
        else:
            delimiter += char
            at += 1
    if at == begin or b"\n" in delimiter:
        raise HeredocError("a here-document has no plain delimiter")
    out[start:at] = b"<" + b"0" * (at - start - 1)
    if len(pending) >= MAX_PENDING:
        raise HeredocError(f"more than {MAX_PENDING} here-documents on one line")
    pending.append((start, bytes(delimiter), quoted, tabs))
    return at


def _bodies(
    source: bytes,
    out: bytearray,
    at: int,
    pending: list[tuple[int, bytes, bool, bool]],
    found: dict[int, Heredoc],
    *,
    to_the_end: bool,
) -> int:
    for start, delimiter, quoted, tabs in pending:
        begin = at
        lines: list[bytes] = []
        while True:
            if at >= len(source) and to_the_end:  # bash warns, and takes all that is left
                found[start] = Heredoc(b"".join(lines), quoted, begin, len(source))
                out[begin:] = source[begin:].translate(_BLANK)
                break
            if at >= len(source):
                raise HeredocError(f"the here-document ends nowhere: no line {delimiter.decode(errors='replace')!r}")
            end = source.find(b"\n", at)
            stop = len(source) if end < 0 else end
            line = source[at:stop]
            if tabs:
                line = line.lstrip(b"\t")
            at = stop + (end >= 0)
            pieces = [line]
            while not quoted and end >= 0 and (len(pieces[-1]) - len(pieces[-1].rstrip(b"\\"))) % 2:
                pieces[-1] = pieces[-1][:-1]  # bash joins lines before it compares them with the delimiter
                end = source.find(b"\n", at)
                stop = len(source) if end < 0 else end
                pieces.append(source[at:stop])
                at = stop + (end >= 0)
            if len(pieces) > 1:
                line = b"".join(pieces).lstrip(b"\t") if tabs else b"".join(pieces)
            if line == delimiter:
                found[start] = Heredoc(b"".join(lines), quoted, begin, max(begin, stop - len(line)))
                out[begin:stop] = source[begin:stop].translate(_BLANK)
                break
            lines.append(line + b"\n")
    return at


_ACTIVE = pattern(rb"(?s)\\.|\$\(\(?|`")


def substitutions(body: bytes) -> list[bytes]:
    """Return the text of every command substitution in an unquoted body; what cannot be told apart raises."""
    commands: list[bytes] = []
    at = 0
    while True:
        match = _ACTIVE.search(body, at)
        if match is None:
            return commands
        token = match.group()
        at = match.end()
        if token.startswith(b"\\") or token == b"$((":
            continue  # arithmetic: a command inside it begins with its own `$(` or backtick, found further on
        if token == b"`":
            end = at
            while True:
                end = body.find(b"`", end)
                if end < 0:
                    raise HeredocError("a backtick in a here-document is not closed")
                if body[end - 1 : end] != b"\\":
                    break
                end += 1
            commands.append(body[at:end].replace(b"\\`", b"`").replace(b"\\$", b"$").replace(b"\\\\", b"\\"))
            at = end + 1
        else:
            end = _paren_end(body, at)
            commands.append(body[at:end])
            at = end + 1


def _paren_end(text: bytes, at: int) -> int:
    """Return the offset of the `)` that closes a `$(` whose inside begins at `at`."""
    stack = ["paren"]
    while True:
        match = _STOPS.search(text, at)
        if match is None:
            raise HeredocError("a substitution in a here-document is not closed")
        at = match.start()
        char = text[at : at + 1]
        top = stack[-1]
        at += 1
        if char == b"\\":
            at += 1
        elif char == b"'" and top != "dq":
            at = _quote_end(text, at - 1, False)
        elif char == b'"':
            if top == "dq":
                stack.pop()
            else:
                stack.append("dq")
        elif (char == b"(" and top != "dq") or (char == b"$" and text[at : at + 1] == b"("):
            at += char == b"$"
            stack.append("paren")
        elif char == b")" and top == "paren":
            stack.pop()
            if not stack:
                return at - 1

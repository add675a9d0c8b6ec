"""Cuts here-documents out of shell text before it is parsed. Every byte offset stays as it was.

tree-sitter-bash misreads many here-documents: it drops a `-` before one, misses backticks in the body, and reports an error for
two on one line or for `cat <<A; cmd`. So each `<<WORD` becomes `<0000` and its body becomes blanks. The walk of the tree must
then find a redirect at exactly that offset; it refuses text that only looks like a here-document.
This module can go when the grammar reads here-documents as bash does.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    Pending = tuple[
        int, bytes, bool, bool
    ]  # offset of the operator, delimiter, whether it is quoted, whether tabs are stripped

MAX_PENDING = 16  # here-documents on one line, against time that grows with their square
_STOPS = pattern(rb"[\\'\"`$(){}#<\n]")
_DELIMITER = pattern(rb"""(?s)(?:'[^']*'|"[^"]*"|\\.?|[^ \t\n;&|<>()'"\\$`])*""")
_QUOTING = pattern(rb"""(?s)'([^']*)'|"([^"]*)"|\\(.?)""")
_SUBSTITUTION = pattern(rb"(?s)\\.|\$\(\(?|`")
_BLANK = bytes(10 if code == 10 else 32 for code in range(256))
_BREAKS = b" \t\n;&|("
_COMMAND_STATES = ("cmd", "paren", "tick")  # states in which a command may begin


@frozen
class Heredoc(Record):
    """A here-document: its text, and whether its delimiter was quoted (then bash expands nothing in it)."""

    body: bytes
    quoted: bool


class HeredocError(ValueError):
    """The text contains a here-document that cannot be read with certainty."""


def extract(source: bytes) -> tuple[bytes, dict[int, Heredoc]]:
    """Return the text without its here-documents, and the here-documents by the offset of their operator."""
    out = bytearray(source)
    found: dict[int, Heredoc] = {}
    pending: list[Pending] = []
    stack = ["cmd"]
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
            if pending and top in _COMMAND_STATES:
                at = _take_bodies(source, out, at, pending, found, to_the_end=len(stack) == 1)
                pending = []
        elif char == b'"':
            at += 1
            if top == "dq":
                stack.pop()
            else:
                stack.append("dq")
        elif char == b"'" and top not in ("dq", "brace-dq", "arith"):
            at = _quote_end(source, at, ansi=at > 0 and source[at - 1 : at] == b"$")
        elif char == b"`":
            at += 1
            if "tick" in stack and top in ("tick", "paren"):
                while stack.pop() != "tick":
                    pass
            else:
                stack.append("tick")
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
            if top in _COMMAND_STATES and source.startswith(b"((", at):
                stack += ["arith", "arith"]
                at += 2
            else:
                stack.append("arith" if top == "arith" else "paren")
                at += 1
        elif (char == b")" and top in ("paren", "arith")) or (char == b"}" and top in ("brace", "brace-dq")):
            stack.pop()
            at += 1
        elif char == b"#" and top in _COMMAND_STATES and (at == 0 or source[at - 1] in _BREAKS):
            end = source.find(b"\n", at)
            at = len(source) if end < 0 else end
        elif source.startswith(b"<<<", at) and top in _COMMAND_STATES:
            at += 3
        elif source.startswith(b"<<", at) and top in _COMMAND_STATES:
            at = _take_operator(source, out, at, pending)
        else:
            at += 1
    if pending:
        raise HeredocError("a here-document has no body")
    return bytes(out), found


def _quote_end(source: bytes, at: int, *, ansi: bool) -> int:
    """Return the offset behind the single-quoted string that begins at `at`; in $'…' a backslash escapes the quote."""
    at += 1
    while True:
        end = source.find(b"'", at)
        if end < 0:
            return len(source)
        body = source[at:end]
        if not ansi or (len(body) - len(body.rstrip(b"\\"))) % 2 == 0:
            return end + 1
        at = end + 1


def _take_operator(source: bytes, out: bytearray, at: int, pending: list[Pending]) -> int:
    """Read `<<WORD` at `at`, replace it with a plain redirect in `out`, and return the offset behind it."""
    start = at
    at += 2
    tabs = source[at : at + 1] == b"-"
    at += tabs
    while source[at : at + 1] in (b" ", b"\t"):
        at += 1
    word = _DELIMITER.match(source, at)[0]  # type: ignore[index]  # it matches any text
    at += len(word)
    if source[at : at + 1] in (b"'", b'"'):
        raise HeredocError("the delimiter of a here-document has an open quote")
    if source[at : at + 1] in (b"$", b"`"):
        raise HeredocError("the delimiter of a here-document contains an expansion")
    delimiter = _QUOTING.sub(lambda found: found[1] or found[2] or found[3] or b"", word)
    if not word or b"\n" in delimiter:
        raise HeredocError("a here-document has no plain delimiter")
    out[start:at] = b"<" + b"0" * (at - start - 1)
    if len(pending) >= MAX_PENDING:
        raise HeredocError(f"more than {MAX_PENDING} here-documents on one line")
    pending.append((start, delimiter, _QUOTING.search(word) is not None, tabs))
    return at


def _take_bodies(
    source: bytes, out: bytearray, at: int, pending: list[Pending], found: dict[int, Heredoc], *, to_the_end: bool
) -> int:
    """Read the bodies of the pending here-documents, blank them in `out`, and return the offset behind them."""
    for start, delimiter, quoted, tabs in pending:
        begin = at
        lines: list[bytes] = []
        while True:
            if at >= len(source):
                if not to_the_end:
                    raise HeredocError(f"a here-document has no end: no line {delimiter.decode(errors='replace')!r}")
                break  # bash warns and takes the rest of the text
            piece, at, has_next = _read_line(source, at)
            pieces = [piece]
            while not quoted and has_next and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                pieces[-1] = piece[:-1]  # bash joins continued lines before it compares them with the delimiter
                piece, at, has_next = _read_line(source, at)
                pieces.append(piece)
            line = b"".join(pieces)
            if tabs:
                line = line.lstrip(b"\t")
            if line == delimiter:
                break
            lines.append(line + b"\n")
        found[start] = Heredoc(b"".join(lines), quoted)
        out[begin:at] = source[begin:at].translate(_BLANK)
    return at


def _read_line(source: bytes, at: int) -> tuple[bytes, int, bool]:
    """Return the line at `at`, the offset of the next one, and whether a newline ends the line."""
    end = source.find(b"\n", at)
    return (source[at:], len(source), False) if end < 0 else (source[at:end], end + 1, True)


def substitutions(body: bytes) -> list[bytes]:
    """Return the text of every command substitution in an unquoted body. Raises HeredocError if a substitution is not closed."""
    commands: list[bytes] = []
    at = 0
    while True:
        match = _SUBSTITUTION.search(body, at)
        if match is None:
            return commands
        token = match.group()
        at = match.end()
        if token.startswith(b"\\") or token == b"$((":
            continue  # a command inside arithmetic begins with its own `$(` or backtick, which a later search finds
        if token == b"`":
            end = body.find(b"`", at)
            while end >= 0 and body[end - 1 : end] == b"\\":
                end = body.find(b"`", end + 1)
            if end < 0:
                raise HeredocError("a backtick in a here-document is not closed")
            commands.append(body[at:end].replace(b"\\`", b"`").replace(b"\\$", b"$").replace(b"\\\\", b"\\"))
        else:
            end = _paren_end(body, at)
            commands.append(body[at:end])
        at = end + 1


def _paren_end(text: bytes, at: int) -> int:
    """Return the offset of the `)` that closes a `$(` whose content begins at `at`."""
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
            at = _quote_end(text, at - 1, ansi=False)
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

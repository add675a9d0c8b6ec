"""Prepares shell text for the grammar: joins continued lines and cuts out here-documents.

tree-sitter-bash keeps a backslash before a newline as part of the text, so it misses the `$(` in `$\\<newline>(`. It misreads many
here-documents: it drops a `-` before one, misses backticks in the body, and reports an error for two on one line or for
`cat <<A; cmd`. So continued lines are joined where bash joins them, each `<<WORD` becomes `<0000` and its body becomes blanks. The
walk of the tree must then find a redirect at exactly that offset; it refuses text that only looks like a here-document.
This module can go when the grammar reads both as bash does.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Offset of the operator, delimiter, whether it is quoted, whether tabs are stripped, depth of the text that it stands in.
    Pending = tuple[int, bytes, bool, bool, int]

ROUNDS_BETWEEN_LOOKS = 500  # at the clock
BYTES_IN_A_ROUND = 200  # that take as long as one round
MAX_PENDING = 16  # here-documents on one line, against time that grows with their square
MAX_OPEN = 100  # against time that grows with their square; the walker allows less
MAX_CONTINUED_LINES = 4000  # against time that grows with their square
_STOPS = pattern(rb"[\\'\"`$(){}#<\n]")
_DELIMITER = pattern(rb"""(?s)(?:'[^']*'|"[^"]*"|\\.?|[^ \t\n;&|<>()'"\\$`])*""")
_QUOTING = pattern(rb"""(?s)'([^']*)'|"([^"]*)"|\\(.?)""")
_CASE = pattern(rb"\bcase\b")
_BLANK = bytes(10 if code == 10 else 32 for code in range(256))
_BREAKS = b" \t\n;&|()<>`"
_COMMAND_STATES = ("cmd", "paren", "sub", "tick")  # states in which a command may begin


@frozen
class Heredoc(Record):
    """A here-document: its text, and whether its delimiter was quoted (then bash expands nothing in it)."""

    body: bytes
    quoted: bool


class HeredocError(ValueError):
    """The text contains a here-document or a continued line that cannot be read with certainty."""


class HeredocTimeout(Exception):
    """The time for the call is up before all here-documents are read."""


def prepare(source: bytes, is_late: Callable[[], bool]) -> tuple[bytes, dict[int, Heredoc], list[int]]:
    """Return the text for the grammar, the here-documents by the offset of their operator, and the offsets of joined lines."""
    lexer = _Lexer(source, "cmd", is_late)
    lexer.read()
    return bytes(lexer.text), lexer.found, lexer.joints


def as_string(body: bytes, is_late: Callable[[], bool]) -> bytes:
    """Return the body of a here-document as a double-quoted string that bash expands to the same text."""
    lexer = _Lexer(body, "body", is_late)
    lexer.read()
    if len(lexer.stack) > 1:
        raise HeredocError("an expansion in a here-document is not closed")
    parts = []
    last = 0
    for at in lexer.quotes:
        parts += [body[last:at], b"\\"]
        last = at
    return b'"' + b"".join(parts) + body[last:] + b'"'


class _Lexer:
    """Reads shell text far enough to know where quotes, substitutions and comments begin and end.

    It edits `text` behind its own position only. `stack` has a state for each open quote, substitution or parenthesis. The state
    "body" is the text of a here-document: a double-quoted string in which a quote does not quote.
    """

    def __init__(self, source: bytes, state: str, is_late: Callable[[], bool]) -> None:
        self._is_late = is_late
        self._rounds = 0
        self.text = bytearray(source)
        self.stack = [state]
        self.starts = [0]
        self.found: dict[int, Heredoc] = {}
        self.pending: list[Pending] = []
        self.joints: list[int] = []
        self.quotes: list[int] = []  # offsets in a body at which its string needs a backslash

    def read(self) -> None:
        """Read the whole text."""
        text = self.text
        at = 0
        while True:
            match = _STOPS.search(text, at)
            if match is None:
                break
            self._spend(1)
            at = self._step(match.start())
        if self.pending:
            raise HeredocError("a here-document has no body")

    def _spend(self, rounds: int) -> None:
        self._rounds += rounds
        if self._rounds >= ROUNDS_BETWEEN_LOOKS:
            self._rounds = 0
            if self._is_late():
                raise HeredocTimeout

    def _step(self, at: int) -> int:
        """Read what begins at a stop; return the offset behind it."""
        text, top = self.text, self.stack[-1]
        char = bytes(text[at : at + 1])
        if char == b"\\":
            if self._join(at):
                return at
            if top == "body" and text[at + 1 : at + 2] == b'"':
                self.quotes += [at, at + 1]  # the body keeps the backslash
            return at + 2
        if char == b"\n":
            return self._end_line(at + 1)
        if (
            char in b"'\""
            and top == "brace-dq"
            and self.stack[0] == "body"
            and not {"sub", "tick"}.intersection(self.stack)
        ):
            raise HeredocError("an expansion in a here-document contains quotes")
        if char == b'"':
            if top == "body":
                self.quotes.append(at)
            elif top == "dq":
                self._pop(at)
            else:
                self._push("dq", at)
            return at + 1
        if char == b"'" and top not in ("body", "dq", "brace-dq", "arith"):
            return self._skip_quote(at)
        if char == b"`":
            return self._backtick(at)
        if char == b"$":
            return self._dollar(at)
        if char == b"(" and top not in ("body", "dq"):
            return self._parenthesis(at)
        if char == b")" and top in ("paren", "sub", "arith"):
            return self._close(at)
        if char == b"}" and top in ("brace", "brace-dq"):
            self._pop(at)
        elif top in _COMMAND_STATES:
            if char == b"#" and (at == 0 or text[at - 1] in _BREAKS):
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                if "tick" in self.stack and text.find(b"`", at, end) >= 0:
                    raise HeredocError("a backtick ends a substitution inside a comment")
                return end
            if char == b"<":
                self._join(at + 1)
                if text.startswith(b"<<", at):
                    self._join(at + 2)
                    return at + 3 if text.startswith(b"<<<", at) else self._take_operator(at)
        return at + 1

    def _push(self, state: str, at: int) -> None:
        if len(self.stack) > MAX_OPEN:
            raise HeredocError(f"more than {MAX_OPEN} quotes and parentheses inside one another")
        self.stack.append(state)
        self.starts.append(at)

    def _pop(self, at: int) -> None:
        state, start = self.stack.pop(), self.starts.pop()
        if state in ("sub", "tick"):
            if any(depth > len(self.stack) for *_, depth in self.pending):
                raise HeredocError("a substitution ends before the here-document in it begins")
            self._spend((at - start) // BYTES_IN_A_ROUND)
            if _CASE.search(self.text, start, at) is not None:
                raise HeredocError("a parenthesis in a substitution may belong to a case statement")

    def _join(self, at: int) -> bool:
        """Remove the backslash and newline at an offset; return whether there was one."""
        joined = False
        while self.text.startswith(b"\\\n", at):
            self._spend((len(self.text) - at) // BYTES_IN_A_ROUND // 20)
            del self.text[at : at + 2]
            self.joints.append(at)
            joined = True
        if len(self.joints) > MAX_CONTINUED_LINES:
            raise HeredocError(f"more than {MAX_CONTINUED_LINES} continued lines")
        return joined

    def _depth(self) -> int:
        """Return how deep the innermost quote or substitution is. A line that ends there ends inside it."""
        depth = len(self.stack)
        while depth and self.stack[depth - 1] in ("cmd", "paren"):
            depth -= 1
        return depth

    def _end_line(self, at: int) -> int:
        if not self.pending:
            return at
        depth = self._depth()
        if self.stack[-1] not in _COMMAND_STATES or any(opened != depth for *_, opened in self.pending):
            raise HeredocError("a line ends inside a word behind a here-document")
        at = self._take_bodies(at, to_the_end=len(self.stack) == 1)
        self.pending = []
        return at

    def _skip_quote(self, at: int) -> int:
        """Return the offset behind the single-quoted string at an offset; in $'…' a backslash escapes the quote."""
        text, start = self.text, at
        is_ansi = at > 0 and text[at - 1 : at] == b"$"
        while True:
            end = text.find(b"'", at + 1)
            if end < 0:
                return len(text)
            body = text[at + 1 : end]
            at = end
            if not is_ansi or (len(body) - len(body.rstrip(b"\\"))) % 2 == 0:
                break
        if "tick" in self.stack and (b"\\\n" in text[start:end] or b"`" in text[start:end]):
            raise HeredocError("between backticks bash joins lines and ends the substitution even inside quotes")
        return end + 1

    def _backtick(self, at: int) -> int:
        if "tick" not in self.stack:
            self._push("tick", at)
        elif self.stack[-1] == "tick":
            self._pop(at)
        else:
            raise HeredocError("a backtick ends a substitution inside a quote or a parenthesis")
        return at + 1

    def _dollar(self, at: int) -> int:
        text = self.text
        self._join(at + 1)
        following = text[at + 1 : at + 2]
        if following == b"(":
            self._join(at + 2)
            if text.startswith(b"$((", at):
                self._push("open", at)
                self._push("arith", at)
                return at + 3
            self._push("sub", at)
            return at + 2
        if following == b"{":
            self._push("brace-dq" if self.stack[-1] in ("body", "dq", "brace-dq") else "brace", at)
            return at + 2
        return at + 1

    def _parenthesis(self, at: int) -> int:
        self._join(at + 1)
        top = self.stack[-1]
        if top in _COMMAND_STATES and self.text.startswith(b"((", at):
            self._push("open", at)
            self._push("arith", at)
            return at + 2
        is_process = top in _COMMAND_STATES and at > 0 and self.text[at - 1] in b"<>"
        self._push("arith" if top == "arith" else "sub" if is_process else "paren", at)
        return at + 1

    def _close(self, at: int) -> int:
        self._pop(at)
        if self.stack[-1] == "open":
            self._join(at + 1)
            if not self.text.startswith(b"))", at):  # $((a); b) is a command
                raise HeredocError("arithmetic does not end with two parentheses")
            self._pop(at)
            return at + 2
        return at + 1

    def _take_operator(self, at: int) -> int:
        """Read `<<WORD`, replace it with a plain redirect, and return the offset behind it."""
        text, start = self.text, at
        at += 2
        tabs = text[at : at + 1] == b"-"
        at += tabs
        self._join(at)
        while text[at : at + 1] and text[at] in b" \t":
            at += 1
            self._join(at)
        word = bytes(_DELIMITER.match(text, at)[0])  # type: ignore[index]  # it matches any text
        at += len(word)
        following = bytes(text[at : at + 1])
        if following in (b"'", b'"'):
            raise HeredocError("the delimiter of a here-document has an open quote")
        if following in (b"$", b"`"):
            raise HeredocError("the delimiter of a here-document contains an expansion")
        if any(b"\\" in (found[2] or b"") for found in _QUOTING.finditer(word)):
            raise HeredocError("the delimiter of a here-document has a backslash in quotes")
        delimiter = _QUOTING.sub(lambda found: found[1] or found[2] or found[3] or b"", word)
        # Behind `<<-` bash strips tabs from the delimiter too.
        if not word or b"\n" in delimiter or (tabs and delimiter[:1] == b"\t"):
            raise HeredocError("a here-document has no plain delimiter")
        text[start:at] = b"<" + b"0" * (at - start - 1)
        if len(self.pending) >= MAX_PENDING:
            raise HeredocError(f"more than {MAX_PENDING} here-documents on one line")
        self.pending.append((start, delimiter, _QUOTING.search(word) is not None, tabs, self._depth()))
        return at

    def _take_bodies(self, at: int, *, to_the_end: bool) -> int:
        """Read the bodies of the pending here-documents, blank them, and return the offset behind them."""
        text = self.text
        for start, delimiter, quoted, tabs, _ in self.pending:
            begin = at
            lines: list[bytes] = []
            while True:
                if at >= len(text):
                    if not to_the_end:
                        name = delimiter.decode(errors="replace")
                        raise HeredocError(f"a here-document has no end: no line {name!r}")
                    break  # bash warns and takes the rest of the text
                piece, at, has_next = _read_line(text, at)
                pieces = [piece]
                while not quoted and has_next and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                    pieces[-1] = piece[:-1]  # bash joins continued lines before it compares them with the delimiter
                    piece, at, has_next = _read_line(text, at)
                    pieces.append(piece)
                line = b"".join(pieces)
                if tabs:
                    line = line.lstrip(b"\t")
                if line == delimiter:
                    break
                lines.append(line + b"\n")
            self.found[start] = Heredoc(b"".join(lines), quoted)
            text[begin:at] = text[begin:at].translate(_BLANK)
        return at


def _read_line(text: bytearray, at: int) -> tuple[bytes, int, bool]:
    """Return the line at `at`, the offset of the next one, and whether a newline ends the line."""
    end = text.find(b"\n", at)
    return (bytes(text[at:]), len(text), False) if end < 0 else (bytes(text[at:end]), end + 1, True)

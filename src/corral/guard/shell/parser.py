"""Parses shell text into a Script with tree-sitter-bash. Total: every string gives a Script, and `problem` says why one cannot be trusted.

The grammar's shared objects are loaded directly, because importing their packages costs more than parsing a thousand commands.
"""

from __future__ import annotations

from _thread import _local

from corral._lib.lazy_regex import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from re import Pattern
    from typing import Any

    from corral.guard.shell.heredoc import Heredoc

    Node = Any

MAX_TEXT_BYTES = 256 * 1024
MAX_PARSED_BYTES = 108 * 1024  # outside here-documents; the parser takes too much memory for some longer texts
MAX_UNTIMED_BYTES = 1024  # the parser takes five milliseconds for the slowest known text of this length
MAX_UNTRIED_BYTES = 4 * 1024  # the hook parses a longer text in a child first
MAX_PIPES = 1000  # in one pipeline. At a syntax error the parser takes time and memory that grow with the square of their number
LOOKUPS_BETWEEN_LOOKS = 50  # at the clock, because each takes up to a tenth of a millisecond
READ_BYTES = 256  # that the parser gets at once, so that it asks for the time often
_COMMAND = rb"(^|[;&|({\n]|\b(?:then|do|else)\b)([ \t]*)"
_COMPOUND = rb"(?=[ \t]+(?:-p[ \t]+)?(?:[({]|\[\[|(?:for|if|while|until|case)\b))"
# Text that bash runs and tree-sitter-bash 0.25.1 reports as an error. Each entry can go when the grammar accepts it.
_TIMED = (pattern(_COMMAND + rb"time" + _COMPOUND), rb"\1\2    ")  # time { …; }
_REWRITES = (
    _TIMED,
    (pattern(_COMMAND + rb"!" + _COMPOUND), rb"\1\2 "),  # ! { …; }
    (pattern(rb"(\bfor[ \t]+\w+)[ \t]([ \t]*do\b)"), rb"\1;\2"),  # for f do
    (pattern(rb"<>"), rb"> "),  # exec 3<>x; `statements.redirect` looks up the real operator
    (pattern(rb"(\$\{\w+(?:\[[@*]\])?:)\$(\w)"), rb"\1 \2"),  # ${x:$i:1}
    (pattern(rb"(\$\{\w+(?:\[[@*]\])?:[ \w]*:)\$(\w)"), rb"\1 \2"),
    (pattern(rb"([\w.*+\])])\$(?=\))"), rb"\1%"),  # $(grep foo$)
    # x=$(cmd) 2>/dev/null
    (
        pattern(rb"(?m)(^[ \t]*\w+=(?:\$\([^()\n]*\)|[\w./-]*)) 2>/dev/null(?=[ \t]*(?:$|\|\||&&|;))"),
        rb"\1            ",
    ),
)
# An extended glob such as !(a|b) may match any name, so a star replaces it. Only in text without quotes, where the pattern cannot
# match quoted text by mistake.
_EXTENDED_GLOB = pattern(rb"(?<=[\s/\w.*-])[!+@?*]\([\w.*?|/\[\]-]*\)")
_CONTINUED = pattern(rb"(?<!\\)(?:\\\\)*\\\n")
_ESCAPE_OF_LINE = pattern(rb"\n\\[^\n]")
_ANSI_BEGIN = pattern(rb"\$'")
_ANSI_STRING = pattern(rb"(?s)\$'(?:[^'\\]|\\.)*+'")
_QUOTES = (b"'", b'"', b"`", b"$(")
# The grammar's scanner indexes a table of 256 entries with the character code and now and then crashes the process on a larger one.
# bash treats all these characters as part of a word and of no name, and so it treats a dot. Words are cut from the unmasked text.
_DOTS_FOR_NON_ASCII = bytes(range(128)) + b"." * 128
_TRIALS: list[Callable[[Any, bytes], bool]] = []
_PARSERS: Any = _local()  # one parser per thread: two threads must not share one


def set_parse_trial(trial: Callable[[Any, bytes], bool]) -> None:
    """Call `trial` before each long text is parsed; text for which it returns False is refused. Without a trial, all text is parsed."""
    _TRIALS[:] = [trial]


def _parse(source: bytes, is_late: Callable[[], bool]) -> Node:
    """Return the root of the tree, or None if the parser has no time for the text or the trial failed."""
    try:
        parser = _PARSERS.parser
    except AttributeError:
        from corral.guard.shell.grammar import make_parser  # noqa: PLC0415  a plain argv call needs no parser

        parser = _PARSERS.parser = make_parser()
    if len(source) > MAX_UNTRIED_BYTES and not all(trial(parser, source) for trial in _TRIALS):
        return None
    if len(source) <= MAX_UNTIMED_BYTES:
        return parser.parse(source).root_node
    if source.count(b"|") > MAX_PIPES:
        from corral.guard.shell.pipelines import has_long_pipeline  # noqa: PLC0415  few texts have as many

        if has_long_pipeline(source, lambda text: _parse_in_time(parser, text, is_late), MAX_PIPES):
            return None
    return _parse_in_time(parser, source, is_late)


def _parse_in_time(parser: Any, source: bytes, is_late: Callable[[], bool]) -> Node:
    """Return the root of the tree, or None if the time is up before the parser has read the text.

    The binding can neither interrupt a parse nor call back (its `progress_callback` crashes the process), but it asks for the text
    piece by piece. An ambiguous text makes it ask again and again. Without more text the parser ends at once.
    """
    is_cut = False
    piece: bytearray
    try:
        piece = _PARSERS.piece
    except AttributeError:
        # tree-sitter 0.26 never frees what it reads, so it always gets this one object.
        piece = _PARSERS.piece = bytearray(READ_BYTES)

    def read(at: int, _: object) -> Any:
        nonlocal is_cut
        is_cut = is_cut or is_late()
        piece[:] = b"" if is_cut else source[at : at + READ_BYTES]
        return piece

    try:
        root = parser.parse(read).root_node
    except TypeError:  # tree-sitter 0.24 and 0.25 take only `bytes`, and free them
        root = parser.parse(lambda at, point: bytes(read(at, point))).root_node
    return None if is_cut else root


class _TimeIsUp(Exception):
    """The time for the call is up before the tree is compared with the text."""


class Script:
    """Parsed shell text. `problem` is the effect and the reason for which it cannot be trusted, or None.

    `source` is the text as it was parsed. `unmasked` has the same offsets and the real words. Spans refer to the text of the call.
    """

    __slots__ = (
        "_lookups", "closes_descriptors", "fixed_span", "heredocs", "is_late", "is_one_line", "is_plain", "is_single_byte", "joints", "offset", "problem",
        "raw", "root", "source", "text", "unmasked", "used_heredocs",
    )  # fmt: skip

    def __init__(
        self,
        text: str,
        is_late: Callable[[], bool],
        *,
        offset: int = 0,
        fixed_span: tuple[int, int] | None = None,
        parse: bool = True,
    ) -> None:
        self.text = text
        self.is_late = is_late  # says whether the time for this call is up
        self.closes_descriptors = "&-" in text
        self.is_one_line = "\n" not in text
        self.offset = offset  # of this text in the text of the call
        self.fixed_span = fixed_span  # or the one span that every node of this text is reported at
        self.heredocs: dict[int, Heredoc] = {}
        self.used_heredocs: set[int] = set()
        self.joints: list[int] = []  # offsets in `source` at which bash joined two lines
        self.root: Node = None
        self._lookups = 0
        self.source = self.unmasked = self.raw = b""
        self.is_single_byte = True  # byte offsets are character offsets
        self.problem = self._read() if parse else None  # an argv call has a script without text
        # Whether an offset in bytes and `offset` together are the offset in the text of the call.
        self.is_plain = self.is_single_byte and fixed_span is None and not self.joints

    def _read(self) -> tuple[str, str] | None:
        """Parse the text; return the problem."""
        try:
            return self._parse_text()
        except _TimeIsUp:
            self.root = None
            return "limit", "more than the parser has time or memory for"

    def _parse_text(self) -> tuple[str, str] | None:
        text = self.text
        source = text.encode("utf-8", "surrogatepass")
        if len(source) > MAX_TEXT_BYTES:
            return "limit", f"more than {MAX_TEXT_BYTES} bytes of shell text"
        if b"\0" in source:  # the grammar's own scanner is not safe with this or with surrogates
            return "unparsed", "a NUL byte"
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            return "unparsed", "a surrogate, which is not a character"
        self.raw = source
        if len(source) > MAX_UNTIMED_BYTES:
            self.is_late()  # the time begins
        if b"<<" in source or b"\\\n" in source:
            from corral.guard.shell.heredoc import HeredocError, HeredocTimeout, prepare  # noqa: PLC0415  few texts need it

            try:
                source, self.heredocs, self.joints = prepare(source, self.is_late)
            except HeredocError as error:
                return "unparsed", str(error)
            except HeredocTimeout:
                return "limit", "more here-documents than the guard has time for"
            self.text = source.decode()
        inner = sum(len(heredoc.body) for heredoc in self.heredocs.values()) if self.heredocs else 0
        if len(source) - inner > MAX_PARSED_BYTES:
            return "limit", f"more than {MAX_PARSED_BYTES} bytes of shell text outside here-documents"
        self.unmasked = source
        self.source = source if source.isascii() else source.translate(_DOTS_FOR_NON_ASCII)
        self.is_single_byte = len(self.raw) == len(text)
        self.root = _parse(self.source, self.is_late)
        if self.root is None:
            return "limit", "more than the parser has time or memory for"
        escapes_line = b"\n\\" in source
        if escapes_line:
            self._mask_escapes_of_lines()
        if self.root.has_error:
            self._rewrite(_REWRITES)
        elif b"time (" in source or b"time {" in source:
            self._rewrite((_TIMED,))  # the grammar reads it as a command with an extended glob, without an error
        if len(source) > MAX_UNTIMED_BYTES and self.is_late():
            self.root = None
            return "limit", "more than the parser has time or memory for"
        return self._difference(escapes_line=escapes_line)

    def _difference(self, *, escapes_line: bool) -> tuple[str, str] | None:
        """Return the problem if the grammar may have read quotes or lines in another way than bash."""
        if b"\\\n" in self.raw and not self._lines_are_joined():
            return "unparsed", "a continued line that may be part of a quoted string"
        if escapes_line and self._joined_lines():
            return "unparsed", "a line that begins with a backslash"
        if b"$'" in self.source and not self._ends_strings_as_bash():
            return "unparsed", "a string of the form $'…' whose end is not certain"
        return None

    def _node_at(self, start: int, end: int) -> Node:
        """Return the smallest node around a range. That takes time for every node before it."""
        self._lookups += 1
        if self._lookups % LOOKUPS_BETWEEN_LOOKS == 0 and self.is_late():
            raise _TimeIsUp
        return self.root.descendant_for_byte_range(start, end)

    def _ends_strings_as_bash(self) -> bool:
        """Return whether the grammar ends each $'…' where bash does. It takes the quote in $'\\\\' for an escaped one."""
        for found in _ANSI_BEGIN.finditer(self.source):
            node = self._node_at(found.start(), found.end())
            if node is not None and node.type == "ansi_c_string" and node.start_byte == found.start():
                string = _ANSI_STRING.match(self.source, found.start())
                if string is None or string.end() != node.end_byte:
                    return False
        return True

    def _lines_are_joined(self) -> bool:
        """Return whether the grammar agrees with the lexer on the quotes and comments in which lines are not joined."""
        kept = [match.end() - 2 for match in _CONTINUED.finditer(self.source)]
        if any(at and self._is_raw(at - 1, at + 1) for at in self.joints):
            return False
        return all(self._is_raw(at, at + 1) for at in kept)

    def _is_raw(self, start: int, end: int) -> bool:
        """Return whether text is in a string without escapes or in a comment."""
        node = self._node_at(start, end)
        return node is not None and node.type in ("raw_string", "ansi_c_string", "comment")

    def _joined_lines(self) -> list[int]:
        """Return the ends of lines that the grammar joins with the next line, because that begins with a backslash."""
        ends = [found.start() for found in _ESCAPE_OF_LINE.finditer(self.source)]
        return [at for at in ends if self._node_at(at, at + 1).type == "word"]

    def _mask_escapes_of_lines(self) -> None:
        """Parse again with dots for the escapes that make the grammar join two lines. Words are cut from the unmasked text."""
        masked = bytearray(self.source)
        for at in self._joined_lines():
            masked[at + 1 : at + 3] = b".."
        if masked != self.source:
            root = _parse(bytes(masked), self.is_late)
            if root is not None:
                self.source, self.root = bytes(masked), root

    def _rewrite(self, rewrites: Sequence[tuple[Pattern[bytes], bytes]]) -> None:
        """Parse again without the text that only the grammar calls an error. A rewrite changes neither the length nor the commands."""
        source = self.source
        for misread, replacement in rewrites:
            source = misread.sub(replacement, source)
        if source != self.source:
            root = _parse(source, self.is_late)
            if root is not None and not root.has_error:
                self.source, self.root = source, root
                return
        has_quotes = any(quote in source for quote in _QUOTES)
        if source.isascii() and self.is_single_byte and b"(" in source and not has_quotes:
            starred = _EXTENDED_GLOB.sub(lambda found: b"*" * len(found[0]), source)
            root = _parse(starred, self.is_late)
            if starred != source and root is not None and not root.has_error:
                self.source = self.unmasked = starred
                self.root, self.text = root, starred.decode()

    def cut(self, start: int, end: int) -> str:
        """Return the text between two byte offsets."""
        if self.is_single_byte:
            return self.text[start:end]
        return self.unmasked[start:end].decode("utf-8", "replace")

    def piece(self, start: int, end: int) -> tuple[str, int, int]:
        """Return the text between two byte offsets, and its offsets in characters of the text of the call."""
        if self.is_plain:
            return self.text[start:end], self.offset + start, self.offset + end
        return self.cut(start, end), *self.span(start, end)

    def text_of(self, node: Node) -> str:
        """Return the text of a node."""
        return self.cut(node.start_byte, node.end_byte)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the offsets, in characters of the text of the call, of two byte offsets."""
        if self.fixed_span is not None:
            return self.fixed_span
        if self.joints:
            from bisect import bisect_right  # noqa: PLC0415  few texts have continued lines

            start, end = (at + 2 * bisect_right(self.joints, at) for at in (start, end))
        if not self.is_single_byte:
            # Counted in the text as it was given: cutting out a here-document keeps the number of bytes, not of characters.
            start = len(self.raw[:start].decode("utf-8", "replace"))
            end = len(self.raw[:end].decode("utf-8", "replace"))
        return self.offset + start, self.offset + end

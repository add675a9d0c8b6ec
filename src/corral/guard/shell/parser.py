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

MAX_TEXT_BYTES = 256 * 1024  # against input that takes longer than a second to judge
MAX_UNTRIED_BYTES = 4 * 1024  # the parser takes a quarter of a second for the slowest known text of this length
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
_QUOTES = (b"'", b'"', b"`", b"$(")
# The grammar's scanner indexes a table of 256 entries with the character code and now and then crashes the process on a larger one.
# bash treats all these characters as part of a word and of no name, and so it treats a dot. Words are cut from the unmasked text.
_DOTS_FOR_NON_ASCII = bytes(range(128)) + b"." * 128
_TRIALS: list[Callable[[Any, bytes], bool]] = []
_PARSERS: Any = _local()  # one parser per thread: two threads must not share one


def set_parse_trial(trial: Callable[[Any, bytes], bool]) -> None:
    """Call `trial` before each long text is parsed; text for which it returns False is refused. Without a trial, all text is parsed."""
    _TRIALS[:] = [trial]


def _parse(source: bytes) -> Node:
    """Return the root of the tree, or None if the trial failed."""
    try:
        parser = _PARSERS.parser
    except AttributeError:
        from corral.guard.shell.grammar import make_parser  # noqa: PLC0415  a plain argv call needs no parser

        parser = _PARSERS.parser = make_parser()
    if len(source) > MAX_UNTRIED_BYTES and not all(trial(parser, source) for trial in _TRIALS):
        return None
    return parser.parse(source).root_node


class Script:
    """Parsed shell text. `problem` is the effect and the reason for which it cannot be trusted, or None.

    `source` is the text as it was parsed. `unmasked` has the same offsets and the real words. Spans refer to the text of the call.
    """

    __slots__ = (
        "fixed_span", "heredocs", "is_single_byte", "offset", "problem", "raw", "root", "source", "text", "unmasked", "used_heredocs",
    )  # fmt: skip

    def __init__(
        self, text: str, *, offset: int = 0, fixed_span: tuple[int, int] | None = None, parse: bool = True
    ) -> None:
        self.text = text
        self.offset = offset  # of this text in the text of the call
        self.fixed_span = fixed_span  # or the one span that every node of this text is reported at
        self.heredocs: dict[int, Heredoc] = {}
        self.used_heredocs: set[int] = set()
        self.root: Node = None
        self.source = self.unmasked = self.raw = b""
        self.is_single_byte = True  # byte offsets are character offsets
        self.problem = self._read() if parse else None  # an argv call has a script without text

    def _read(self) -> tuple[str, str] | None:
        """Parse the text; return the problem."""
        text = self.text
        source = text.encode("utf-8", "surrogatepass")
        if len(source) > MAX_TEXT_BYTES:
            return "limit", f"more than {MAX_TEXT_BYTES} bytes of shell text"
        if b"\0" in source:  # the grammar's own scanner is not safe with this or with surrogates
            return "unparsed", "a NUL byte"
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            return "unparsed", "a surrogate, which is not a character"
        self.raw = source
        if b"<<" in source:
            from corral.guard.shell.heredoc import HeredocError, extract  # noqa: PLC0415  few texts need it

            try:
                source, self.heredocs = extract(source)
            except HeredocError as error:
                return "unparsed", str(error)
        self.unmasked = source
        self.source = source if source.isascii() else source.translate(_DOTS_FOR_NON_ASCII)
        self.is_single_byte = len(source) == len(text)
        if self.heredocs:
            self.text = source.decode()
        self.root = _parse(self.source)
        if self.root is None:
            return "limit", "more than the parser has time and memory for"
        if self.root.has_error:
            self._rewrite(_REWRITES)
        elif b"time (" in source or b"time {" in source:
            self._rewrite((_TIMED,))  # the grammar reads it as a command with an extended glob, without an error
        return None

    def _rewrite(self, rewrites: Sequence[tuple[Pattern[bytes], bytes]]) -> None:
        """Parse again without the text that only the grammar calls an error. A rewrite changes neither the length nor the commands."""
        source = self.source
        for misread, replacement in rewrites:
            source = misread.sub(replacement, source)
        if source != self.source:
            root = _parse(source)
            if root is not None and not root.has_error:
                self.source, self.root = source, root
                return
        has_quotes = any(quote in source for quote in _QUOTES)
        if source.isascii() and self.is_single_byte and b"(" in source and not has_quotes:
            starred = _EXTENDED_GLOB.sub(lambda found: b"*" * len(found[0]), source)
            root = _parse(starred)
            if starred != source and root is not None and not root.has_error:
                self.source = self.unmasked = starred
                self.root, self.text = root, starred.decode()

    def cut(self, start: int, end: int) -> str:
        """Return the text between two byte offsets."""
        if self.is_single_byte:
            return self.text[start:end]
        return self.unmasked[start:end].decode("utf-8", "replace")

    def text_of(self, node: Node) -> str:
        """Return the text of a node."""
        return self.cut(node.start_byte, node.end_byte)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the offsets, in characters of the text of the call, of two byte offsets."""
        if self.fixed_span is not None:
            return self.fixed_span
        if not self.is_single_byte:
            # Counted in the text as it was given: cutting out a here-document keeps the number of bytes, not of characters.
            start = len(self.raw[:start].decode("utf-8", "replace"))
            end = len(self.raw[:end].decode("utf-8", "replace"))
        return self.offset + start, self.offset + end

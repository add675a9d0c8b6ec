"""Shell text to a Script, by tree-sitter-bash. Total: every string gives a Script, with its problems named.

The grammar's shared objects are loaded directly: their packages' own imports cost more than parsing a thousand commands.
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
# What tree-sitter-bash 0.25.1 calls an error and bash runs. Each can go when the grammar reads it.
_TIMED = (pattern(_COMMAND + rb"time" + _COMPOUND), rb"\1\2    ")  # time { …; }
_REWRITES = (
    _TIMED,
    (pattern(_COMMAND + rb"!" + _COMPOUND), rb"\1\2 "),  # ! { …; }
    (pattern(rb"(\bfor[ \t]+\w+)[ \t]([ \t]*do\b)"), rb"\1;\2"),  # for f do
    (pattern(rb"<>"), rb"> "),  # exec 3<>x, told apart by whoever reads the redirect
    (pattern(rb"(\$\{\w+(?:\[[@*]\])?:)\$(\w)"), rb"\1 \2"),  # ${x:$i:1}
    (pattern(rb"(\$\{\w+(?:\[[@*]\])?:[ \w]*:)\$(\w)"), rb"\1 \2"),
    (pattern(rb"([\w.*+\])])\$(?=\))"), rb"\1%"),  # $(grep foo$)
    (
        pattern(rb"(?m)(^[ \t]*\w+=(?:\$\([^()\n]*\)|[\w./-]*)) 2>/dev/null(?=[ \t]*(?:$|\|\||&&|;))"),
        rb"\1            ",
    ),  # x=$(cmd) 2>/dev/null
)
# !(a|b) and its like: any name may match, so it is read as a star. Only in text without quotes, where no other text can be meant.
_EXTENDED = pattern(rb"(?<=[\s/\w.*-])[!+@?*]\([\w.*?|/\[\]-]*\)")
_QUOTES = (b"'", b'"', b"`", b"$(")
# The grammar's scanner looks characters up in a table of 256, and crashes the process on those behind it, now and then. To bash
# they are all alike: parts of a word, and of no name. A dot is that too; words are cut from the text as it is.
_DOTTED = bytes(range(128)) + b"." * 128
_TRIALS: list[Callable[[Any, bytes], bool]] = []
_PARSERS: Any = _local()  # one a thread: a parser must not be used by two at once


def _parser() -> Any:
    try:
        return _PARSERS.parser
    except AttributeError:
        from corral.guard.shell.grammar import make_parser  # noqa: PLC0415  on first use: plain argv never needs it

        _PARSERS.parser = make_parser()
        return _PARSERS.parser


def set_parse_trial(trial: Callable[[Any, bytes], bool]) -> None:
    """Let `trial` say of every long text whether the parser can be trusted with it. Without one, all are parsed."""
    _TRIALS[:] = [trial]


def _parsed(source: bytes) -> Node:
    """Return the root of the tree; None where the trial failed."""
    parser = _parser()
    if len(source) > MAX_UNTRIED_BYTES and not all(trial(parser, source) for trial in _TRIALS):
        return None
    return parser.parse(source).root_node


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


class Script:
    """Parsed shell text. `problem` says why it cannot be trusted whole; spans are offsets into the call's own text."""

    __slots__ = ("base", "fixed", "heredocs", "leaves", "plain", "problem", "raw", "root", "source", "spent", "text")

    def __init__(self, text: str, *, base: int = 0, fixed: tuple[int, int] | None = None, parse: bool = True) -> None:
        self.text = text
        self.base = base  # where this text begins in the text of the call
        self.fixed = fixed  # or the one span that everything in it is reported at
        self.problem = ""
        self.heredocs: dict[int, Heredoc] = {}
        self.spent: set[int] = set()
        self.root: Node = None
        if not parse:  # the script of an argv call, which has none
            self.source, self.leaves, self.raw, self.plain = b"", b"", b"", True
            return
        source = self.raw = text.encode("utf-8", "surrogatepass")
        if len(source) > MAX_TEXT_BYTES:
            self.problem = f"more than {MAX_TEXT_BYTES} bytes of shell text"
            self.source, self.leaves, self.plain = b"", b"", True
            return
        if b"\0" in source or not _is_unicode(text):
            # The grammar's own scanner is not to be trusted with what is no text.
            self.problem = "a NUL byte" if b"\0" in source else "a character that is none"
            self.source, self.leaves, self.plain = b"", b"", True
            return
        if b"<<" in source:
            from corral.guard.shell.heredoc import HeredocError, extract  # noqa: PLC0415  a short program seldom needs it

            try:
                source, self.heredocs = extract(source)
            except HeredocError as error:
                self.problem = str(error)
                self.source, self.leaves, self.plain = b"", b"", True
                return
        self.leaves = source
        self.source = source if source.isascii() else source.translate(_DOTTED)
        self.plain = len(source) == len(text)
        if self.heredocs:
            self.text = source.decode("utf-8", "surrogatepass")
        self.root = _parsed(self.source)
        if self.root is None:
            self.problem = "more than the parser has time and memory for"
        elif self.root.has_error:
            self._rewrite(_REWRITES)
        elif b"time (" in source or b"time {" in source:
            self._rewrite((_TIMED,))  # without an error it is a command with an extended glob

    def _rewrite(self, rewrites: Sequence[tuple[Pattern[bytes], bytes]]) -> None:
        """Parse again without what the grammar calls an error and bash does not; every change keeps the length and what is run."""
        source = self.source
        for misread, replacement in rewrites:
            source = misread.sub(replacement, source)
        if source != self.source:
            root = _parsed(source)
            if root is not None and not root.has_error:
                self.source, self.root = source, root  # words are still cut from the text as it was
                return
        if source.isascii() and self.plain and b"(" in source and not any(quote in source for quote in _QUOTES):
            starred = _EXTENDED.sub(lambda found: b"*" * len(found[0]), source)
            root = _parsed(starred)
            if starred != source and root is not None and not root.has_error:
                self.source = self.leaves = starred
                self.root, self.text = root, starred.decode()

    def cut(self, start: int, end: int) -> str:
        """Return the text between two byte offsets."""
        if self.plain:
            return self.text[start:end]
        return self.leaves[start:end].decode("utf-8", "replace")

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where these byte offsets lie in the text of the call, in characters."""
        if self.fixed is not None:
            return self.fixed
        if not self.plain:
            # In the text as it was given: cutting a here-document out keeps bytes, not characters.
            start = len(self.raw[:start].decode("utf-8", "replace"))
            end = len(self.raw[:end].decode("utf-8", "replace"))
        return self.base + start, self.base + end

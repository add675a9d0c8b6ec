"""Expands syntax tree nodes into words as bash does: quotes, escapes, braces, tilde, variables whose value is known.

A hole (a NUL in the text of a word) stands for a part that is only known at run time. The expansion never guesses: bash passes a
word without a hole exactly as it stands here.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.braces import EXPANDED, HOLE, LITERAL, MAX_FIELDS, QUOTED, SPLIT, expand_braces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from re import Match

    from corral.guard.shell.parser import Node, Script

    Fragment = tuple[str, int]
    Value = str | list[str] | None

# A hole for a number or plain word, which changes no path. The guard refuses a call that contains this byte.
NUMBER_HOLE = "\1"
PROCESS_SUBSTITUTION = f"/dev/fd/{NUMBER_HOLE}"  # the name that bash passes for <(…)
# Variables that have a number as value unless the script assigns another; it changes no path and names no command. Not here: `$!`,
# COLUMNS and LINES, which may be empty, `$-`, whose letters may be options, and HOSTNAME, which bash takes from the environment.
PLAIN_VARIABLES = frozenset({
    "?", "$", "#", "RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID", "BASHPID", "EPOCHSECONDS", "SHLVL",
})  # fmt: skip
MAX_EXPANDED = 512 * 1024  # characters that one word may become; a longer one is unknown
_SPECIAL = frozenset("\\~*?[]{}$`'\"")
_BLANKS = " \t\n"  # the default value of IFS
_BLANK_SET = frozenset(_BLANKS)
_BLANK_RUN = pattern(r"[ \t\n]+")
_ASSIGNED_DEFAULT = pattern(r"(?s)\$\{(!?)(\w+)(\[.*\])?:?=")
# The beginning of an expansion that bash accepts. Another, such as ${1a}, ${} or ${x!}, is an error, and so is ${@:=x}.
_ACCEPTED = pattern(r"\$\{(?![@*]:?=)[#!]?(?:[A-Za-z_][A-Za-z0-9_]*+|\d++|[-@*#?$!])[-\[}%/^,~@:=+?#]")
_NAMES_OR_INDICES = pattern(r"\$\{!\w+(?:[@*]|\[[@*]\])\}")  # ${!prefix@}, ${!array[@]}
_INDIRECT = pattern(r"\$\{!(\w+)(?!\w|\[)")
_EVALUATED = pattern(r"\$\{[!#]*[\w@*]+(?:\[(?![@*]\])|(?:\[[@*]\])?:(?![-=?+]))")  # ${a[x]…}, ${text:offset:length}
_ESCAPED = pattern(r"(?s)\\(.)")
_DOUBLE_QUOTE_ESCAPE = pattern(r"\\([\\\"$`])")
_SUBSTITUTION = pattern(r"(?<!\\)(?:\\\\)*(?:\$\(|`)")
_ANSI = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_ANSI_ESCAPE = pattern(
    r"(?s)\\(?:([abeEfnrtv\\'\"?])|x([0-9a-fA-F]{1,2}|\{[0-9a-fA-F]*\}?)|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.))"
)
_NOT_ASCII = "\udc80"  # stands for an escape until the text is cut at its first NUL
_STRIPPERS = {"%": str.removesuffix, "%%": str.removesuffix, "#": str.removeprefix, "##": str.removeprefix}
_EXTENDED_GLOB = pattern(r"[?*+@!]\(")
_BEFORE_PAREN = ("?", "*", "+", "@", "!")
_LEAVES = ("word", "number", "variable_name", "special_character", "extglob_pattern", "regex", "test_operator")


class Word:
    """An argument of a command.

    `text` may contain holes. `multi` words may become several arguments, `glob` words may match files. `argument` is the index in
    the argv of the call.
    """

    __slots__ = ("argument", "end", "glob", "multi", "start", "text")

    def __init__(
        self,
        text: str,
        start: int = 0,
        end: int = 0,
        *,
        glob: bool = False,
        multi: bool = False,
        argument: int | None = None,
    ) -> None:
        self.text = text
        self.start = start
        self.end = end
        self.glob = glob
        self.multi = multi
        self.argument = argument

    def part(self, text: str) -> Word:
        """Return a word with another text at the same place."""
        return Word(text, self.start, self.end, glob=self.glob, multi=self.multi, argument=self.argument)

    @property
    def proven(self) -> bool:
        """True if the command gets exactly this text."""
        return HOLE not in self.text and NUMBER_HOLE not in self.text and not self.glob


def decode_ansi_c(text: str) -> str:
    """Decode the content of $'…' as bash does, with a hole for each escape that is no ASCII character or no plain control letter.

    Bytes make characters together, and the locale says which: $'\\xc3\\xa9' and $'\\u00e9' may both name the file é.
    """

    def decode(match: Match[str]) -> str:
        simple, hexa, short, long, octal, control = match.groups()
        if simple:
            return _ANSI[simple]
        if control:
            return chr(ord(control) & 0x1F) if control.isascii() and control.isalpha() else _NOT_ASCII
        braced = hexa is not None and hexa[0] == "{"
        code = int(octal, 8) if octal else int((hexa.strip("{}") if braced else hexa or short or long) or "0", 16)
        if octal or hexa:
            code &= 0xFF
        return chr(code) if code < 0x80 else _NOT_ASCII

    return _ANSI_ESCAPE.sub(decode, text).split("\0")[0].replace(_NOT_ASCII, HOLE)


def begins_translated_string(node: Node) -> bool:
    """Return whether a lone `$` belongs to the string behind it, as in $"…": the grammar splits them."""
    after = node.next_sibling
    if after is not None and after.type == "concatenation":
        after = after.children[0]
    is_lone = node.end_byte - node.start_byte == 1
    return is_lone and after is not None and after.type == "string" and after.start_byte == node.end_byte


def is_number(value: Value) -> bool:
    """Return whether a value is a number, known or not."""
    return isinstance(value, str) and (value == NUMBER_HOLE or value.isdigit())


def has_gap(node: Node) -> bool:
    """Return whether anything stands between two children of a node that bash reads as one word."""
    nodes = node.children
    return any(nodes[at].end_byte != nodes[at + 1].start_byte for at in range(len(nodes) - 1))


def _is_index(text: str) -> bool:
    """Return whether a subscript is a decimal number; bash reads a number that begins with 0 as octal."""
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


class Expander:
    """Expands the nodes of one script into words. A subclass supplies variables and judges every substitution."""

    __slots__ = ("script",)
    lookup: Callable[[str], Value]  # returns the value of a variable, or None if it is not known
    array: Callable[[str], Value]  # returns all elements of an array, or None if they are not known
    substitute: Callable[[Node], Value]  # judges the commands of a substitution; returns its output if that is known
    report: Callable[[str, Node], None]  # records an effect, such as `unparsed` for text that the grammar does not show
    arithmetic: Callable[[Node], None]  # judges an arithmetic expression
    set_default: Callable[[str, str | None, Node], None]  # notes that ${name:=value} may set a variable
    allow_error: Callable[[], None]  # notes that an expansion may be an error
    evaluate: Callable[[str, Node], None]  # judges text that arithmetic evaluates
    follow_arithmetic: Callable[[str], None]  # follows the assignments of an arithmetic expression
    spend: Callable[[int], None]  # counts work, about a microsecond each, and may raise
    home: Callable[[], str]  # returns the home directory that `~` stands for

    def __init__(self, script: Script) -> None:
        self.script = script

    def words(self, node: Node, kind: str = "") -> list[Word]:
        """Return the words that a node becomes: none, one, or several. A caller that knows the node's type passes it."""
        script = self.script
        start, end = node.start_byte, node.end_byte
        kind = kind or node.type
        if kind in ("word", "number", "variable_name"):
            text, first, last = script.piece(start, end)
            if _SPECIAL.isdisjoint(text) and text[:1] not in _BLANK_SET:
                return [Word(text, first, last)]
        elif kind == "raw_string":
            return [Word(script.cut(start + 1, end - 1), *script.span(start, end))]
        self._check_blanks(node)
        fragments: list[Fragment] = []
        self._collect(node, fragments, False)
        start, end = script.span(start, end)
        size = self._size(fragments)
        if size > MAX_EXPANDED:
            return [Word(HOLE, start, end, multi=True)]
        if not any(kind == LITERAL and "{" in text for text, kind in fragments):
            return self._fields(fragments, start, end)
        made: list[Word] = []
        branches = expand_braces(fragments)
        self.spend(len(branches) * (size // 256 + 10))
        if len(branches) * size > MAX_EXPANDED:
            return [Word(HOLE, start, end, multi=True)]
        for branch in branches:
            made += self._fields(branch, start, end)
            if len(made) > MAX_FIELDS:
                return [Word(HOLE, start, end, multi=True)]
        return made

    def _size(self, fragments: list[Fragment]) -> int:
        """Return the length of the text that fragments make together."""
        size = sum(len(text) for text, _ in fragments)
        self.spend((len(fragments) + size // 128) // 4)
        return size

    def text(self, node: Node) -> str:
        """Return the text that a node becomes where bash does not split it: in assignments and here-strings."""
        self._check_blanks(node)
        fragments: list[Fragment] = []
        self._collect(node, fragments, True)
        if self._size(fragments) > MAX_EXPANDED:
            return HOLE
        joined = "".join(t for t, _ in fragments)
        return self._tilde(joined) if node.type in ("word", "concatenation") and joined.startswith("~") else joined

    def _check_blanks(self, node: Node) -> None:
        """Report a word that begins with a blank: the grammar joins `ls`, a newline and `\\rm` to the words of one command."""
        for part in node.children if node.type in ("concatenation", "command_name") else (node,):
            if part.type in _LEAVES and self.script.cut(part.start_byte, part.start_byte + 1) in _BLANK_SET:
                self.report("unparsed", part)

    def scan(self, node: Node, active: bool = False) -> None:
        """Visit every substitution below a node whose own value is not needed. Where `active`, single quotes do not quote."""
        stack = [(node, active)]
        while stack:
            node, active = stack.pop()
            self.spend(2)
            kind = node.type
            if kind in ("command_substitution", "process_substitution"):
                self.substitute(node)
            elif node.child_count:
                if kind == "expansion":
                    self._expansion_hazards(node, quoted=active)
                elif kind == "arithmetic_expansion":
                    self.arithmetic(node)
                    continue
                active = active or kind == "string"
                stack.extend((child, active) for child in node.children)
            elif kind != "comment" and (active or kind not in ("raw_string", "ansi_c_string")):
                self._leaf(node)

    def _leaf(self, node: Node) -> str:
        """Return the text of a leaf; report a substitution in it, which the grammar should have parsed."""
        text = self.script.text_of(node)
        if (
            node.type == "word" and text[:1] in _BLANK_SET
        ):  # before a backslash the grammar counts a newline as part of the word
            self.report("unparsed", node)
        if ("`" in text or "$(" in text) and node.type not in ("`", "$(", "$((") and _SUBSTITUTION.search(text):
            self.report("unparsed", node)
        elif ("${" in text or "$[" in text) and node.type != text:
            from corral.guard.shell.hidden_expansions import hides_expansion  # noqa: PLC0415  few patterns need it

            if hides_expansion(text):
                self.report("unparsed", node)
        return text

    def _collect(self, node: Node, out: list[Fragment], quoted: bool) -> None:
        """Append the fragments that a node becomes."""
        kind = node.type
        script = self.script
        if kind in _LEAVES:
            self._unquoted(self._leaf(node), out, quoted)
        elif kind == "raw_string":
            out.append((script.cut(node.start_byte + 1, node.end_byte - 1), QUOTED))
        elif kind == "string":
            self._string(node, out)
        elif kind in ("concatenation", "command_name"):
            last = node.start_byte
            for child in node.children:
                self.spend(2)
                if child.type != "$" or not begins_translated_string(child):
                    if child.start_byte > last:
                        self.report("unparsed", node)
                    self._collect(child, out, quoted)
                last = child.end_byte
        elif kind == "ansi_c_string":
            out.append((decode_ansi_c(script.cut(node.start_byte + 2, node.end_byte - 1)), QUOTED))
        elif kind == "translated_string":
            for child in node.children:
                if child.type == "string":
                    self._string(child, out)
        elif kind == "simple_expansion":
            lead = script.text_of(node)
            space = lead[: len(lead) - len(lead.lstrip())]
            if space:  # in a string the grammar counts the blanks before `$` as part of the expansion
                out.append((space, QUOTED))
            if has_gap(node):  # the grammar takes `x=$ find` for x=$find
                self.report("unparsed", node)
            name = script.cut(node.children[-1].start_byte, node.end_byte)
            if name.isdigit() and len(name) > 1:  # $10 is $1 and a 0
                self._value(self.lookup(name[0]), out, quoted)
                out.append((name[1:], QUOTED))
                return
            value = self.lookup(name)
            self._value(
                self._join(value) if name == "*" and quoted else value,
                out,
                quoted and (name != "@" or value is not None),
            )
        elif kind == "expansion":
            self._expansion(node, out, quoted)
        elif kind == "command_substitution":
            self._value(self.substitute(node), out, quoted)
        elif kind == "process_substitution":
            self.substitute(node)
            out.append((PROCESS_SUBSTITUTION, QUOTED))
        elif kind == "arithmetic_expansion":
            self.arithmetic(node)
            self._value(NUMBER_HOLE, out, quoted)
        elif kind == "brace_expression":
            out.append((script.text_of(node), LITERAL))
        elif kind == "$" and node.end_byte - node.start_byte == 1:
            out.append(("$", QUOTED))
        else:
            self.report("unparsed", node)
            self.scan(node)
            out.append((HOLE, EXPANDED))

    def _unquoted(self, text: str, out: list[Fragment], quoted: bool) -> None:
        if "\\" not in text:
            out.append((text, QUOTED if quoted and text[:1] != "~" else LITERAL))
            return
        for index, piece in enumerate(_ESCAPED.split(text)):
            if index % 2:
                out.append((piece, QUOTED))
            elif piece:
                out.append((piece, LITERAL))

    def _string(self, node: Node, out: list[Fragment]) -> None:
        out.append(("", QUOTED))
        last = node.start_byte + 1
        for child in node.children[1:-1]:
            self.spend(2)
            kind = child.type
            if kind == "string_content":
                self._leaf(child)
            elif kind in ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"):
                self._quoted_text(last, child.start_byte, out)
                self._collect(child, out, True)
                last = child.end_byte
            elif child.child_count or kind == "ERROR":
                self.scan(child)
        self._quoted_text(last, node.end_byte - 1, out)

    def _quoted_text(self, start: int, end: int, out: list[Fragment]) -> None:
        if end > start:
            text = self.script.cut(start, end)
            if "\\" in text:
                text = _DOUBLE_QUOTE_ESCAPE.sub(r"\1", text)
            out.append((text, QUOTED))

    def _join(self, value: Value) -> Value:
        """Return the elements of an array as one text, as "$*" does; another IFS joins them otherwise."""
        if not isinstance(value, list):
            return value
        return " ".join(value) if self.lookup("IFS") == _BLANKS else None

    def _value(self, value: Value, out: list[Fragment], quoted: bool) -> None:
        kind = QUOTED if quoted else EXPANDED
        if value is None or (not quoted and self.lookup("IFS") != _BLANKS):  # another IFS splits it otherwise
            out.append((HOLE, kind))
        elif isinstance(value, str):
            out.append((value, kind))
        elif not value:
            out.append((HOLE, EXPANDED))  # no word, even inside quotes
        else:
            self.spend(len(value) // 4)
            for index, item in enumerate(value):
                if index:
                    out.append(("", SPLIT))
                out.append((item, kind))

    def _expansion_hazards(self, node: Node, *, quoted: bool) -> None:
        text = self.script.text_of(node)
        self.spend(len(text) // 200 + 1)
        if _ACCEPTED.match(text) is None:
            self.allow_error()
        if not quoted and ("<(" in text or ">(" in text):
            from corral.guard.shell.hidden_expansions import hides_substitution  # noqa: PLC0415  few defaults need it

            if hides_substitution(node, self.script):
                self.report("unparsed", node)
        if text.endswith("@P}"):  # prompt expansion runs the commands in the value
            self.report("unparsed", node)
        if text.startswith("${!") and not _NAMES_OR_INDICES.fullmatch(text):
            indirect = _INDIRECT.match(text)
            named = self.lookup(indirect.group(1)) if indirect is not None else None
            if not isinstance(named, str) or not named.isidentifier():
                self.evaluate(text, node)  # the value of x in ${!x} may have a subscript
        match = _ASSIGNED_DEFAULT.match(text)
        if match is not None:
            is_indirect, name, subscript = match.groups()
            known = self.lookup(name)
            if is_indirect:
                self.set_default("", None, node)
            elif subscript or not isinstance(known, str) or not known or HOLE in known or NUMBER_HOLE in known:
                value = self.text(node.children[3]) if len(node.children) == 5 else HOLE
                self.set_default(name, None if HOLE in value else value, node)
        if text.startswith("${!") or (match is not None and match.group(2).isdigit()):
            self.allow_error()
        match = _EVALUATED.match(text)
        if match is not None:
            self.evaluate(text[match.end() : -1], node)
            self.follow_arithmetic(text[match.end() - 1 : -1])

    def _expansion(self, node: Node, out: list[Fragment], quoted: bool) -> None:
        text_of = self.script.text_of
        children = node.children
        if len(children) < 4 and _ACCEPTED.match(text_of(node)) is None:
            self.allow_error()
        if len(children) == 3 and has_gap(node):  # ${ x; } runs a command since bash 5.3
            self.report("unparsed", node)
        if len(children) == 3 and children[1].type in ("variable_name", "special_variable_name"):
            return self._value(self.lookup(text_of(children[1])), out, quoted)
        text = text_of(node)
        if text.startswith("${#") and len(children) == 4:
            self._expansion_hazards(node, quoted=quoted)
            return self._value(NUMBER_HOLE, out, quoted)
        if len(children) == 3 and children[1].type == "subscript":
            parts = children[1].children
            index = text_of(parts[2]) if len(parts) == 4 else ""
            if index not in ("@", "*") and not _is_index(index):
                self.arithmetic(children[1])
            value = self.array(text_of(parts[0])) if parts else None
            if isinstance(value, list) and index in ("@", "*"):
                return self._value(self._join(value) if index == "*" and quoted else value, out, quoted)
            if isinstance(value, list) and _is_index(index) and int(index) < len(value):
                return self._value(value[int(index)], out, quoted)
        name = next((c for c in children if c.type == "variable_name"), None)
        operator = children[2].type if len(children) > 3 and children[1].type == "variable_name" else ""
        known = self.lookup(text_of(name)) if name is not None else None
        self._expansion_hazards(node, quoted=quoted)
        for child in children[2:]:
            self.scan(child, quoted)
        if operator in (":-", "-", ":=", "=", ":?", "?") and isinstance(known, str) and known and HOLE not in known:
            return self._value(known, out, quoted)
        if operator in (":-", ":=") and known == "" and len(children) == 5 and not (quoted and "'" in text):
            return self._collect(children[3], out, quoted)
        if operator in _STRIPPERS and isinstance(known, str) and len(children) == 5:
            ending = text_of(children[3])
            if _SPECIAL.isdisjoint(ending) and "(" not in ending and HOLE not in known and NUMBER_HOLE not in known:
                return self._value(_STRIPPERS[operator](known, ending), out, quoted)
        several = "[@]" in text or text.startswith(("${@", "${!"))  # any number of words, even inside quotes
        return self._value(None, out, quoted and not several)

    def _tilde(self, text: str) -> str:
        head, slash, rest = text.partition("/")
        if head == "~":
            return self.home() + slash + rest
        if head in ("~+", "~-"):
            return HOLE + slash + rest
        return f"/home/{head[1:]}{slash}{rest}"

    def _fields(self, fragments: list[Fragment], start: int, end: int) -> list[Word]:
        """Split fragments into words where bash does."""
        words: list[Word] = []
        text, glob, multi, begun = "", False, False, False
        for index, (piece, kind) in enumerate(fragments):
            if kind == SPLIT:
                if begun:  # an empty element is no word without quotes
                    words.append(Word(text, start, end, glob=glob, multi=multi))
                text, glob, multi, begun = "", False, False, False
                continue
            if kind == QUOTED:
                text += piece
                begun = True
                continue
            if "*" in piece or "?" in piece or "[" in piece:
                glob = True
            if kind == LITERAL:
                if index == 0 and piece.startswith("~"):
                    text = self._tilde(piece)
                elif index == 0 and "=~" in piece and piece.partition("=")[0].isidentifier():
                    name, _, value = piece.partition("=")  # bash expands `~` here although the word is no assignment
                    text = f"{name}={self._tilde(value) if value.startswith('~') else value}"
                else:
                    text += piece
                begun = begun or bool(piece)
            else:
                multi = multi or HOLE in piece
                parts = _BLANK_RUN.split(piece) if not _BLANK_SET.isdisjoint(piece) else [piece]
                text += parts[0]
                begun = begun or bool(parts[0])
                for part in parts[1:]:
                    if begun:
                        words.append(Word(text, start, end, glob=glob, multi=multi))
                    text, begun = part, bool(part)
        if begun:
            words.append(Word(text, start, end, glob=glob, multi=multi))
        if any(kind == EXPANDED and ("(" in piece or piece[-1:] in _BEFORE_PAREN) for piece, kind in fragments):
            for word in words:
                if _EXTENDED_GLOB.search(word.text):  # of a variable: x='@(..)'; cat $x/y
                    word.text, word.glob, word.multi = HOLE, False, True
        return words

"""Words as bash makes them: quotes, escapes, braces, tilde, constant variables. What only running can tell becomes a hole.

A hole is a NUL in the text of a word, which no argument can hold. Never guesses: a word without a hole is exactly what bash would pass.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.shell.braces import EXPANDED, HOLE, LITERAL, MAX_FIELDS, QUOTED, SPLIT, expand_braces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match
    from typing import Any

    from corral.guard.shell.parser import Script

    Node = Any
    Fragment = tuple[str, int]
    Value = str | list[str] | None

NUMBER_HOLE = "\1"  # a hole that can only be a number or a plain word: it changes no path (a call that holds this byte itself is refused)
PROCESS_SUBSTITUTION = f"/dev/fd/{NUMBER_HOLE}"  # the name of a process substitution
_SPECIAL = frozenset("\\~*?[]{}$`'\"")
_BLANKS = " \t\n"  # what IFS is unless it is set
_DEFAULT = pattern(r"(?s)\$\{(\w+)(?:\[.*\])?:?=")
_ESCAPED = pattern(r"(?s)\\(.|\n)")
_BLANK_RUN = pattern(r"[ \t\n]+")
_BLANK_SET = frozenset(_BLANKS)
_HIDDEN = pattern(r"(?<!\\)(?:\\\\)*(?:\$\(|`)")
# Variables whose value, where nothing assigned another, is a plain number or word that changes no path and names no command.
PLAIN_VARIABLES = frozenset(
    [
        "?",
        "$",
        "!",
        "#",
        "-",
        "RANDOM",
        "SECONDS",
        "LINENO",
        "UID",
        "EUID",
        "PPID",
        "BASHPID",
        "EPOCHSECONDS",
        "SHLVL",
        "COLUMNS",
        "LINES",
        "HOSTNAME",
        "OSTYPE",
        "MACHTYPE",
        "HOSTTYPE",
    ]
)
_ANSI = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
_ANSI_ESCAPE = pattern(
    r"(?s)\\(?:([abeEfnrtv\\'\"?])|x([0-9a-fA-F]{1,2}|\{[0-9a-fA-F]*\}?)|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.))"
)


_STRIPPERS = {"%": str.removesuffix, "%%": str.removesuffix, "#": str.removeprefix, "##": str.removeprefix}


class Word:
    """One argument: `text` with holes, where it stands, whether it can become several (`multi`) or match files (`glob`)."""

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
        """Return a word for a part of this one, at the same place."""
        return Word(text, self.start, self.end, glob=self.glob, multi=self.multi, argument=self.argument)

    @property
    def proven(self) -> bool:
        """Whether the text is exactly what the command would get."""
        return HOLE not in self.text and NUMBER_HOLE not in self.text and not self.glob


def decode_ansi_c(text: str) -> str:
    """Decode the inside of $'…' as bash does."""

    def one(match: Match[str]) -> str:
        simple, hexa, short, long, octal, control = match.groups()
        if simple:
            return _ANSI[simple]
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if control:
            return chr(ord(control) & 0x1F)
        if hexa and hexa[0] == "{":
            return chr(int(hexa.strip("{}") or "0", 16) & 0xFF)
        code = int(hexa or short or long, 16)
        return chr(code) if code < 0x110000 else "\ufffd"

    return _ANSI_ESCAPE.sub(one, text).split("\0")[0]


class Expander:
    """Reduces the nodes of one script to words. The walk supplies variables, and judges every substitution it is handed."""

    __slots__ = ("script",)

    def __init__(self, script: Script) -> None:
        self.script = script

    def lookup(self, name: str) -> Value:
        """Return the value of a variable, or None when it is not known."""
        raise NotImplementedError

    def array(self, name: str) -> Value:
        """Return the value of a variable with all its elements, or None when it is not known."""
        raise NotImplementedError

    def substitute(self, node: Node) -> Value:
        """Judge the commands of a substitution; return its output if that is known."""
        raise NotImplementedError

    def hidden(self, node: Node, text: str) -> None:
        """Report text that bash evaluates and the grammar does not show."""
        raise NotImplementedError

    def arithmetic(self, node: Node) -> None:
        """Judge what arithmetic evaluates."""
        raise NotImplementedError

    def defaulted(self, name: str) -> None:
        """Note that ${name:=value} may have set a variable."""
        raise NotImplementedError

    def home(self) -> str:
        """Return the home directory that `~` stands for."""
        raise NotImplementedError

    def words(self, node: Node) -> list[Word]:
        """Return the words that a node becomes: none, one, or several."""
        script = self.script
        start, end = node.start_byte, node.end_byte
        kind = node.type
        if kind in ("word", "number", "variable_name"):
            text = script.cut(start, end)
            if _SPECIAL.isdisjoint(text):
                return [Word(text, *script.span(start, end))]
        elif kind == "raw_string":
            return [Word(script.cut(start + 1, end - 1), *script.span(start, end))]
        fragments: list[Fragment] = []
        self._collect(node, fragments, False)
        return self._assemble(fragments, *script.span(start, end))

    def text(self, node: Node) -> str:
        """Return what a node becomes where no splitting happens (assignments, here-strings): one text, with holes."""
        fragments: list[Fragment] = []
        self._collect(node, fragments, True)
        joined = "".join(t for t, _ in fragments)
        return self._tilde(joined) if node.type in ("word", "concatenation") and joined.startswith("~") else joined

    def scan(self, node: Node, active: bool = False) -> None:
        """Visit every substitution below a node whose own value is not needed; where `active`, single quotes quote nothing."""
        stack = [(node, active)]
        while stack:
            node, active = stack.pop()
            kind = node.type
            if kind in ("command_substitution", "process_substitution"):
                self.substitute(node)
            elif node.child_count:
                if kind == "expansion":
                    self._expansion_hazards(node)
                elif kind == "arithmetic_expansion":
                    self.arithmetic(node)
                    continue
                active = active or kind == "string"
                stack.extend((child, active) for child in node.children)
            elif kind != "comment" and (active or kind not in ("raw_string", "ansi_c_string")):
                self._leaf(node)

    def _leaf(self, node: Node) -> str:
        """Return a leaf's text; one that swallowed a substitution is a deviation of the grammar."""
        text = self.script.cut(node.start_byte, node.end_byte)
        if ("`" in text or "$(" in text) and node.type not in ("`", "$(", "$((") and _HIDDEN.search(text):
            self.hidden(node, text)
        return text

    def _collect(self, node: Node, out: list[Fragment], quoted: bool) -> None:
        kind = node.type
        script = self.script
        if kind in (
            "word",
            "number",
            "variable_name",
            "special_character",
            "extglob_pattern",
            "regex",
            "test_operator",
        ):
            self._unquoted(self._leaf(node), out, quoted)
        elif kind == "raw_string":
            out.append((script.cut(node.start_byte + 1, node.end_byte - 1), QUOTED))
        elif kind == "string":
            self._string(node, out)
        elif kind in {"concatenation", "command_name"}:
            last = node.start_byte
            for child in node.children:
                if child.type == "$" and self.translates(child):
                    last = child.end_byte
                    continue
                if child.start_byte > last:  # a line continuation inside the word
                    gap = script.cut(last, child.start_byte)
                    if gap.replace("\\\n", ""):
                        self.hidden(node, gap)
                self._collect(child, out, quoted)
                last = child.end_byte
        elif kind == "ansi_c_string":
            out.append((decode_ansi_c(script.cut(node.start_byte + 2, node.end_byte - 1)), QUOTED))
        elif kind == "translated_string":
            for child in node.children:
                if child.type == "string":
                    self._string(child, out)
        elif kind == "simple_expansion":
            lead = script.cut(node.start_byte, node.end_byte)
            space = lead[: len(lead) - len(lead.lstrip())]
            if space:  # inside a string the grammar counts the blanks before `$` as part of the expansion
                out.append((space, QUOTED))
            name = script.cut(node.children[-1].start_byte, node.end_byte)
            value = self.lookup(name)
            if name == "@" and not value:
                out.append((HOLE, EXPANDED))  # any number of words, even inside quotes
            else:
                self._value(self._joined(value) if name == "*" and quoted else value, out, quoted)
        elif kind == "expansion":
            self._expansion(node, out, quoted)
        elif kind == "command_substitution":
            self._value(self.substitute(node), out, quoted)
        elif kind == "process_substitution":
            self.substitute(node)
            out.append((PROCESS_SUBSTITUTION, QUOTED))
        elif kind == "arithmetic_expansion":
            self.arithmetic(node)
            out.append((NUMBER_HOLE, QUOTED))
        elif kind == "brace_expression":
            out.append((script.cut(node.start_byte, node.end_byte), LITERAL))
        elif kind == "$":
            out.append(("$", QUOTED))
        else:
            self.hidden(node, script.cut(node.start_byte, node.end_byte))
            self.scan(node)
            out.append((HOLE, EXPANDED))

    def translates(self, node: Node) -> bool:
        """Say whether a lone `$` belongs to the string right behind it, as in $"…": the grammar splits them."""
        after = node.next_sibling
        return after is not None and after.type == "string" and after.start_byte == node.end_byte

    def _unquoted(self, text: str, out: list[Fragment], quoted: bool) -> None:
        if "\\" not in text:
            out.append((text, QUOTED if quoted and text[:1] != "~" else LITERAL))
            return
        pieces = _ESCAPED.split(text)
        for index, piece in enumerate(pieces):
            if index % 2:
                if piece != "\n":
                    out.append((piece, QUOTED))
            elif piece:
                out.append((piece, LITERAL))

    def _string(self, node: Node, out: list[Fragment]) -> None:
        script = self.script
        out.append(("", QUOTED))
        last = node.start_byte + 1
        for child in node.children[1:-1]:
            kind = child.type
            if kind == "string_content":
                self._leaf(child)
                continue
            if kind not in ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"):
                if child.child_count or kind == "ERROR":
                    self.scan(child)
                continue
            if child.start_byte > last:
                out.append((_dequote(script.cut(last, child.start_byte)), QUOTED))
            self._collect(child, out, True)
            last = child.end_byte
        end = node.end_byte - 1
        if end > last:
            out.append((_dequote(script.cut(last, end)), QUOTED))

    def _joined(self, value: Value) -> Value:
        """Return the elements of an array as one text, as "$*" is; by what they are joined, IFS says."""
        if not isinstance(value, list):
            return value
        return " ".join(value) if self.lookup("IFS") == _BLANKS else None

    def _value(self, value: Value, out: list[Fragment], quoted: bool) -> None:
        kind = QUOTED if quoted else EXPANDED
        if value is None or (not quoted and self.lookup("IFS") != _BLANKS):  # where it is split, only running can tell
            out.append((HOLE, kind))
        elif isinstance(value, str):
            out.append((value, kind))
        else:
            for index, item in enumerate(value):
                if index:
                    out.append(("", SPLIT))
                out.append((item, kind))

    def _expansion_hazards(self, node: Node) -> None:
        text = self.script.cut(node.start_byte, node.end_byte)
        if text.endswith("@P}"):  # prompt expansion runs what the value holds
            self.hidden(node, text)
        match = _DEFAULT.match(text)
        if match is not None and not self.lookup(match.group(1)):
            self.defaulted(match.group(1))

    def _expansion(self, node: Node, out: list[Fragment], quoted: bool) -> None:
        script = self.script
        children = node.children
        if len(children) == 3 and children[1].type in ("variable_name", "special_variable_name"):
            return self._value(self.lookup(script.cut(children[1].start_byte, children[1].end_byte)), out, quoted)
        text = script.cut(node.start_byte, node.end_byte)
        if text.startswith("${#") and len(children) == 4:
            out.append((NUMBER_HOLE, QUOTED))
            return None
        if len(children) == 3 and children[1].type == "subscript":
            parts = children[1].children
            index = script.cut(parts[2].start_byte, parts[2].end_byte) if len(parts) == 4 else ""
            if index not in ("@", "*") and not index.isdigit():
                self.arithmetic(children[1])
            value = self.array(script.cut(parts[0].start_byte, parts[0].end_byte)) if parts else None
            if isinstance(value, list) and index in ("@", "*"):
                return self._value(self._joined(value) if index == "*" and quoted else value, out, quoted)
            if isinstance(value, list) and index.isdigit() and int(index) < len(value):
                return self._value(value[int(index)], out, quoted)
        name = next((c for c in children if c.type == "variable_name"), None)
        operator = (
            children[2].type if len(children) > 3 and name is not None and children[1].type == "variable_name" else ""
        )
        known = self.lookup(script.cut(name.start_byte, name.end_byte)) if name is not None else None
        self._expansion_hazards(node)
        for child in children[2:]:
            self.scan(child, quoted)
        if operator in (":-", "-", ":=", "=", ":?", "?") and isinstance(known, str) and known and HOLE not in known:
            return self._value(known, out, quoted)
        if operator in (":-", ":=") and known == "" and len(children) == 5 and not (quoted and "'" in text):
            return self._collect(children[3], out, quoted)
        if operator in _STRIPPERS and isinstance(known, str) and HOLE not in known and len(children) == 5:
            ending = script.cut(children[3].start_byte, children[3].end_byte)
            if _SPECIAL.isdisjoint(ending):
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

    def _assemble(self, fragments: list[Fragment], start: int, end: int) -> list[Word]:
        if any(kind == LITERAL and "{" in text for text, kind in fragments):
            made: list[Word] = []
            for branch in expand_braces(fragments):
                made += self._fields(branch, start, end)
                if len(made) > MAX_FIELDS:
                    return [Word(HOLE, start, end, multi=True)]
            return made
        return self._fields(fragments, start, end)

    def _fields(self, fragments: list[Fragment], start: int, end: int) -> list[Word]:
        words: list[Word] = []
        text, glob, multi, begun = "", False, False, False
        for index, (piece, kind) in enumerate(fragments):
            if kind == SPLIT:
                words.append(Word(text, start, end, glob=glob, multi=multi))
                text, glob, multi, begun = "", False, False, False
                continue
            if kind == LITERAL:
                if index == 0 and piece.startswith("~"):
                    text = self._tilde(piece)
                elif index == 0 and "=~" in piece and piece.partition("=")[0].isidentifier():
                    name, _, value = piece.partition("=")  # as in an assignment, even where the word is none
                    text = f"{name}={self._tilde(value) if value.startswith('~') else value}"
                else:
                    text += piece
                if "*" in piece or "?" in piece or "[" in piece:
                    glob = True
                begun = begun or bool(piece)
            elif kind == QUOTED:
                text += piece
                begun = True
            else:
                if HOLE in piece:
                    multi = True
                if "*" in piece or "?" in piece or "[" in piece:
                    glob = True
                parts = _BLANK_RUN.split(piece) if not _BLANK_SET.isdisjoint(piece) else [piece]
                text += parts[0]
                begun = begun or bool(parts[0])
                for part in parts[1:]:
                    if begun:
                        words.append(Word(text, start, end, glob=glob, multi=multi))
                    text, begun = part, bool(part)
        if begun:
            words.append(Word(text, start, end, glob=glob, multi=multi))
        return words


_DQ_ESCAPE = pattern(r"\\([\\\"$`\n])")


def _dequote(text: str) -> str:
    if "\\" not in text:
        return text
    return _DQ_ESCAPE.sub(lambda m: "" if m.group(1) == "\n" else m.group(1), text)

"""What one command does, read from its row: options, operands, what they run, read, write, send. Rows are data; this is their only reader.

An unknown option is taken as a flag, an unknown command as one that may read its path-like arguments: danger is looked for
everywhere, and nothing here proves more than its row says.
"""

from __future__ import annotations

from corral import languages, network
from corral.expand import HOLE, Word
from corral.rulebook import row as row_of
from corral.rulebook import variable as variable_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.expand import Value
    from corral.walk import Frame, Walker

    Row = dict[str, Any]
    Slot = tuple[str, str, str, str, tuple[str, ...]]

_PURE = {
    "rewrites": "history",
    "discards": "discard",
    "privileges": "privilege",
    "kills": "process",
    "changes": "system",
    "installs": "install",
    "sends": "network",
    "listens": "network-listen",
    "runs": "code-option",
    "loads": "code-loaded",
}
_PATHS = frozenset({"reads", "writes", "deletes", "loads"})
_SYSTEM_PATH = ("/usr/", "/bin", "/sbin", "/lib", "/opt/", "/snap/")
_SAME_SHELL = frozenset({"eval", "source", "."})


class Act:
    """One command, and its effects as (key or verb, word, detail)."""

    __slots__ = ("cwds", "depth", "effects", "name", "real", "row", "words")

    def __init__(self, name: str, words: list[Word], depth: int, cwds: tuple[str, ...] | None) -> None:
        self.name = name
        self.words = words
        self.depth = depth
        self.cwds = cwds
        self.real = ""  # the base name that decides, behind links and copies
        self.row: Row | None = None
        self.effects: list[tuple[str, Word, str]] = []


def known_output(acts: list[Act]) -> str | None:
    """Return what a single echo, printf or pwd prints, when that is certain."""
    if len(acts) != 1 or acts[0].name not in ("echo", "printf", "pwd"):
        return None
    act = acts[0]
    words = act.words[1:]
    if act.name == "pwd":
        return act.cwds[0] if act.cwds and len(act.cwds) == 1 and not words else None
    if act.effects or not all(w.proven for w in words):
        return None
    texts = [w.text for w in words]
    if act.name == "echo":
        while texts and texts[0] in ("-n", "-e", "-ne", "-en"):
            texts.pop(0)
        return None if any("\\" in t for t in texts) else " ".join(texts)
    if len(texts) == 1 and "%" not in texts[0] and "\\" not in texts[0]:
        return texts[0]
    if len(texts) == 2 and texts[0] in ("%s", "%s\\n"):
        return texts[1]
    return None


def assign(walker: Walker, frame: Frame, act: Act, name: str, value: Value, word: Word) -> None:
    """Set a variable, and judge the ones that change what later commands mean or load."""
    frame.scope.variables[name] = None if isinstance(value, str) and HOLE in value else value
    text = value if isinstance(value, str) else HOLE
    if isinstance(value, str) and ("$(" in value or "`" in value) and "[" in value:
        walker.tainted = True
    if name == "PATH":
        for part in text.split(":"):
            if part == HOLE or part.startswith(_SYSTEM_PATH):
                continue
            act.effects.append(("shadow", word, f": {part or 'an empty entry'} comes into PATH"))
    elif name == "IFS":
        frame.scope.variables = {n: v if isinstance(v, str) and v.isalnum() else None for n, v in frame.scope.variables.items()}
    slots = variable_slots(name)
    if slots and text:
        act.effects.append(("code-option" if slots[0][0] == "runs" else "code-loaded", word.part(f"{name}={text}"), ""))
        reader = _Reader(walker, frame, act, {"id": f"variable-{name}", "options": {}, "operands": ()})
        for slot in slots:
            reader.fill(slot, word.part(text))


def assign_dynamic(walker: Walker, frame: Frame, act: Act, word: Word) -> None:
    """Judge an assignment that a declaration makes of an expanded word."""
    name, equals, value = word.text.partition("=")
    if HOLE in name:
        frame.scope.variables = dict.fromkeys(frame.scope.variables)
    elif equals:
        assign(walker, frame, act, name.rstrip("+"), value if HOLE not in value else None, word.part(value))


def judge_words(
    walker: Walker,
    frame: Frame,
    words: list[Word],
    assignments: Iterable[tuple[str, Value, Word]],
    targets: Iterable[tuple[str, Word]],
    whole: Word,
) -> None:
    """Record one simple command: its assignments, its redirects, and what its words do."""
    act = Act("", words or [whole], frame.depth, frame.scope.cwds)
    act.effects += [(verb, word, "") for verb, word in targets]
    walker.acts.append(act)
    if not words:
        for name, value, word in assignments:
            assign(walker, frame, act, name, value, word)
        return
    saved: dict[str, Any] = {}
    for name, value, word in assignments:
        saved.setdefault(name, frame.scope.variables.get(name, saved))
        assign(walker, frame, act, name, value, word)
    command(walker, frame, words, act, direct=True)
    for name, value in saved.items():  # a prefix lasts for its command only
        if value is saved:
            frame.scope.variables.pop(name, None)
        else:
            frame.scope.variables[name] = value


def command(walker: Walker, frame: Frame, words: list[Word], act: Act | None = None, *, direct: bool = False) -> None:
    """Judge a command given as words, however it came about."""
    if act is None:
        act = Act("", words, frame.depth, frame.scope.cwds)
        walker.acts.append(act)
    first = words[0]
    if not first.proven:
        act.effects.append(("name-unproven", first, ""))
        return
    act.name = first.text
    if direct and act.name in frame.scope.functions:
        walker.call_function(act.name, words, frame)
        return
    base = act.name.rpartition("/")[2]
    if "/" in act.name:
        act.effects.append(("runs", first, ""))
        base = _program(walker, frame, act, first, base)
    elif walker.machine.path:
        _shadowed(walker, frame, act, first)
    act.real = base
    row = row_of(base)
    if row is None:
        row = _GUESS
    act.row = row
    _Reader(walker, frame, act, row).read(words)


def _program(walker: Walker, frame: Frame, act: Act, first: Word, base: str) -> str:
    """Return the name that decides for a program given by its path: what a link or a copy made in this call really is."""
    for cwd in frame.scope.cwds or ():
        absolute = walker.machine.absolute(first.text, cwd)
        if absolute in walker.copies:
            return walker.copies[absolute]
        if absolute in walker.written or HOLE in walker.written:
            act.effects.append(("run-written", first, ""))
        if not absolute.startswith(_SYSTEM_PATH):
            real = walker.machine.resolve(first.text, cwd).rpartition("/")[2]
            if real != base and row_of(real) is not None:
                return real
    return base


def _shadowed(walker: Walker, frame: Frame, act: Act, first: Word) -> None:
    for folder in walker.machine.path:
        if walker.machine.exists(first.text, folder):
            act.effects.append(("runs", first.part(f"{folder}/{first.text}"), ""))
            return


_GUESS: Row = {"id": "unknown", "style": "guess", "options": {}, "operands": (("reads", "any", "*", "", ()),)}


class _Reader:
    """Reads the words of one command by one row."""

    __slots__ = ("act", "frame", "marks", "operand_effects", "operands", "row", "seen", "walker")

    def __init__(self, walker: Walker, frame: Frame, act: Act, row: Row) -> None:
        self.walker = walker
        self.frame = frame
        self.act = act
        self.row = row
        self.seen: set[str] = set()
        self.operands: list[Word] = []
        self.operand_effects: list[str] = []
        self.marks: tuple[str, ...] = ("{}",)

    def emit(self, key: str, word: Word, detail: str = "") -> None:
        """Record an effect."""
        self.act.effects.append((key, word, detail))

    # ---- from words to slots

    def read(self, words: list[Word]) -> None:
        """Read all words behind the name."""
        row = self.row
        for effect, kind, _, _, _ in row.get("effects", ()):
            if kind:
                self.fill((effect, kind, "", "", ()), words[0])
            else:
                self.emit(_PURE[effect], words[0])
        style = row["style"]
        rest = words[1:]
        if style == "find":
            self._find(rest)
        elif style == "keyvalue":
            self._keyvalue(rest)
        elif style == "none":
            self._operands(rest)
        else:
            if style == "tar" and rest and rest[0].proven and rest[0].text and not rest[0].text.startswith("-"):
                rest = [rest[0].part("-" + rest[0].text), *rest[1:]]
            self._options(rest, permute=style != "posix", long_dash=style == "longdash")
        self._finish(words)

    def _options(self, words: list[Word], *, permute: bool, long_dash: bool) -> None:
        options = self.row["options"]
        operands: list[Word] = []
        index = 0
        size = len(words)
        sub = self.row.get("sub")
        while index < size:
            word = words[index]
            text = word.text
            index += 1
            if text == "--":
                operands += words[index:]
                break
            if len(text) < 2 or text[0] != "-":
                if text[:1] == "+" and text[:2] in options:
                    index = self._option(text[:2], text[2:], word, words, index)
                    continue
                operands.append(word)
                if sub is not None:
                    self._subcommand(sub, words[index - 1 :])
                    return
                if not permute or self._takes_rest():
                    operands += words[index:]
                    break
                continue
            if text[1] == "-" or long_dash:
                name, equals, value = text.partition("=")
                slots = options.get(name)
                if slots is None and not long_dash:
                    name = self._abbreviated(name)
                    slots = options.get(name)
                if slots is None and long_dash:
                    prefix = self._prefix(text)
                    if prefix:
                        index = self._option(prefix, text[len(prefix) :], word, words, index)
                        continue
                if slots is None:
                    self.seen.add(name)
                    if equals:
                        self.fill(("reads", "any", "", "", ()), word.part(value))
                    elif long_dash and len(text) > 2:
                        self.fill(("reads", "any", "", "", ()), word.part(text[2:]))
                    continue
                stopped = index
                index = self._option(name, value if equals else None, word, words, index)
                if index < 0:
                    operands += words[stopped:] if index == -1 else []
                    break
                continue
            index, done = self._cluster(text, word, words, index)
            if done:
                break
        self._operands(operands)

    def _takes_rest(self) -> bool:
        """Say whether the first operand is a command or a script, behind which options are not ours."""
        slots = self.row["operands"]
        return bool(slots) and slots[0][1] in ("argv", "script") and slots[0][2] != "*"

    def _cluster(self, text: str, word: Word, words: list[Word], index: int) -> tuple[int, bool]:
        options = self.row["options"]
        if text in options:  # a whole spelling with one dash, such as `-exec`
            after = self._option(text, None, word, words, index)
            return (len(words), True) if after < 0 else (after, False)
        at = 1
        while at < len(text):
            name = "-" + text[at]
            slots = options.get(name)
            at += 1
            if slots is None:
                self.seen.add(name)
                if at == 2 and len(text) > 2 and not text[1].isdigit():
                    # Unknown letter first: the rest may be its value (-IPATH).
                    self.fill(("reads", "any", "", "", ()), word.part(text[2:]))
                continue
            if not slots or not slots[0][1]:
                self._option(name, None, word, words, index)
                continue
            attached = text[at:]
            if slots[0][2] == "?":
                if attached:
                    self._option(name, attached, word, words, index)
                else:
                    self._option(name, "", word, words, index)
                return index, False
            after = self._option(name, attached or None, word, words, index)
            return (len(words), True) if after < 0 else (after, False)
        return index, False

    def _abbreviated(self, name: str) -> str:
        longs = self.row.get("longs")
        if not longs or len(name) < 3:
            return name
        found = [o for o in longs if o.startswith(name)]
        if len(found) > 1:  # ambiguous to us: take the one that does most
            found.sort(key=lambda o: not self.row["options"][o])
        return found[0] if found else name

    def _prefix(self, text: str) -> str:
        """Return the longest option that a word with one dash begins with and that takes an attached value."""
        options = self.row["options"]
        for end in range(len(text) - 1, 1, -1):
            slots = options.get(text[:end])
            if slots and slots[0][1]:
                return text[:end]
        return ""

    def _option(self, name: str, value: str | None, word: Word, words: list[Word], index: int) -> int:
        """Fill an option's slots; return the next index, or -1 when what follows belongs to the code it was given, -2 when used up."""
        self.seen.add(name)
        stop = 0
        for position, slot in enumerate(self.row["options"][name]):
            effect, kind, many, label, _ = slot
            if not kind:
                self.emit(_PURE[effect], word.part(name), label)
                continue
            if kind in ("argv", "argv;"):
                rest = ([word.part(value)] if value else []) + words[index:]
                used = self._command(rest, until=kind == "argv;")
                return index + used if kind == "argv;" else -2
            if kind == "operands":
                self.operand_effects.append(effect)
                continue
            if kind == "stdin":
                self.code_from_stdin(word)
                continue
            if position == 0 and value is not None:
                if value or many != "?":
                    self.fill(slot, word.part(value))
            elif many == "?":
                pass
            elif index < len(words):
                self.fill(slot, words[index])
                index += 1
            if many == "stop":
                stop = -1
        return stop or index

    def _find(self, words: list[Word]) -> None:
        index = 0
        operands: list[Word] = []
        while index < len(words):
            text = words[index].text
            if text[:1] == "-" and text not in ("-H", "-L", "-P") and len(text) > 1 or text in ("(", ")", "!", ","):
                break
            if text not in ("-H", "-L", "-P"):
                operands.append(words[index])
            index += 1
        self._operands(operands or [Word(".", words[0].start if words else 0)])
        options = self.row["options"]
        while index < len(words):
            word = words[index]
            index += 1
            if word.text in options:
                index = self._option(word.text, None, word, words, index)
                if index < 0:
                    break
            elif not word.proven and HOLE in word.text:
                self.emit("word-unproven", word)

    def _keyvalue(self, words: list[Word]) -> None:
        operands: list[Word] = []
        for word in words:
            key, equals, value = word.text.partition("=")
            slots = self.row["options"].get(key + "=") if equals else None
            if slots is None:
                operands.append(word)
            for slot in slots or ():
                self.fill(slot, word.part(value))
        self._operands(operands)

    def _subcommand(self, table: dict[str, Row], words: list[Word]) -> None:
        name = words[0]
        if not name.proven:
            self.emit("name-unproven", name)
            return
        row = table.get(name.text)
        if row is None:
            row = table.get("")
            if row is None:
                self._operands_by((("reads", "any", "*", "", ()),), words)  # a subcommand nobody described
                return
        inner = _Reader(self.walker, self.frame, self.act, {**row, "config": row.get("config") or self.row.get("config", {})})
        inner.seen = self.seen
        inner.read(words)

    # ---- operands

    def _operands(self, words: list[Word]) -> None:
        self.operands = words
        self._operands_by(self.row["operands"], words)

    def _operands_by(self, slots: tuple[Slot, ...], words: list[Word]) -> None:
        index = 0
        slots = tuple(s for s in slots if not (s[4] and self.seen.intersection(s[4])))
        for position, slot in enumerate(slots):
            _, kind, many, _, _ = slot
            if kind == "argv":
                if index < len(words):
                    self._command(words[index:], until=False)
                return
            if kind == "assign":
                while index < len(words) and "=" in words[index].text and not words[index].text.startswith("-"):
                    name, _, value = words[index].text.partition("=")
                    assign(self.walker, self.frame, self.act, name, value, words[index].part(value))
                    index += 1
                continue
            if kind == "shell" and many == "*":  # eval: its operands are joined
                if words[index:]:
                    joined = words[index].part(" ".join(w.text for w in words[index:]))
                    joined.end = words[-1].end
                    self.fill((slot[0], "shell", "", slot[3], ()), joined)
                return
            if many == "*":
                after = len(slots) - position - 1  # `cp SOURCE* TARGET`: what follows takes its words from the end
                stop = max(index, len(words) - after)
                for word in words[index:stop]:
                    self.fill(slot, word)
                index = stop
            elif index < len(words):
                self.fill(slot, words[index])
                index += 1

    def _finish(self, words: list[Word]) -> None:
        for effect in self.operand_effects:
            for word in self.operands:
                self.emit(effect, word)
                if effect == "writes":
                    self.walker.note_written(word, self.act.cwds)
        if not self.operands and "bare" in self.row :
            for slot in self.row["bare"]:
                if not (slot[4] and self.seen.intersection(slot[4])):
                    self.fill(slot, words[0])

    def _command(self, words: list[Word], *, until: bool) -> int:
        """Judge a command inside this one; return how many words it took."""
        used = len(words)
        if until:
            for index, word in enumerate(words):
                if word.text in (";", "+"):
                    used = index + 1
                    words = words[:index]
                    break
        words = [self._unmarked(w) for w in words]
        if self.row.get("appends"):
            words.append(Word(HOLE, words[-1].end if words else 0, multi=True))
        if words:
            from corral.walk import MAX_DEPTH, Frame, PastLimit  # noqa: PLC0415  the walk imports this module

            if self.frame.depth + 1 > MAX_DEPTH:
                raise PastLimit(f"more than {MAX_DEPTH} commands inside one another")
            inner = Frame(self.walker, self.frame.script, self.frame.scope, self.frame.depth + 1, self.frame.stdin)
            command(self.walker, inner, words)
        return used

    def _unmarked(self, word: Word) -> Word:
        """Return a word with the places where the program puts what it finds as holes."""
        text = word.text
        for mark in self.marks:
            text = text.replace(mark, HOLE)
        return word if text == word.text else word.part(text)

    def mark(self, effect: str, word: Word, label: str = "") -> None:
        """Remember the string that stands for what the program finds."""
        self.marks = (*self.marks, word.text) if word.text else self.marks

    # ---- slots

    def fill(self, slot: Slot, word: Word) -> None:
        """Judge what a word does in its slot."""
        effect, kind, many, label, _ = slot
        if kind == "text" or kind == "ref":
            return
        if not kind:
            self.emit(_PURE[effect], word, label)
            return
        handler = _KINDS.get(kind)
        if handler is not None:
            handler(self, effect, word, label)
        else:
            languages.read(kind[5:], self, effect, word)

    def path(self, effect: str, word: Word, label: str = "") -> None:
        """Record that a path is read, written, deleted, loaded or entered."""
        if effect == "chdir":
            self._chdir(word)
            return
        if effect == "loads":
            self.emit("code-loaded", word, label)
            effect = "reads"
        if effect == "runs":
            self.script("runs", word, label)
            return
        self.emit(effect, word, label)
        if effect == "writes":
            self.walker.note_written(word, self.act.cwds)

    def any(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a word that nobody described: if it looks like a path it may be read or written."""
        for part in candidates(word, self.walker, self.act.cwds):
            self.emit("reads", part)
        if not word.proven and HOLE in word.text and self.row["id"] == "unknown":
            self.emit("word-unproven", word)

    def _chdir(self, word: Word) -> None:
        scope = self.frame.scope
        self.emit("reads", word)
        if not word.proven or word.text == "-" or scope.cwds is None:
            scope.cwds = None
            return
        machine = self.walker.machine
        moved: list[str] = []
        for cwd in scope.cwds:
            logical = machine.absolute(word.text, cwd)
            physical = machine.resolve(word.text, cwd)
            if logical != physical and machine.exists(word.text, cwd):
                moved += [physical, logical]  # `cd link; cat ..` and `cd link/..` differ: both are judged
            else:
                moved.append(logical)
            if not machine.is_directory(logical) and self.frame.depth == 0 and not logical.startswith(machine.root):
                moved.append(cwd)
        scope.cwds = tuple(dict.fromkeys(moved))[:4]

    def argv(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a single word that is itself a command."""
        self._command([word], until=False)

    def words(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a string that the program splits into a command."""
        if HOLE in word.text:
            self.emit("code-unproven", word)
            return
        parts = [word.part(p) for p in split(word.text)]
        while parts and "=" in parts[0].text and not parts[0].text.startswith("-"):
            name, _, value = parts.pop(0).text.partition("=")
            assign(self.walker, self.frame, self.act, name, value, word)
        if parts:
            self._command(parts, until=False)

    def shell(self, effect: str, word: Word, label: str = "") -> None:
        """Judge shell text."""
        row = self.row
        if not row.get("interpreter") and row["id"] not in _SAME_SHELL and not row["id"].startswith("variable-"):
            self.emit("code-option", word, label)
        elif row.get("interpreter"):
            self.emit("code", word, label)
        if word.glob or HOLE in word.text:
            self.emit("code-unproven", word)
            if HOLE in word.text and word.text.strip(HOLE) == "":
                return
        scope = self.frame.scope if row["id"] in _SAME_SHELL else None
        # A hole becomes a variable nobody set: what stands around it is judged, itself it stays unknown.
        self.walker.nested(word.text.replace(HOLE, "${unproven}"), word, self.frame, scope)

    def code(self, effect: str, word: Word, label: str = "") -> None:
        """Record opaque code of some language."""
        self.emit("code" if self.row.get("interpreter") else "code-option", word, label)

    def script(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a file that is run as code."""
        if word.text in ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
            self.code_from_stdin(word)
            return
        if word.text == "/dev/fd/63":  # a process substitution: what is printed there is run
            self.emit("code-stdin", word)
            return
        self.emit("runs", word, label)
        if word.proven:
            written = self.walker.written
            if HOLE in written or any(self.walker.machine.absolute(word.text, c) in written for c in self.act.cwds or ()):
                self.emit("run-written", word)

    def module(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a module that is run by its name; what the row does not list is the project's or a tool."""
        slots = self.row.get("modules", {}).get(word.text)
        if not word.proven:
            self.emit("name-unproven", word)
        for slot in slots or ():
            if slot[1] and slot[1] != "code":
                self.fill(slot, word)
            else:
                self.emit("code" if slot[0] == "runs" else _PURE[slot[0]], word, label)

    def code_from_stdin(self, word: Word) -> None:
        """Judge an interpreter that reads its program from standard input."""
        self.emit("code-stdin", word)
        if self.row.get("interpreter") == "shell" and self.frame.stdin is not None:
            self.walker.nested(self.frame.stdin, word, self.frame, None, "")

    def stdin(self, effect: str, word: Word, label: str = "") -> None:
        """As a kind: code from standard input."""
        self.code_from_stdin(word)

    def listfile(self, effect: str, word: Word, label: str = "") -> None:
        """Record a file that lists further operands."""
        self.emit("reads", word)
        self.emit("word-unproven", word)

    def assignment(self, effect: str, word: Word, label: str = "") -> None:
        """Judge VAR=value given to an option."""
        name, _, value = word.text.partition("=")
        assign(self.walker, self.frame, self.act, name, value, word.part(value))

    def name(self, effect: str, word: Word, label: str = "") -> None:
        """Forget a variable that the command sets to something unknown."""
        if "[" in word.text and ("$(" in word.text or "`" in word.text):
            self.emit("code-unproven", word)
        self.frame.scope.variables[word.text] = None

    def config(self, effect: str, word: Word, label: str = "") -> None:
        """Judge key=value of a program's configuration by the row's table of keys."""
        key, _, value = word.text.partition("=")
        for pattern, slots in self.row.get("config", {}).items():
            if _key_fits(key.lower(), pattern.lower()):
                for slot in slots:
                    if slot[1] == "shell" and value.lower() in ("true", "false", "cat", "less", ""):
                        continue
                    self.fill(slot, word.part(value.removeprefix("!") if slot[1] == "shell" else value))
                return
        if HOLE in key:
            self.emit("word-unproven", word)

    def url(self, effect: str, word: Word, label: str = "") -> None:
        """Record a network address."""
        if word.text.startswith("file:"):
            self.emit("reads", word.part(word.text[5:].removeprefix("//").removeprefix("localhost")))
            return
        self.emit(network.effect_of(word.text), word, label)

    def remote(self, effect: str, word: Word, label: str = "") -> None:
        """Record a git remote or rsync place: a name, an address, or a path."""
        kind = network.remote_kind(word.text)
        if kind == "path":
            self.emit("reads", word)
        elif kind == "ext":
            self.emit("code-option", word)
        else:
            self.emit("network" if kind != "local" else "network-local", word, label)

    def hostpath(self, effect: str, word: Word, label: str = "") -> None:
        """Record host:path, or a plain path."""
        kind = network.remote_kind(word.text)
        if kind == "path" or kind == "name":
            self.path(effect or "reads", word)
        else:
            self.emit("network", word, label)

    def atpath(self, effect: str, word: Word, label: str = "") -> None:
        """Record @file; anything else is text."""
        _, at, path = word.text.partition("@")
        if at and path and (word.text.startswith("@") or "=@" in word.text):
            self.emit("reads", word.part(path))


_KINDS: dict[str, Any] = {
    "any": _Reader.any,
    "path": _Reader.path,
    "argv": _Reader.argv,
    "words": _Reader.words,
    "shell": _Reader.shell,
    "code": _Reader.code,
    "script": _Reader.script,
    "module": _Reader.module,
    "stdin": _Reader.stdin,
    "listfile": _Reader.listfile,
    "assign": _Reader.assignment,
    "mark": _Reader.mark,
    "name": _Reader.name,
    "config": _Reader.config,
    "url": _Reader.url,
    "remote": _Reader.remote,
    "hostpath": _Reader.hostpath,
    "atpath": _Reader.atpath,
}


def _key_fits(key: str, pattern: str) -> bool:
    if "*" not in pattern:
        return key == pattern
    head, _, tail = pattern.partition("*")
    return key.startswith(head) and key.endswith(tail) and len(key) >= len(head) + len(tail)


def split(text: str) -> list[str]:
    """Split a string into words as a shell does, quotes removed."""
    from shlex import split as shell_split  # noqa: PLC0415  only for the few programs that split strings

    try:
        return shell_split(text)
    except ValueError:
        return text.split()


def candidates(word: Word, walker: Walker, cwds: tuple[str, ...] | None) -> list[Word]:
    """Return the parts of a word that could be a path: the word itself, or what stands behind `=`, `@`, `file://`, `,`."""
    text = word.text
    if not text or text == "-":
        return []
    scheme, found, rest = text.partition("://")
    if found:
        if scheme.rpartition("=")[2].lower() == "file":
            return [word.part("/" + rest.partition("/")[2])]
        if scheme.replace("+", "").replace("-", "").replace(".", "").isalnum():
            return []
    parts = [text]
    if "=" in text:
        parts.append(text.partition("=")[2])
    if text[0] == "@":
        parts.append(text[1:])
    if text[0] == "-" and len(text) > 2 and text[1] != "-":
        parts.append(text[2:])
    made = []
    for part in parts:
        if part.startswith("~"):
            head, slash, tail = part.partition("/")
            made.append(word.part((walker.machine.home if head == "~" else f"/home/{head[1:]}") + slash + tail))
        elif "/" in part or part == "..":
            if not part.startswith("-"):
                made.append(word.part(part))
        elif part and part is text and not text.startswith("-") and any(walker.machine.exists(part, c) for c in cwds or ()):
            made.append(word)
    return made

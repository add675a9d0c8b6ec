"""Read the words of a command by its row: styles of options, clusters, abbreviations, subcommands, operands. Rows are data; this is their only reader.

An unknown option is taken as a flag, an unknown command as one that may read its path-like arguments.
"""

from __future__ import annotations

from corral.guard.analysis.slots import PURE, Slots
from corral.guard.path_zones import may_become_protected
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.slots import Row, Slot


UNPUSHED = ":unpushed"  # the one condition of a slot that the machine answers
_GUESSED: Slot = ("reads", "any", "", "", (), ())


class OptionParser(Slots):
    """Reads the words of one command by one row."""

    __slots__ = ()

    def read(self, words: list[Word]) -> None:
        """Read all words behind the name."""
        row = self.row
        self.deferred += [(slot, words[0]) for slot in row.get("effects", ())]
        style = row["style"]
        rest = words[1:]
        style = row["style"]
        if style not in ("gnu", "posix", "longdash", "tar"):
            for word in rest:
                self._may_be_option(word)
        if style == "find":
            self._find(rest)
        elif style == "keyvalue":
            self._keyvalue(rest)
        elif style == "none":
            self._operands(rest)
        else:
            if style == "tar" and rest and rest[0].proven and rest[0].text and not rest[0].text.startswith("-"):
                rest = self._bundle(rest[0], rest[1:])
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
            self._may_be_option(word)
            if text == "--":
                if text in options:
                    self._option(text, None, word, words, index)
                self.seen.add(text)
                operands += words[index:]
                break
            if len(text) < 2 or text[0] != "-":
                if text[:1] == "+" and text[:2] in options:
                    index, done = self._cluster(text, word, words, index)
                    if done:
                        break
                    continue
                if sub is not None and text[:1] == "+":
                    if "/" in text:
                        self.emit("code-loaded", word)
                    continue  # a toolchain, as in `cargo +nightly build`
                operands.append(word)
                if text in options:
                    self._option(text, None, word, words, index)
                if sub is not None:
                    self.operands = operands
                    self._subcommand(sub, words[index - 1 :])
                    return
                if not permute or self._takes_rest():
                    operands += words[index:]
                    break
                continue
            if text[1] == "-" or long_dash:
                name, equals, value = text.partition("=")
                slots = options.get(name)
                if equals and long_dash and len(prefix := self._prefix(text)) > len(name) + 1:
                    slots = None  # `-fuse-ld=./x` is described apart from `-fuse-ld=gold`
                if slots is None and not long_dash:
                    name = self._abbreviated(name)
                    slots = options.get(name)
                if slots is None and long_dash:
                    prefix = self._prefix(text)
                    if prefix:
                        index = self._option(prefix, text[len(prefix) :], word, words, index)
                        if index < 0:
                            break
                        continue
                if slots is None:
                    self.seen.add(name)
                    if equals:
                        self.fill(_GUESSED, word.part(value))
                    elif ":" in text:
                        self.fill(_GUESSED, word.part(text.partition(":")[2]))  # `--inject:../x`
                    elif long_dash and len(text) > 2:
                        self.fill(_GUESSED, word.part(text[2:]))
                    continue
                index = self._option(name, value if equals else None, word, words, index)
                if index < 0:
                    break
                continue
            index, done = self._cluster(text, word, words, index)
            if done:
                break
        self._operands(operands)

    def _bundle(self, letters: Word, words: list[Word]) -> list[Word]:
        """Return the options of `tar cfI out prog`, whose values follow in the order of the letters, as options with a dash each."""
        made: list[Word] = []
        taken = 0
        for letter in letters.text:
            slots = self.row["options"].get(f"-{letter}", ())
            made.append(letters.part(f"-{letter}"))
            if slots and slots[0][1] not in ("", "operands") and slots[0][2] != "?" and taken < len(words):
                made.append(words[taken])
                taken += 1
        return made + words[taken:]

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
            name = text[0] + text[at]  # `+eo pipefail` is a cluster too
            slots = options.get(name)
            at += 1
            if slots is None:
                self.seen.add(name)
                if at == 2 and len(text) > 2 and not text[1].isdigit():
                    # Unknown letter first: the rest may be its value (-IPATH).
                    self.fill(_GUESSED, word.part(text[2:]))
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
        longest = max(map(len, options), default=0)
        for end in range(min(len(text) - 1, longest), 1, -1):
            slots = options.get(text[:end])
            if slots and slots[0][1]:
                return text[:end]
        return ""

    def _option(self, name: str, value: str | None, word: Word, words: list[Word], index: int) -> int:
        """Fill an option's slots; return the next index, or -1 when what follows belongs to the code or command it was given."""
        self.seen.add(name)
        stop = 0
        for position, slot in enumerate(self.row["options"][name]):
            effect, kind, many, label, unless, when = slot
            if not kind:
                if unless or when:
                    self.deferred.append((slot, word))
                else:
                    self.emit(PURE[effect], word.part(name), label)
                continue
            if kind in ("argv", "argv;"):
                rest = ([word.part(value)] if value else []) + words[index:]
                used = self._command(rest, until=kind == "argv;")
                return index + used if kind == "argv;" else -1
            if kind == "operands":
                self.operand_effects.append(effect)
                continue
            if kind == "stdin":
                self.code_from_stdin(word)
                continue
            if many == "stop":
                stop = -1
                self.rest = words[index:] if value is not None and position == 0 else words[index + 1 :]
            if position == 0 and value is not None:
                if value or many != "?":
                    self._fill_option(slot, word.part(value))
            elif many == "?":
                pass
            elif index < len(words):
                if words[index].multi:
                    self._may_be_option(words[index])  # it may become several words
                self._fill_option(slot, words[index])
                index += 1
        return stop or index

    def _may_be_option(self, word: Word) -> None:
        """Report a word that is only known when it runs, where it may become an option that matters."""
        if HOLE in word.text and (word.multi or word.text[0] == HOLE) and self.row.get("risky"):
            self.emit("word-unproven", word)

    def _fill_option(self, slot: Slot, word: Word) -> None:
        if slot[3] == "target":
            self.target = word
        if slot[4] or slot[5]:
            self.deferred.append((slot, word))
        else:
            self.fill(slot, word)

    def _find(self, words: list[Word]) -> None:
        index = 0
        operands: list[Word] = []
        while index < len(words):
            text = words[index].text
            if (text[:1] == "-" and text not in ("-H", "-L", "-P") and len(text) > 1) or text in ("(", ")", "!", ","):
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
                self._operands_by(((*_GUESSED[:2], "*", *_GUESSED[3:]),), words)  # a subcommand nobody described
                return
        inner = OptionParser(
            self.walker, self.frame, self.act, {**row, "config": row.get("config") or self.row.get("config", {})}
        )
        inner.seen = self.seen
        self.act.verbs.append(name)
        inner.read(words)

    def _operands(self, words: list[Word]) -> None:
        self.operands = words
        self._operands_by(self.row["operands"], words)

    def _operands_by(self, slots: tuple[Slot, ...], words: list[Word]) -> None:
        index = 0
        slots = tuple(s for s in slots if self._applies(s))
        for position, slot in enumerate(slots):
            kind, many = slot[1], slot[2]
            if kind == "argv":
                if index < len(words):
                    self._command(words[index:], until=False)
                return
            if kind == "assign":
                while index < len(words) and "=" in words[index].text and not words[index].text.startswith("-"):
                    name, _, value = words[index].text.partition("=")
                    self.walker.assign(self.frame, self.act, name, value, words[index].part(value))
                    index += 1
                continue
            if kind == "shell" and many == "*":  # eval: its operands are joined
                if words[index:]:
                    joined = words[index].part(" ".join(w.text for w in words[index:]))
                    joined.end = words[-1].end
                    self.fill((slot[0], "shell", "", slot[3], (), ()), joined)
                    if self.row.get("quotes") and len(words) - index > 1 and " " not in words[index].text:
                        self._command(words[index:], until=False)
                return
            if many == "*":
                after = len(slots) - position - 1  # `cp SOURCE* TARGET`: what follows takes its words from the end
                stop = max(index, len(words) - after)
                for word in words[index:stop]:
                    self.fill(slot, word)
                index = stop
            elif index < len(words):
                self.rest = words[index + 1 :]
                self.fill(slot, words[index])
                index += 1

    def _finish(self, words: list[Word]) -> None:
        for effect in self.operand_effects:
            for word in self.paths:
                self.emit(effect, self._found(word) if self.row["style"] == "find" else word)
                if effect == "writes":
                    self.walker.note_written(word, self.act.cwds)
        if self.row.get("copies") and self.operands:
            self._copied()
        elif self.target is not None:
            self._configured(self.target)
        deferred = self.deferred
        if not self.operands and "bare" in self.row:
            deferred = deferred + [(slot, words[0]) for slot in self.row["bare"]]
        for slot, word in deferred:
            if self._applies(slot) and not (UNPUSHED in slot[4] and self._unpushed(word)):
                self.fill(slot, word)
        if self.left:
            self.frame.scope.cwds = self.left[0]

    def _configured(self, file: Word) -> None:
        """Record that `git config -f FILE` writes the file if it sets or removes a key; a key alone is only read."""
        slots = [slot for slot in self.row["operands"] if slot[1] == "setting" and self._applies(slot)]
        verb = self.operands[0].text if self.operands else ""
        is_set = verb == "edit" or (len(self.operands) > 1 and verb not in ("get", "list"))
        if slots and (is_set or self.seen.intersection(("--unset", "--unset-all"))):
            self.emit("writes", file)
            self.walker.note_written(file, self.act.cwds)

    def _unpushed(self, word: Word) -> bool:
        from corral.guard.analysis.machine_facts import unpushed  # noqa: PLC0415  only for a command that would replace commits

        return unpushed(self, word)

    def _copied(self) -> None:
        """Judge what a copy or a link puts into a directory, whose name does not say what is written there."""
        *sources, target = self.operands
        if self.target is not None:
            sources, target = self.operands, self.target
        elif not sources:
            sources, target = [target], target.part(".")  # `ln x/y` makes y
        machine = self.walker.machine
        for source in sources:
            self._note_copy(source, target)
            if source.text != target.text:
                self.emit("reads", source)  # what is moved is read under its new name
            name = source.text.rstrip("/").rpartition("/")[2]
            if not name or name in (".", ".."):
                continue
            put = Word(f"{target.text.rstrip('/')}/{name}", target.start, target.end, glob=source.glob or target.glob)
            put.argument = target.argument
            self.walker.note_written(put, self.act.cwds)
            folder = target.text.endswith(("/", ".")) or len(sources) > 1 or may_become_protected(target.text)
            if folder or any(machine.is_directory(machine.absolute(target.text, c)) for c in self.act.cwds or ()):
                self.emit("writes", put)

    def _note_copy(self, source: Word, target: Word) -> None:
        """Remember that a file is a copy of another or a link to it, so that running it is running that one."""
        machine = self.walker.machine
        name = source.text.rpartition("/")[2]
        for cwd in self.act.cwds or ():
            path = machine.absolute(target.text, cwd)
            self.walker.copies[path] = self.walker.copies[f"{path}/{name}"] = name

    def _applies(self, slot: Slot) -> bool:
        """Say whether the options that were seen leave a slot in force."""
        unless, when = slot[4], slot[5]
        return not (unless and self.seen.intersection(unless)) and (not when or bool(self.seen.intersection(when)))

"""Parses the words of a command by its row: option styles, clusters, abbreviations, subcommands, operands. No other module reads rows so.

An option that the row does not list counts as a flag. A command without a row may read each of its arguments that looks like a path.
"""

from __future__ import annotations

from corral.guard.analysis.heuristics import judge_text
from corral.guard.analysis.rows import EFFECT_OF_VERB, GUESSED, GUESSED_OPERANDS, Slot, slots_of
from corral.guard.analysis.side_effects import note_copies
from corral.guard.analysis.slots import fill, judge_nested_command, judge_shell_text
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from corral.guard.analysis.command import Command
    from corral.guard.analysis.rows import RawSlot, Row
    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker

# Conditions of a slot that no option answers: what remotes have, and whether a setting is read.
_UNPUSHED, _KEY_ALONE = ":unpushed", ":key-alone"
# Subcommands and options of `git config` that change a file although no value follows the key.
_CHANGES_WITHOUT_VALUE = frozenset(
    {"edit", "unset", "remove-section", "rename-section", "-e", "--edit", "--unset", "--unset-all", "--remove-section", "--rename-section"}
)  # fmt: skip
# git subcommands that keep the current commit checked out, or only add one to it.
_KEEPS_COMMIT = frozenset({
    "add", "blame", "branch", "cat-file", "commit", "config", "diff", "log", "ls-files", "mv", "rev-parse", "rm", "shortlog",
    "show", "status", "tag", "version",
})  # fmt: skip
_OTHER_REPOSITORY = (HOLE, "GIT_DIR", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_WORK_TREE")


class OptionParser:
    """Parses the words of one command by one row, and records the effects."""

    __slots__ = (
        "command", "deferred", "emit", "frame", "guesses", "operand_effects", "operands", "option_words", "paths", "placeholders", "positions",
        "rest", "row", "saved_cwds", "seen", "target", "walker",
    )  # fmt: skip

    def __init__(self, walker: Walker, frame: Frame, command: Command, row: Row) -> None:
        self.walker: Walker = walker
        self.frame = frame
        self.command = command
        self.emit = command.emit
        self.row = row
        self.seen: set[str] = set()
        self.target: Word | None = None  # the directory that an option names for all operands
        self.operands: list[Word] = []
        self.paths: list[Word] = []  # the operands that are paths
        self.operand_effects: list[str] = []
        self.saved_cwds: list[tuple[str, ...] | None] = []  # of the shell, while a program works elsewhere (env -C)
        self.rest: list[Word] = []  # the words behind an option that ends the options
        self.deferred: list[tuple[RawSlot, Word]] = []  # slots that depend on options that may still come
        self.guesses = 0  # undescribed words that were judged as commands
        self.positions: dict[int, int] | None = None  # of the words of the command, by their ids, once one is asked for
        self.option_words: dict[
            tuple[int, int | None], str
        ] = {}  # the words that begin with a dash, by where they stand
        self.placeholders: tuple[str, ...] = ("{}",)

    def for_row(self, row: Row) -> OptionParser:
        """Return a parser of the same command by another row."""
        return OptionParser(self.walker, self.frame, self.command, row)

    def parse(self, words: list[Word]) -> None:
        """Parse all words behind the name."""
        row = self.row
        if "effects" in row:
            self.deferred += [(slot, words[0]) for slot in row["effects"]]
        style = row["style"]
        rest = words[1:]
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
            if style == "tar" and rest and rest[0].proven and rest[0].text and not rest[0].text.startswith(("-", "@")):
                rest = self._unbundle(rest[0], rest[1:])
            self._options(rest, permute=style != "posix", long_dash=style == "longdash")
        self._finish(words)

    def _options(self, words: list[Word], *, permute: bool, long_dash: bool) -> None:
        options = self.row["options"]
        sub = self.row.get("sub")
        operands: list[Word] = []
        index = 0
        while 0 <= index < len(words):
            word = words[index]
            text = word.text
            index += 1
            self.walker.work += 1
            self._may_be_option(word)
            if text == "--":
                if text in options:
                    self._option(text, None, word, words, index)
                self.seen.add(text)
                operands += words[index:]
                break
            if len(text) > 1 and text[0] == "-" and (text[1] == "-" or long_dash):
                index = self._long_option(word, words, index, long_dash=long_dash)
            elif (len(text) > 1 and text[0] == "-") or (text[:1] == "+" and text[:2] in options):
                index = self._cluster(word, words, index)
            elif sub is not None and text[:1] == "+":  # a toolchain, as in `cargo +nightly build`
                if "/" in text:
                    self.emit("code-loaded", word)
            else:
                operands.append(word)
                if text[:1] == "@" and len(text) > 1:
                    from corral.guard.analysis.written_files import judge_argument_file  # noqa: PLC0415  few words begin so

                    judge_argument_file(self, word)
                if text in options:
                    self._option(text, None, word, words, index)
                if sub is not None:
                    self.operands = operands
                    self._subcommand(sub, words[index - 1 :])
                    return
                if not permute or (len(operands) == 1 and self._takes_rest()):
                    operands += words[index:]
                    break
        self._operands(operands)

    def _long_option(self, word: Word, words: list[Word], index: int, *, long_dash: bool) -> int:
        """Judge `--name=value`, or an option with one dash that is no cluster; return the next index, or -1 as `_option` does."""
        options = self.row["options"]
        text = word.text
        name, equals, value = text.partition("=")
        slots = options.get(name)
        if long_dash:
            prefix = self._prefix(text) if equals or slots is None else ""
            if prefix and (slots is None or len(prefix) > len(name) + 1):
                return self._option(prefix, text[len(prefix) :], word, words, index)  # `-fuse-ld=./x`
        elif slots is None:
            name = self._unabbreviate(name)
            slots = options.get(name)
        if slots is not None:
            return self._option(name, value if equals else None, word, words, index)
        if HOLE in name:
            self._may_be_any_option(word)
        self.seen.add(name)
        if equals:
            fill(self, GUESSED, self._attached(word, value))
        elif ":" in text:
            fill(self, GUESSED, word.part(text.partition(":")[2]))  # `--inject:../x`
        elif long_dash and len(text) > 2:
            fill(self, GUESSED, word.part(text[2:]))
        return index

    def _unbundle(self, letters: Word, words: list[Word]) -> list[Word]:
        """Return the words of `tar cfI out prog` with a dash before each letter and each value behind its letter."""
        made: list[Word] = []
        taken = 0
        self.walker.spend(len(letters.text) * 4)
        for letter in letters.text:
            made.append(letters.part(f"-{letter}"))
            slot = self._first_slot(f"-{letter}")
            if slot is not None and slot.kind not in ("", "operands") and slot.many != "?" and taken < len(words):
                made.append(words[taken])
                taken += 1
        return made + words[taken:]

    def _first_slot(self, option: str) -> Slot | None:
        slots = self.row["options"].get(option)
        return Slot._make(slots[0]) if slots else None

    def _takes_rest(self) -> bool:
        """Return whether the first operand is a command or a script, which gets all further options."""
        for _, kind, many, *_ in self.row["operands"][:1]:
            return kind in ("argv", "script") and many != "*"
        return False

    def _cluster(self, word: Word, words: list[Word], index: int) -> int:
        """Judge short options in one word; return the next index, or -1 as `_option` does."""
        options = self.row["options"]
        text = word.text
        if text in options:  # a whole name with one dash, such as `-exec`
            return self._option(text, None, word, words, index)
        self.walker.spend(len(text))
        for at in range(1, len(text)):
            pair = self._first_slot(f"-{text[at : at + 2]}") if at > 1 and len(text) > at + 1 else None
            if pair is not None and pair.effect:  # an option of two letters: `zip -9TT command`
                return self._option(f"-{text[at : at + 2]}", text[at + 2 :] or None, word, words, index)
            name = text[0] + text[at]  # `+eo pipefail` is a cluster too
            if name not in options:
                self.seen.add(name)
                if text[at] == HOLE:
                    self._may_be_any_option(word)
                if at == 1 and len(text) > 2 and not text[1].isdigit():
                    fill(self, GUESSED, word.part(text[2:]))  # the rest may be the value of an unknown option (-IPATH)
                continue
            slot = self._first_slot(name)
            if slot is None or not slot.kind:
                self._option(name, None, word, words, index)
                continue
            attached = text[at + 1 :] if slot.many == "?" else text[at + 1 :] or None
            return self._option(name, attached, word, words, index)
        return index

    def _unabbreviate(self, name: str) -> str:
        longs = self.row.get("longs")
        if not longs or len(name) < 3:
            return name
        # Prefer an option with an effect if several fit.
        return min((o for o in longs if o.startswith(name)), key=lambda o: not self.row["options"][o], default=name)

    def _prefix(self, text: str) -> str:
        """Return the longest option that a word begins with and that takes an attached value."""
        options = self.row["options"]
        for end in range(min(len(text) - 1, max(map(len, options), default=0)), 1, -1):
            slots = options.get(text[:end])
            if slots and Slot._make(slots[0]).kind:
                return text[:end]
        return ""

    def _option(self, name: str, value: str | None, word: Word, words: list[Word], index: int) -> int:
        """Fill an option's slots; return the next index, or -1 if the words behind belong to the code or command of the option."""
        self.seen.add(name)
        is_last = False
        slot: RawSlot
        for position, slot in enumerate(self.row["options"][name]):
            effect, kind, many, label, unless, when = slot
            if not kind:
                if unless or when:
                    self.deferred.append((slot, word))
                else:
                    self.emit(EFFECT_OF_VERB[effect], word.part(name), label)
                continue
            if kind in ("argv", "argv;"):
                rest = ([word.part(value)] if value else []) + words[index:]
                used = judge_nested_command(self, rest, until_semicolon=kind == "argv;")
                return index + used if kind == "argv;" else -1
            if kind == "operands":
                self.operand_effects.append(effect)
                continue
            if kind == "module" and many == "?":  # the module becomes the first operand, with the words behind it
                words[index:index] = [self._attached(word, value)] if value else []
                if words[index:] and words[index].text[:1] == "-":
                    self.emit("name-unproven", words[index])
                continue
            if kind == "stdin":
                fill(self, slot, word)
                continue
            if many == "stop":
                is_last = True
                self.rest = words[index:] if value is not None and position == 0 else words[index + 1 :]
            if position == 0 and value is not None:
                if value or many != "?":
                    self._fill_option(slot, self._attached(word, value))
            elif many != "?" and index < len(words):
                if words[index].glob:
                    self._may_be_option(words[index])
                self._may_shift(words, index)
                self._fill_option(slot, words[index])
                index += 1
        return -1 if is_last else index

    def _may_be_option(self, word: Word) -> None:
        """Report a word that may become an option with an effect at run time, or several words although it begins as an option."""
        text = word.text
        if not word.glob and HOLE not in text:
            return
        is_risky = self.row.get("risky", False)
        if (HOLE in text and ((is_risky and (word.multi or text[0] == HOLE)) or (word.multi and text[0] == "-"))) or (
            is_risky and word.glob and self._may_match_option(text)
        ):
            self.emit("word-unproven", word)

    def _may_be_any_option(self, word: Word) -> None:
        """Report an option whose name is only known at run time, if one with an effect exists."""
        if self.row.get("risky"):
            self.emit("word-unproven", word)

    def _may_shift(self, words: list[Word], index: int, *, is_target: bool = False) -> None:
        """Report a word in a fixed place that may become no word or several, so that other words fill the slots around it.

        A glob becomes files of its own directory, or no word under `nullglob`. At the end that only matters to `cp SOURCE* TARGET`.
        """
        word = words[index]
        if word.multi or (word.glob and (is_target or index + 1 < len(words))):
            self.emit("word-unproven", word)

    def _may_match_option(self, glob: str) -> bool:
        """Return whether a glob may match a file that has the name of an option."""
        if glob[:1] not in ("*", "?", "["):
            name = glob[: _glob_begins(glob)]
            return glob[:1] == "-" and "=" not in name
        if any(path == HOLE or "/-" in path for path in self.walker.written | self.walker.made):
            return True
        self.walker.look()
        return any(self.walker.machine.has_option_like_name(cwd) for cwd in self.command.cwds or ())

    def _attached(self, word: Word, value: str) -> Word:
        """Return the value behind the name of an option. A glob in it may match any file whose name begins with the option."""
        if not word.glob:
            return word.part(value)
        return Word(value[: _glob_begins(value)] + HOLE, word.start, word.end, argument=word.argument)

    def _fill_option(self, slot: RawSlot, word: Word) -> None:
        _, kind, _, label, unless, when = slot
        if label == "target":
            self.target = word
        if kind == "text" and ("/" in word.text or ".." in word.text or "~" in word.text):
            judge_text(self, word)
        if unless or when:
            self.deferred.append((slot, word))
        else:
            fill(self, slot, word)

    def _find(self, words: list[Word]) -> None:
        index = 0
        operands: list[Word] = []
        while index < len(words):
            text = words[index].text
            if text not in ("-H", "-L", "-P"):
                if (text[:1] == "-" and len(text) > 1) or text in ("(", ")", "!", ","):
                    break
                operands.append(words[index])
            index += 1
        self._operands(operands or [Word(".", words[0].start if words else 0)])
        while 0 <= index < len(words):
            word = words[index]
            index += 1
            if word.text in self.row["options"]:
                index = self._option(word.text, None, word, words, index)
            elif not word.proven and HOLE in word.text:
                self.emit("word-unproven", word)

    def _keyvalue(self, words: list[Word]) -> None:
        operands: list[Word] = []
        for word in words:
            key, equals, value = word.text.partition("=")
            slots = self.row["options"].get(key + "=") if equals else None
            if slots is None:
                operands.append(word)
            for slot in slots_of(slots or ()):
                fill(self, slot, self._attached(word, value))
        self._operands(operands)

    def _subcommand(self, table: dict[str, Row], words: list[Word]) -> None:
        name = words[0]
        if not name.proven:
            self.emit("name-unproven", name)
            return
        row = table.get(name.text, table.get(""))
        if row is None:
            self._operands_by(GUESSED_OPERANDS, words)
            return
        inner = self.for_row({**row, "config": row.get("config") or self.row.get("config", {})})
        inner.seen = self.seen
        self.command.verbs.append(name)
        inner.parse(words)

    def _operands(self, words: list[Word]) -> None:
        self.operands = words
        self._operands_by(self.row["operands"], words)

    def _operands_by(self, raw: Iterable[RawSlot], words: list[Word]) -> None:
        index = 0
        slots = [slot for slot in raw if self._applies(slot)]
        for position, slot in enumerate(slots):
            effect, kind, many, label, _, _ = slot
            if kind == "argv":
                if index < len(words):
                    judge_nested_command(self, words[index:])
                return
            if kind == "assign":
                while index < len(words) and "=" in words[index].text and not words[index].text.startswith("-"):
                    fill(self, slot, words[index])
                    index += 1
            elif kind == "shell" and many == "*":  # eval joins its operands
                if words[index:]:
                    joined = words[index].part(" ".join(w.text for w in words[index:]))
                    joined.end = words[-1].end
                    judge_shell_text(self, effect, joined, label)
                    if self.row.get("quotes") and len(words) - index > 1 and " " not in words[index].text:
                        judge_nested_command(self, words[index:])
                return
            elif many == "*":
                later = len(slots) - position - 1  # `cp SOURCE* TARGET`: later slots take the last words
                stop = max(index, len(words) - later)
                for word in words[index:stop]:
                    fill(self, slot, word)
                index = stop
            elif index < len(words):
                self._may_shift(words, index, is_target=position > 0)
                if words[index].text == NUMBER_HOLE and index + 1 < len(words):
                    self.emit("word-unproven", words[index])  # a negative number is an option
                self.rest = words[index + 1 :]
                fill(self, slot, words[index])
                index += 1

    def _finish(self, words: list[Word]) -> None:
        """Judge the effects that depend on all words."""
        row = self.row
        for effect in self.operand_effects:
            for word in self.paths:
                self.emit(effect, self._found(word) if row["style"] == "find" else word)
                if effect == "writes":
                    self.walker.note_written(word, self.command.cwds)
        if row.get("copies") and self.operands:
            note_copies(self)
        elif self.target is not None:
            self._configured(self.target)
        bare = row.get("bare", ()) if not self.operands else ()
        for slot, word in (*self.deferred, *((slot, words[0]) for slot in bare)):
            if self._applies(slot) and not self._is_excused(slot[4], word):
                fill(self, slot, word)
        if self.saved_cwds:
            self.frame.scope.cwds = self.saved_cwds[0]

    def _found(self, start: Word) -> Word:
        """Return the files that `find` may find below a starting point; with a test, not the point itself."""
        if self.seen <= {"-delete", "-depth", "-print"}:
            return start
        return Word(f"{start.text}/?", start.start, start.end, glob=True, argument=start.argument)

    def _configured(self, file: Word) -> None:
        """Record that `git config -f FILE` writes the file if it sets or removes a key; a key alone is only read."""
        is_config = any(slot.kind == "setting" and self._applies(slot) for slot in slots_of(self.row["operands"]))
        verb = self.operands[0].text if self.operands else ""
        is_set = verb == "edit" or (len(self.operands) > 1 and verb not in ("get", "list"))
        if is_config and (is_set or self.seen.intersection(("--unset", "--unset-all"))):
            self.emit("writes", file)
            self.walker.note_written(file, self.command.cwds)

    def _is_excused(self, conditions: Collection[str], word: Word) -> bool:
        """Return whether a condition holds that no option answers."""
        return (_UNPUSHED in conditions and self._is_unpushed(word)) or (_KEY_ALONE in conditions and self._reads_key())

    def _reads_key(self) -> bool:
        """Return whether `git config` only reads: it has a key without a value, or the subcommand `get` or `list`."""
        words = self.operands
        if not all(word.proven for word in words) or not _CHANGES_WITHOUT_VALUE.isdisjoint(self.seen):
            return False
        verb = words[0].text if words else ""
        return verb in ("get", "list") or (len(words) == 1 and verb not in _CHANGES_WITHOUT_VALUE)

    def _is_unpushed(self, word: Word) -> bool:
        """Return whether no remote has the commits that git would replace: one, or as many as `HEAD~3` names."""
        count = _commit_count(word.text)
        scope = self.frame.scope
        # A program that runs git (`env`, another shell) may give it other variables, and so another repository.
        if not count or not scope.cwds or self.frame.depth or "--git-dir" in self.seen:
            return False
        if any(name in scope.variables for name in _OTHER_REPOSITORY):
            return False
        # An earlier command of the same call may check out another commit, or push this one.
        for command in self.walker.commands:
            verb = command.verbs[0].text if command.verbs else ""
            if command is not self.command and (
                any(key.startswith("network") for key, _, _ in command.effects)
                or (command.row is not None and command.row["id"] == "git" and verb not in _KEEPS_COMMIT)
            ):
                return False
        return all(self.walker.machine.is_unpushed(cwd, str(count)) for cwd in scope.cwds)

    def _applies(self, slot: RawSlot) -> bool:
        """Return whether the given options leave a slot in force."""
        _, _, _, _, unless, when = slot
        return self.seen.isdisjoint(unless) and not (when and self.seen.isdisjoint(when))


def _glob_begins(text: str) -> int:
    return min((text.index(c) for c in "*?[" if c in text), default=len(text))


def _commit_count(text: str) -> int:
    """Return how many commits an option (1) or a revision such as `HEAD~3` or `@^^` replaces; 0 if unknown."""
    if text.startswith("--"):
        return 1
    steps = text.removeprefix("HEAD").removeprefix("@")
    if steps and steps.strip("^") == "":
        return len(steps)
    count = steps[1:] or "1"
    return int(count) if steps[:1] == "~" and count.isdigit() else int(steps == "^1")

"""What a word does in its slot: one method for each kind of the row format. Danger is looked for everywhere; nothing is proven here."""

from __future__ import annotations

from corral.guard.analysis import addresses, heuristics
from corral.guard.analysis.scope import new_shell_scope
from corral.guard.path_zones import is_standard_device
from corral.guard.rules.loader import row as row_of
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import PROCESS_SUBSTITUTION, Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.analysis.command import Command
    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker

    Row = dict[str, Any]
    Slot = tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]]

PURE = {
    "rewrites": "history",
    "discards": "discard",
    "wipes": "wipe",
    "privileges": "privilege",
    "kills": "process",
    "changes": "system",
    "installs": "install",
    "fetches": "fetch",
    "sends": "network",
    "listens": "network-listen",
    "runs": "code-option",
    "loads": "code-loaded",
}
_RECIPE = ("$(", "${", "`", ";", "|", "&", "\n")  # what a recipe that puts a value into its text would run
_SAME_SHELL = frozenset({"eval", "source", "."})


class Slots:
    """Fills the slots of one row for one command."""

    __slots__ = (
        "act",
        "deferred",
        "frame",
        "guesses",
        "left",
        "marks",
        "operand_effects",
        "operands",
        "paths",
        "rest",
        "row",
        "seen",
        "target",
        "walker",
    )

    def __init__(self, walker: Walker, frame: Frame, act: Command, row: Row) -> None:
        self.walker = walker
        self.frame = frame
        self.act = act
        self.row = row
        self.seen: set[str] = set()
        self.target: Word | None = None  # the directory that an option names for all operands
        self.operands: list[Word] = []
        self.paths: list[Word] = []  # the operands that are paths
        self.operand_effects: list[str] = []
        self.left: list[tuple[str, ...] | None] = []  # where the shell is while a program works elsewhere (env -C)
        self.rest: list[Word] = []  # what follows an option that stops the reading
        self.deferred: list[tuple[Slot, Word]] = []  # what depends on options that may still come
        self.guesses = 0  # commands that its undescribed words may be
        self.marks: tuple[str, ...] = ("{}",)

    def emit(self, key: str, word: Word, detail: str = "") -> None:
        """Record an effect."""
        self.act.effects.append((key, word, detail))

    def _language(self, name: str, effect: str, word: Word) -> None:
        from corral.guard.analysis.embedded_languages import judge_text  # noqa: PLC0415  most programs take no text in one

        judge_text(name, self, effect, word)

    def fill(self, slot: Slot, word: Word) -> None:
        """Judge what a word does in its slot."""
        effect, kind, _, label, _, _ = slot
        if kind in {"text", "ref"}:
            return
        if not kind:
            self.emit(PURE[effect], word, label)
            return
        if kind in ("path", "any", "hostpath"):
            self.paths.append(word)
        if (handler := _KINDS.get(kind)) is not None:
            handler(self, effect, word, label)
        else:
            self._language(kind[5:], effect, word)

    def path(self, effect: str, word: Word, label: str = "") -> None:
        """Record that a path is read, written, deleted, loaded or entered."""
        if "://" in word.text or word.text.startswith("file:"):
            word = self._address(word)
        if effect == "chdir":
            self._chdir(word)
            return
        if effect == "reads" and word.text.startswith(("@/", "@../", "@~/")):  # a file of further words
            self.emit("reads", word.part(word.text[1:]), label)
        if effect == "writes" and word.text.startswith(("|", "!", "%pipe%", "pipe:|")):
            self.emit("code-option", word, label)  # printing programs open these as commands
        if effect == "loads":
            self.emit("code-loaded", word, label)
            for part in word.text.split(":") if "://" not in word.text else [word.text]:  # a class path is several
                self.emit("reads", word.part(part), label)
            return
        if effect == "runs":
            self.script("runs", word, label)
            return
        if effect not in ("reads", "writes", "deletes"):
            if effect in PURE:
                self.emit(
                    "fetch" if effect == "installs" and heuristics.is_project_path(word.text) else PURE[effect],
                    word,
                    label,
                )
            effect = "reads"
        self.emit(effect, word, label)
        if effect == "writes":
            self.walker.note_written(word, self.act.cwds)

    def _address(self, word: Word) -> Word:
        """Return the path of an address that means a file; record any other, which a program may fetch."""
        if word.text.startswith("file:"):
            return word.part(addresses.file_path(word.text))
        if addresses.is_address(word.text):
            self.emit("network-maybe", word)
        return word

    def any(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a word that nobody described: if it looks like a path it may be read or written."""
        heuristics.judge_undescribed_word(self, word)

    def _chdir(self, word: Word) -> None:
        scope = self.frame.scope
        if self.row["id"] != "cd":
            self.left.append(scope.cwds)
        elif word is self.act.words[0] or (word.text[:1] == "+" and self.act.real != "cd"):
            # Without an operand cd goes home; popd and pushd go where only running can tell, as `cd -` does.
            word = word.part(self.frame.home() if self.act.real == "cd" else "-")
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
            self.walker.assign(self.frame, self.act, name, value, word)
        if parts:
            self._command(parts, until=False)

    def shell(self, effect: str, word: Word, label: str = "") -> None:
        """Judge shell text."""
        row = self.row
        if row["id"] not in _SAME_SHELL and not row["id"].startswith("variable-"):
            self.code(effect, word, label)
        if word.glob or HOLE in word.text:
            # A hole in front may be any command; one further on is judged as an unknown word of what stands there.
            self.emit("code-unproven" if word.text[:1] == HOLE else "word-unproven", word)
            if row["id"] in _SAME_SHELL:
                self.frame.scope.forget()
            if HOLE in word.text and word.text.strip(HOLE) == "":
                return
        scope = self.frame.scope if row["id"] in _SAME_SHELL else new_shell_scope(self.frame.scope)
        if self.rest and all(w.proven for w in self.rest):
            scope.args = [w.text for w in self.rest[1:]]  # bash -c TEXT NAME ARGUMENT…
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
        # A process substitution, or another open file: what is printed there is run.
        if word.text == PROCESS_SUBSTITUTION or (is_standard_device(word.text) and word.text != "/dev/null"):
            self.emit("code-stdin", word)
            return
        if "://" in word.text or word.text.startswith(("npm:", "jsr:", "data:")):  # fetched and run
            self.emit("network", word, label)
            self.emit("code-option", word, label)
            return
        if "@" in word.text.rpartition("/")[2][1:]:  # `go run example.com/x@latest`
            self.emit("network-maybe", word)
        self.emit("runs", word, label)
        if self.row["id"] in _SAME_SHELL:
            self.frame.scope.forget()  # it may have set anything
        self._run_written(word, "")
        heuristics.judge_script_arguments(self, word)

    def _run_written(self, word: Word, *suffixes: str) -> None:
        """Report code that this call has written itself: a file, one that a glob becomes, or one below a directory."""
        written = self.walker.written
        if not written or HOLE in word.text:
            return
        absolute = self.walker.machine.absolute
        names = [absolute(word.text, cwd) + suffix for cwd in self.act.cwds or () for suffix in suffixes]
        if HOLE in written or any(
            path == name or path.startswith(name.rstrip("/") + "/") or (word.glob and glob_fits(path, name))
            for path in written
            for name in names
        ):
            self.emit("run-written", word)

    def package(self, effect: str, word: Word, label: str = "") -> None:
        """Record that a command changes the manifest of its package."""
        self.path("writes", word.part("package.json"))

    def environment(self, effect: str, word: Word, label: str = "") -> None:
        """Judge the variables that a program expands again: make runs `$(shell …)` in any of them."""
        for name, value in self.frame.scope.variables.items():
            if isinstance(value, str) and ("$(" in value or "`" in value):
                self.emit("code-option", word.part(f"{name}={value}"), label)

    def input(self, effect: str, word: Word, label: str = "") -> None:
        """Judge what is known of standard input in the language that the label names."""
        for line in (self.frame.stdin or "").splitlines():
            self._language(label, effect, word.part(line))

    def unnamed(self, effect: str, word: Word, label: str = "") -> None:
        """Remember that a command writes files whose names are not in its words."""
        self.walker.written.add(HOLE)

    def module(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a module that is run by its name; what the row does not list is the project's or a tool."""
        slots = self.row.get("modules", {}).get(word.text)
        if not word.proven:
            self.emit("name-unproven", word)
        elif slots is None and row_of(word.text) is not None:
            self._command([word, *self.rest], until=False)  # `python -m pip` is pip
        if word.proven:
            self._run_written(word.part(word.text.replace(".", "/")), "", ".py")
        for slot in slots or ():
            if slot[1] and slot[1] != "code":
                self.fill(slot, word)
            else:
                self.emit("code" if slot[0] == "runs" else PURE[slot[0]], word, label)

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
        self.walker.assign(self.frame, self.act, name, value, word.part(value))

    def name(self, effect: str, word: Word, label: str = "") -> None:
        """Forget a variable that the command sets to something unknown."""
        if "[" in word.text and ("$(" in word.text or "`" in word.text):
            self.emit("code-unproven", word)
        self.walker.assign(self.frame, self.act, word.text, None, word)

    def alias(self, effect: str, word: Word, label: str = "") -> None:
        """Judge NAME=text of an alias: it changes what NAME means, and its text may run with any arguments."""
        name, equals, text = word.text.partition("=")
        if equals:
            self.emit("shadow", word, f": {name} becomes an alias")
            self.walker.nested(text.replace(HOLE, "${unproven}"), word.part(text), self.frame)

    def makevar(self, effect: str, word: Word, label: str = "") -> None:
        """Judge VAR=value of make, which expands $(shell …) in it; any other word is a target or a path."""
        name, equals, value = word.text.partition("=")
        if not equals:
            self.any("reads", word, label)
        elif name[-1:] == "!" or name == "SHELL" or any(mark in value for mark in _RECIPE):
            self.emit("code-option", word, label)
        else:
            self.walker.assign(self.frame, self.act, name.rstrip(":?+!"), value, word.part(value))
            self.any("reads", word.part(value), label)

    def args(self, effect: str, word: Word, label: str = "") -> None:
        """Judge options that a variable holds for the program its label names; what is no option is that program's business."""
        row = row_of(label.partition("-")[0])
        for name in label.split("-")[1:]:
            row = (row or {}).get("sub", {}).get(name)
        if row is None or HOLE in word.text:
            self.emit("code-option", word, label)
            return
        inner = {key: value for key, value in row.items() if key not in ("sub", "bare", "effects")}
        reader = type(self)(self.walker, self.frame, self.act, inner | {"operands": (("", "text", "*", "", (), ()),)})
        reader.read([word, *(word.part(part) for part in split(word.text))])  # type: ignore[attr-defined]

    def arithmetic(self, effect: str, word: Word, label: str = "") -> None:
        """Judge an arithmetic expression given as a word: what it holds is evaluated again."""
        if "$(" in word.text or "`" in word.text or HOLE in word.text or self.walker.tainted:
            self.emit("code-unproven", word)

    def mark(self, effect: str, word: Word, label: str = "") -> None:
        """Remember the string that stands for what the program finds."""
        self.marks = (*self.marks, word.text) if word.text else self.marks

    def config(self, effect: str, word: Word, label: str = "") -> None:
        """Judge key=value of a program's configuration by the row's table of keys."""
        key, _, value = word.text.partition("=")
        key = key.strip()
        for pattern, slots in self.row.get("config", {}).items():
            if _key_fits(key.lower(), pattern.lower()):
                for slot in slots:
                    if slot[1] == "shell" and value.lower() in ("true", "false", "cat", "less", ""):
                        continue
                    self.fill(slot, word.part(value.removeprefix("!") if slot[1] == "shell" else value))
                return
        if HOLE in key:
            self.emit("word-unproven", word)

    def setting(self, effect: str, word: Word, label: str = "") -> None:
        """Judge KEY with VALUE as the next operand: setting a key of the row's table has its effect, any other key and reading have none."""
        at = next((i for i, w in enumerate(self.operands) if w is word), len(self.operands))
        value = self.operands[at + 1] if at + 1 < len(self.operands) else None
        if value is None or (at > 0 and self.operands[at - 1].text == "get"):
            return
        key, table = word.text.lower(), self.row.get("config", {})
        known = next((slots for pattern, slots in table.items() if _key_fits(key, pattern.lower())), ())
        if not word.proven or (known and known[0][0] != "reads"):
            self.emit(PURE[effect], word.part(f"{word.text} {value.text}"), label)
        elif known:
            self.fill(known[0], value)

    def class_(self, effect: str, word: Word, label: str = "") -> None:
        """Judge a class that is run by its name: one whose file is in the project is a script, any other is code from somewhere."""
        path = word.text.replace(".", "/")
        names = (word.text,) if word.text.endswith((".java", ".jar")) else (f"{path}.class", f"{path}.java", word.text)
        known = [n for n in names if any(self.walker.machine.exists(n, cwd) for cwd in self.act.cwds or ())]
        if word.proven and (known or word.text.endswith((".java", ".jar"))):
            self.script("runs", word.part(known[0] if known else word.text), label)
        else:
            self.emit("code-option", word, label)

    def url(self, effect: str, word: Word, label: str = "") -> None:
        """Record a network address, one that is used or, without an effect, one that may be."""
        if word.text.startswith("file:"):
            self.emit("reads", self._address(word))
            return
        unknown = HOLE in addresses.host_of(word.text)
        key = "network-unproven" if unknown else addresses.network_effect(word.text)
        self.emit(key if effect else "network-maybe", word, label)

    def remote(self, effect: str, word: Word, label: str = "") -> None:
        """Record a git remote or rsync place: a name, an address, or a path."""
        kind = addresses.remote_kind(word.text)
        if kind == "path":
            self.emit("reads", self._address(word))
        elif kind == "ext":
            self.emit("code-option", word)
        else:
            self.emit("network" if kind != "local" else "network-local", word, label)

    def hostpath(self, effect: str, word: Word, label: str = "") -> None:
        """Record host:path, or a plain path."""
        kind = addresses.remote_kind(word.text)
        if kind in {"path", "name"}:
            self.path(effect or "reads", word)
        else:
            self.emit("network-local" if kind == "local" else "network", word, label)

    def atpath(self, effect: str, word: Word, label: str = "") -> None:
        """Record @file, name@file or name=<file; anything else is text."""
        paths = (
            [word.text[1:]]
            if word.text.startswith("@")
            else [part for mark in ("=@", "=<", "@") for part in word.text.partition(mark)[2:] if part]
        )
        for path in dict.fromkeys(paths):
            self.emit("reads", word.part(path.partition(";")[0]))

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
        if words:
            heuristics.judge_launched_name(self, words[0])
        if self.row.get("appends"):
            words.append(Word(HOLE, words[-1].end if words else 0, multi=True))
        if words:
            self.walker.wrapped(self.frame.enter(), self.act, words)
        return used

    def _unmarked(self, word: Word) -> Word:
        """Return a word with the places where the program puts what it finds as holes."""
        text = word.text
        if self.row["style"] == "find" and "{}" in text and len(self.operands) == 1 and self.operands[0].proven:
            found = text.replace("{}", f"{self.operands[0].text}/?")
            return Word(found, word.start, word.end, glob=True, argument=word.argument)
        for mark in self.marks:
            text = text.replace(mark, HOLE)
        return word if text == word.text else word.part(text)

    def _found(self, start: Word) -> Word:
        """Return what `find` may find below a starting point: with a test, not the point itself."""
        if self.seen <= {"-delete", "-depth", "-print"}:
            return start
        return Word(f"{start.text}/?", start.start, start.end, glob=True, argument=start.argument)


_KINDS: dict[str, Any] = {
    "any": Slots.any,
    "environment": Slots.environment,
    "input": Slots.input,
    "package": Slots.package,
    "path": Slots.path,
    "argv": Slots.argv,
    "words": Slots.words,
    "shell": Slots.shell,
    "code": Slots.code,
    "script": Slots.script,
    "module": Slots.module,
    "stdin": Slots.stdin,
    "listfile": Slots.listfile,
    "assign": Slots.assignment,
    "alias": Slots.alias,
    "args": Slots.args,
    "arithmetic": Slots.arithmetic,
    "makevar": Slots.makevar,
    "mark": Slots.mark,
    "name": Slots.name,
    "config": Slots.config,
    "class": Slots.class_,
    "setting": Slots.setting,
    "unnamed": Slots.unnamed,
    "url": Slots.url,
    "remote": Slots.remote,
    "hostpath": Slots.hostpath,
    "atpath": Slots.atpath,
}


def _key_fits(key: str, pattern: str) -> bool:
    if "*" not in pattern:
        return key == pattern
    head, _, tail = pattern.partition("*")
    return key.startswith(head) and key.endswith(tail) and len(key) >= len(head) + len(tail)


def glob_fits(path: str, glob: str) -> bool:
    """Say whether a glob may become a path."""
    from fnmatch import fnmatchcase  # noqa: PLC0415  only for a glob that is run

    return fnmatchcase(path, glob)


def split(text: str) -> list[str]:
    """Split a string into words as a shell does, quotes removed."""
    from shlex import split as shell_split  # noqa: PLC0415  only for the few programs that split strings

    try:
        return shell_split(text)
    except ValueError:
        return text.split()

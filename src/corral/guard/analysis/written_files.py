"""Judges words whose meaning depends on the files that exist or that the call itself writes: source text, output directories, paths of git."""

from __future__ import annotations

import sys

from corral._lib.lazy_regex import pattern
from corral.guard.analysis import heuristics
from corral.guard.path_zones import is_standard_device
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corral.guard.analysis.command import Command
    from corral.guard.analysis.option_parser import OptionParser
    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker
    from corral.guard.shell.expansion import Word

_UNKNOWN = pattern(rf"[{HOLE}{NUMBER_HOLE}*?\[]|\Z")
_COMPILERS = frozenset({"gcc", "tcc", "as", "ar", "rustc"})
_BUILDERS = frozenset({"bazel", "cargo", "cmake", "go", "make", "meson", "ninja", "scons", "waf"})
# Options of database shells that leave standard input unread.
_GIVES_STATEMENTS = frozenset({
    "-c", "--command", "-s", "-f", "-file", "--file", "-version", "--version", "-help", "--help", "-no-stdin",
})  # fmt: skip


def is_written(parser: OptionParser, word: Word, *suffixes: str, named: bool = False) -> bool:
    """Say whether this call writes the file, a file that the glob matches, or a file below the directory; or files it does not name."""
    walker, cwds = parser.walker, parser.command.cwds or ()
    if not walker.written or HOLE in word.text:
        return False
    return any(
        walker.may_be_written(word.text + suffix, cwd, named=named, glob=word.glob)
        for cwd in cwds
        for suffix in suffixes
    )


def may_be_written(walker: Walker, text: str, cwd: str, *, named: bool, glob: bool) -> bool:
    """Return whether a call that writes files may write a path, a directory that it is in, or a file below it; or only one that it names."""
    written = walker.written
    if HOLE in written and not named:
        return True
    walker.spend(len(written) // 4)
    if glob or HOLE in text or NUMBER_HOLE in text:
        return _may_find_written(walker, text, cwd)
    for place in {walker.machine.absolute(text, cwd), walker.machine.resolve(text, cwd)}:
        at = place
        while at:
            if at in written:
                return True
            at = at.rpartition("/")[0]
        if any(path.startswith(place + "/") for path in written):
            return True
    return False


def _may_find_written(walker: Walker, text: str, cwd: str) -> bool:
    """Return whether a glob, or a path with an unknown part, may lead to a file that this call writes.

    Only the directory before the unknown part is compared, not the names: options of the shell, quotes and the locale decide which
    names a glob matches. What `find` finds may be at any depth. A directory that only a glob names may be a link to any other.
    """
    known = text[: _UNKNOWN.search(text).start()]  # type: ignore[union-attr]  # it ends any text
    folder, _, _ = known.rpartition("/")
    if "/" in text[len(known) :]:
        return True
    place = walker.machine.resolve(folder or ("/" if known else "."), cwd)
    above = place
    while above:  # `find FILE -exec sh {} ;` finds the file itself
        if above in walker.written:
            return True
        above = above.rpartition("/")[0]
    if any(path == HOLE or path.startswith(f"{place.rstrip('/')}/") for path in walker.written):
        return True
    walker.look()
    return bool(walker.machine.matches(f"{place}/*", cwd))


def report_written(parser: OptionParser, word: Word, *suffixes: str) -> None:
    """Report code that this call writes itself."""
    if is_written(parser, word, *suffixes):
        parser.emit("run-written", word)


def report_scripts(walker: Walker, frame: Frame, command: Command, scripts: Iterable[str]) -> None:
    """Report the files that a program runs without being told so, such as a Makefile, if this call writes them.

    A build tool may make programs from what the call wrote: `echo … > x.sh; make x; ./x`.
    """
    for script in scripts:
        if _may_write_script(walker, script, frame.scope.cwds or ()):
            command.emit("run-written", command.words[0].part(script))
    if command.row is not None and command.row["id"] in _BUILDERS:
        walker.written.add(HOLE)


def _may_write_script(walker: Walker, script: str, cwds: Iterable[str]) -> bool:
    """Return whether this call may write a file, or one in any directory whose path ends as a glob does."""
    if "*" not in script:
        return any(walker.may_be_written(script, cwd) for cwd in cwds)
    from corral.guard.globs import glob_matches  # noqa: PLC0415  only for a call that writes files and runs code

    written = walker.written
    walker.spend(len(written) // 4)
    return any(path == HOLE or glob_matches(path, f"*/{script}") for path in written)


def report_shadowing(parser: OptionParser, word: Word, folders: Iterable[str]) -> None:
    """Report a module that this call writes to a folder in which python looks first, and which it may import."""
    if parser.row["id"] != "python":
        return
    arguments = {argument.text.rpartition("/")[2] for argument in parser.rest}
    for path in parser.walker.written:
        folder, _, name = path.removesuffix("/__init__.py").rpartition("/")
        module = name.partition(".")[0]
        is_module = folder in folders and path.endswith((".py", ".pyc", ".so"))
        # A tool such as pylint only reads the file that it gets.
        if is_module and (name not in arguments or module in sys.stdlib_module_names):
            parser.emit("run-written", word.part(name))


def judge_argument_file(parser: OptionParser, word: Word) -> None:
    """Judge `@file`, which many programs replace with the arguments in the file. If the call itself makes it, they are unknown."""
    file = word.part(word.text[1:])
    if HOLE in file.text or is_standard_device(file.text) or is_written(parser, file, ""):
        parser.emit("word-unproven", word)


def _source(parser: OptionParser, word: Word) -> None:
    """Judge source text, which can include any other file. If the call itself makes it, these files are unknown."""
    text = word.text
    is_input = text == "-" or word is parser.command.words[0] or (is_standard_device(text) and text != "/dev/null")
    if is_input or _is_made_source(parser, word):
        parser.emit("reads", word.part(HOLE))
    if not is_input:
        heuristics.judge_undescribed_word(parser, word)


def _is_made_source(parser: OptionParser, word: Word) -> bool:
    """Say whether this call writes a file, and not only as an object file by a compiler."""
    if not is_written(parser, word, "", named=True):
        return False
    absolute = parser.walker.machine.absolute
    paths = {absolute(word.text, cwd) for cwd in parser.command.cwds or ()}
    writers = [
        command.row["id"] if command.row else ""
        for command in parser.walker.commands
        for verb, target, _ in command.effects
        if verb == "writes" and any(absolute(target.text, cwd) in paths for cwd in command.cwds or ())
    ]
    return not word.text.endswith((".o", ".a", ".so")) or not _COMPILERS.issuperset(writers)


def _output_directory(parser: OptionParser, word: Word) -> None:
    """Record a directory that the program empties before it writes there."""
    walker, cwds = parser.walker, parser.command.cwds or ()
    is_new = word.proven and not any(
        walker.machine.exists(word.text, cwd)
        or walker.may_be_written(word.text, cwd)
        or not walker.made.isdisjoint((HOLE, walker.machine.absolute(word.text, cwd)))
        for cwd in cwds
    )
    parser.emit("writes", word)
    walker.note_written(word, parser.command.cwds)
    if not is_new or walker.has_moved:
        parser.emit("deletes", word)


def _worktree(parser: OptionParser, word: Word) -> None:
    """Judge an operand of `git checkout`: a branch, or a path whose uncommitted changes git replaces."""
    heuristics.judge_undescribed_word(parser, word)
    text, machine = word.text, parser.walker.machine
    if "--" in parser.seen or text == ".":
        return  # the row refuses these already
    is_restored = text in ("HEAD", "@") and word is parser.operands[0] and len(parser.operands) > 1
    is_pattern = word.glob or text[:1] == ":" or any(char in text for char in "*?[")
    if (
        is_restored
        or is_pattern
        or any(
            machine.exists(text, cwd) or machine.absolute(text, cwd) in parser.walker.written
            for cwd in parser.frame.scope.cwds or ("/",)  # `git -C sub checkout x`
        )
    ):
        parser.emit("discard", word)


def _input(parser: OptionParser, word: Word) -> None:
    """Judge a database shell that reads its statements from standard input: no second operand gives them, and no option."""
    if len(parser.operands) < 2 and parser.seen.isdisjoint(_GIVES_STATEMENTS):
        parser.emit("code-stdin", word)


HANDLERS: dict[str, Callable[[OptionParser, Word], None]] = {
    "source": _source, "outdir": _output_directory, "worktree": _worktree, "input": _input,
}  # fmt: skip

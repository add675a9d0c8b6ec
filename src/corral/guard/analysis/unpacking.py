"""Judges archives and patches, which write files that no word names. The user can review one that exists before the call."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.path_zones import inside
from corral.guard.shell.braces import HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.option_parser import OptionParser
    from corral.guard.shell.expansion import Word

# Text of a patch that may delete or rename a file, or make a link. `patch` removes a file that becomes empty if the time behind its
# name is 0, which has many spellings: 1970-01-01, 70-1-1, @0.
_PATCH_MARKS = pattern(r"(?m)/dev/null|deleted file|rename |120000|^[ \t]*(?:---|\+\+\+|\*\*\*)[ \t]+\S+[ \t]+\S")


def judge_archive(parser: OptionParser, word: Word) -> None:
    """Note files that no word names. If this call makes the archive, some of them may be links."""
    is_file = parser.row["id"] != "tar" or not parser.seen.isdisjoint(("-f", "--file"))
    if is_file and _is_reviewed(parser, parser.paths):
        parser.walker.written.add(HOLE)
    else:
        parser.walker.note_unnamed_links()


def judge_patch(parser: OptionParser, word: Word) -> None:
    """Judge a patch: if this call makes it, it may delete any file and make links, unless its text shows that it does not."""
    files = parser.paths
    if parser.row["id"] == "patch":  # its operands are the file to patch and the patch
        is_named = len(parser.operands) > 1 or not parser.seen.isdisjoint(("-i", "--input"))
        files = [file for file in files if file not in parser.operands[:1]] if is_named else []
    stdin = parser.frame.stdin
    is_shown = stdin is not None and HOLE not in stdin and _PATCH_MARKS.search(stdin) is None
    is_harmless = is_shown if stdin is not None and not files else _is_reviewed(parser, files)
    if is_harmless and parser.seen.isdisjoint(("-E", "--remove-empty-files")):
        parser.walker.written.add(HOLE)
    else:
        parser.emit("deletes", word.part(HOLE))
        parser.walker.note_unnamed_links()


def _is_reviewed(parser: OptionParser, files: list[Word]) -> bool:
    """Return whether a command gets its input from files that exist before the call, by name or by a redirect."""
    walker, own = parser.walker, parser.command
    redirected = [word for verb, word, _ in own.effects if verb == "reads" and word not in own.words]
    files = [word for word in (*files, *redirected) if word.text != "-"] if redirected else files
    if not files or HOLE in walker.written or any(not word.proven or word.text == "-" for word in files):
        return False
    walker.spend(len(walker.commands) * len(files))
    absolute = walker.machine.absolute
    places = {absolute(word.text, cwd) for word in files for cwd in own.cwds or ()}
    return not any(
        verb == "writes" and (not word.proven or any(inside(p, absolute(word.text, cwd)) for p in places))
        for command in walker.commands
        if command is not own
        for verb, word, _ in command.effects
        for cwd in command.cwds or ()
    )

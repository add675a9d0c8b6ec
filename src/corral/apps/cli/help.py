"""Help that belongs to no single verb: the overview that `corral --help` prints, and the layout of all help."""

from __future__ import annotations

import argparse
import os
import sys

from corral._lib.terminal import PIPE_COLUMNS, terminal_of, wrap
from corral.apps.cli.verb import GROUPS, grouped_verbs, load_verb

ABOUT = """\
Run the commands of a coding agent in a sandbox. A guard checks each command before it starts and refuses dangerous ones
with a reason. The kernel confines the commands that run to the project.

  corral                                show what is active here
  corral check -- rm -rf build          show whether a command would be allowed
  corral explain --shell 'cat x | sh'   show why, part by part
  corral run -- pytest -q               run a command in the sandbox
  corral try -- make format             run a command, read the diff, then keep or discard the changes
  corral install claude                 let Claude Code ask corral before every command
  corral log                            show what was tried, and the result
  corral view                           show the same in a browser
  corral init                           write a policy file for this project
  corral demo                           watch corral at work in a temporary project
"""
EXIT_CODES = """\
exit codes:
  3      check, explain: corral would ask you
  124    run, try: the command timed out
  125    corral itself failed; wrong arguments are such a failure
  126    run, try, check, explain: the guard denied the command
  130    interrupted

`corral COMMAND --help` lists the exit codes of each command.
"""
MAX_TEXT_COLUMNS = 120
MIN_COMMENT_COLUMNS = 24  # in a narrower terminal, the comment of an example goes below it


def overview() -> str:
    """Return what `corral --help` prints above the options. This imports every verb."""
    lines = [ABOUT]
    for group, names in grouped_verbs().items():
        rows = [f"  {name:11} {load_verb(name).VERB.summary}" for name in names]
        lines += [f"{GROUPS[group].lower()}:", *rows, ""]
    return "\n".join(lines).rstrip()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formats help to the terminal's width. argparse would import shutil to find out the width."""

    def __init__(self, prog: str) -> None:
        self._columns = terminal_of(sys.stdout, os.environ).columns
        super().__init__(prog, width=min(self._columns, PIPE_COLUMNS))

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  overrides argparse's method
        """Return the text in lines that fit: paragraphs flow, an indented example keeps a line of its own."""
        lines: list[str] = []
        flows = False
        for line in text.rstrip().splitlines():
            is_prose = bool(line) and not line.startswith(" ") and not line.endswith("s:")
            if flows and is_prose:
                lines[-1] += f" {line}"
            else:
                lines.append(line)
            flows = is_prose
        return "\n".join(part for line in lines for part in self._fit(line))

    def _fit(self, line: str) -> list[str]:
        width = min(self._columns, MAX_TEXT_COLUMNS)
        if len(line) <= width:
            return [line]
        if not line.startswith("  "):
            return wrap(line, width, "")
        command, blanks, comment = line.strip().partition("  ")
        if not blanks:
            return wrap(command, width, "  ")
        column = line.rindex(comment.strip())
        if width - column < MIN_COMMENT_COLUMNS:
            return [*wrap(command, width, "  "), *wrap(comment.strip(), width, " " * 6)]
        first, *rest = wrap(comment.strip(), width, " " * column)
        return [line[:column] + first[column:], *rest]

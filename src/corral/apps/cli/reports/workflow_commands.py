"""Reports to GitHub Actions: annotations, and the summary of a job. Text of a command can never act as a workflow command.

GitHub's runner reads commands such as `::error::` from each line of a step's output, also from lines that a command prints. While
text that is not corral's own may be printed, corral turns this off by a word that no command knows.
"""

from __future__ import annotations

import os
import stat
import sys
from secrets import token_hex

from corral._lib.terminal import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TextIO

WHEN = ("auto", "always", "never")
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
MAX_TEXT = 600  # characters of a text in an annotation or a cell
MAX_SUMMARY_BYTES = 512 * 1024  # GitHub drops the summary of a step that is longer than 1 MiB
_ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY = {":": "%3A", ",": "%2C"}


def is_wanted(when: str, environ: Mapping[str, str]) -> bool:
    """Return whether to report to GitHub: as the option says, or where its runner says that it runs the step."""
    return when == "always" or (when == "auto" and environ.get("GITHUB_ACTIONS") == "true")


def annotation(level: str, title: str, text: str) -> str:
    """Return the workflow command for an annotation: `error`, `warning` or `notice`."""
    return f"::{level} title={_escape(title, _ESCAPED | _IN_PROPERTY)}::{_escape(text, _ESCAPED)}"


def _escape(text: str, table: Mapping[str, str]) -> str:
    lines = (printable(line) for line in text.split("\n"))
    return "".join(table.get(char, char) for char in "\n".join(lines)[:MAX_TEXT])


def markdown(text: str) -> str:
    """Return text for a cell of a table. Character references are never markup, links or HTML."""
    cut = printable(text.replace("\n", " "))[:MAX_TEXT]
    return "".join(char if char.isalnum() or char == " " else f"&#{ord(char)};" for char in cut)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown. The cells are escaped."""
    titles = [markdown(word) for word in head]
    lines = [titles, ["---"] * len(titles), *([markdown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def add_summary(text: str, environ: Mapping[str, str]) -> None:
    """Append Markdown to the summary of the step. A failure is a warning: it must not change the exit code."""
    path = environ.get(SUMMARY_VARIABLE, "")
    if not path:
        return
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_SUMMARY_BYTES:
        data = data[:MAX_SUMMARY_BYTES].rpartition(b"\n")[0] + b"\n\nThe rest is left out.\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "ab") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                file.write(data)
    except OSError as error:
        print(f"corral: the job summary cannot be written: {error.strerror}", file=sys.stderr)


def harmless_json(text: str) -> str:
    """Return the same JSON without the older form of a workflow command, which may stand anywhere in a line."""
    return text.replace("##[", "#\\u0023[")


class Guard:
    """Turns workflow commands off while text of others is printed, and on again where that is safe."""

    def __init__(self, stream: TextIO, *, is_only: bool = True) -> None:
        self._word = token_hex(16)
        self._stream = stream
        self._is_only = is_only  # whether the runner reads no other stream
        print(f"::stop-commands::{self._word}", file=stream, flush=True)

    def resume(self, *, has_run: bool = True) -> bool:
        """Turn commands on again, if the runner reads one stream. It reads two in an order that nobody knows.

        Otherwise they stay off until the end of the step, if a command has run. Returns whether they are on.
        """
        is_safe = self._is_only or not has_run
        if is_safe:
            # The text before may have ended without a new line.
            print(f"\n::{self._word}::", file=self._stream, flush=True)
        return is_safe


def guard_command() -> Guard:
    """Turn workflow commands off before a command prints to corral's own stdout and stderr."""
    out, error = (os.fstat(number) for number in (1, 2))
    if (out.st_dev, out.st_ino) == (error.st_dev, error.st_ino):
        return Guard(sys.stdout)
    if not _is_pipe(error):
        return Guard(sys.stdout)
    # On stderr: the runner handles its lines first, and `$(corral run …)` does not capture it.
    return Guard(sys.stderr, is_only=not _is_pipe(out))


def _is_pipe(status: os.stat_result) -> bool:
    return stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)

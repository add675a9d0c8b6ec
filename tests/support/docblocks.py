"""Parses the code blocks of a Markdown page and the comments above them. Runs nothing.

A block's language decides if it is run, loaded or parsed. A block with a title is written to a file. A block that cannot be run has a line
`<!-- not run: REASON -->` above it, and the reason is one of REASONS.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REASONS = {
    "host": "needs the program of a coding agent",
    "network": "fetches from a package registry",
    "terminal": "asks the user at a terminal",
    "framework": "needs a framework: make test-frameworks runs the same code",
    "clone": "is for a clone of the repository, and takes minutes",
    "machine": "shows a machine that lacks a feature",
    "server": "runs a server until it is stopped",
    "replayed": "is run by the named test",
}
LANGUAGES = ("console", "python", "toml", "json", "jsonl", "yaml", "js", "text")
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+)(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- not run: (\w+)(?:, ([^ ]+))? -->\n\s*\Z")
OUTPUT = re.compile(r"<!-- output -->\n\s*\Z")
TITLE = re.compile(r' title="([^"]+)"')


class Block(NamedTuple):
    """A code block of a page."""

    line: int
    language: str
    title: str
    text: str
    reason: str  # the reason why it is not run, or empty
    detail: str
    is_output: bool  # the output of the program above it


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    made = []
    for found in FENCE.finditer(text):
        above = text[: found.start()]
        mark = MARK.search(above)
        title = TITLE.search(found["rest"])
        width = len(found["indent"])
        body = "".join(line[width:] if line.strip() else line for line in found["text"].splitlines(keepends=True))
        made.append(
            Block(
                above.count("\n") + 1,
                found["language"],
                title[1] if title else "",
                body,
                mark[1] if mark else "",
                (mark[2] or "") if mark else "",
                bool(OUTPUT.search(above)),
            )
        )
    return made


def without_blocks(text: str) -> str:
    """Return the text of a page without its code blocks."""
    return FENCE.sub("", text)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Return each command of a console block with the output shown below it. A line that begins with `> ` continues the command."""
    command, shown = "", ""
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        elif line.startswith("> ") and command.endswith(("\\\n", "'\n", '"\n')) and not shown:
            command += line[2:]
        else:
            shown += line
    if command:
        yield command, shown


def fits(shown: str, printed: str) -> bool:
    """Return True if the output matches the page. In the page, `…` stands for any text in a line, and alone for any lines."""
    wanted = ""
    for line in shown.rstrip().splitlines():
        if line.strip() == "…":
            wanted += r"(?:[^\n]*\n)*?"
        else:
            wanted += r"[^\n]*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ \t]*\n"
    return re.fullmatch(wanted + r"\s*", printed.rstrip() + "\n") is not None


def pages(root: Path) -> list[Path]:
    """Return every page whose blocks are run. Generated pages are left out: the tests of their generators check them."""
    made = (root / "docs" / "rules", root / "docs" / "reference")
    found = [path for path in sorted((root / "docs").rglob("*.md")) if not any(path.is_relative_to(p) for p in made)]
    found.remove(root / "docs" / "examples.md")  # generated too; tests/repository/test_examples.py runs the examples
    return [root / "README.md", root / "SECURITY.md", root / "CONTRIBUTING.md", *found]

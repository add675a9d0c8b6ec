"""Separates corral's own options from the command behind them, as sudo and env do."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

OTHER_SOURCES = ("--shell", "--jsonl")  # with one of these the call does not stand on the command line


def split(
    parser: argparse.ArgumentParser, words: list[str], behind: list[str] | None, *, leading: int
) -> tuple[list[str], list[str] | None]:
    """Return corral's own words and the command. `words` stand before the first `--` and `behind` stands after it.

    The first `leading` words that are no options are corral's: its verb, or `grants add`. An option that the parser
    does not know stays with corral's words, so that the parser's error names it.
    """
    at = 0
    while at < len(words):
        name, given, _ = words[at].partition("=")
        if name in OTHER_SOURCES:
            break
        if not name.startswith("-") or name == "-":
            if not leading:
                # Dashes behind a command's name are the command's.
                return words[:at], [*words[at:], *([] if behind is None else ["--", *behind])]
            leading -= 1
        action = parser._option_string_actions.get(name)
        at += 2 if action is not None and action.nargs != 0 and not given else 1
    return words, behind

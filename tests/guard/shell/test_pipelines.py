"""Tests which texts have a long pipeline: the parser would take gigabytes for an error at its end."""

import pytest

from corral.guard.shell.grammar import make_parser
from corral.guard.shell.pipelines import has_long_pipeline

PARSER = make_parser()
LIMIT = 50


def is_long(text: str) -> bool:
    return has_long_pipeline(text.encode(), lambda source: PARSER.parse(source).root_node, LIMIT)


SHORT = {
    "lines with one pipe each": "a | b\n" * 100,
    "statements with one pipe each": "a | b; " * 100,
    "pipes in a quoted word": "grep '" + "a|" * 100 + "' x",
    "pipes in a comment": "# " + "a|" * 100,
    "alternatives of cases": "case $x in\na|b) c;;\nesac\n" * 100,
    "lists of or": "a || " * 100 + "b",
    "pipes in functions": "f() {\n  a | b\n}\n" * 100,
}
LONG = {
    "one line": "a|" * 100 + "a",
    "an error at its end": "a|" * 100 + ")",
    "lines that end with a pipe": "a |\n" * 100 + "b",
    "comments between the lines": "a | # c\n\n" * 100 + "b",
    "continued lines": "a \\\n| " * 100 + "b",
    "standard error": "a |& " * 100 + "b",
    "groups": "{ a; b; }|" * 100 + "b",
    "groups with pipes over several lines": "{\nx | y\n} | " * 100 + "b",
    "conditions": "if a; then b; fi |" * 100 + "b",
    "loops over several lines": "while a\ndo\nb\ndone |" * 100 + ")",
    "a substitution": 'echo "$(' + "a|" * 100 + 'a)"',
    "an open extended glob": "ls !(" + "a|" * 100,
    "in a loop": "while " + "a|" * 100 + "a; do b; done",
    "three in a row": "a|||" * 100,
}


@pytest.mark.parametrize("name", SHORT)
def test_text_without_a_long_pipeline(name: str) -> None:
    assert not is_long(SHORT[name])


@pytest.mark.parametrize("name", LONG)
def test_text_with_a_long_pipeline(name: str) -> None:
    assert is_long(LONG[name])


def test_text_that_is_not_parsed_in_time_counts_as_long() -> None:
    assert has_long_pipeline(b"a|b", lambda source: None, LIMIT)

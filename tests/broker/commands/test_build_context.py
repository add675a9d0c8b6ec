"""Tests which files of a directory a build gets."""

import pytest

from corral.broker.commands.build_context import IgnoreRules

EXCLUDED = {
    "name at the top": ("x", ["x", "x/a", "x/a/b"], ["a/x", "xy"]),
    "trailing slash": ("/x/", ["x", "x/a"], ["a/x"]),
    "star": ("*.log", ["a.log", ".log"], ["a/b.log", "a.logs"]),
    "any depth": ("**/x", ["x", "a/x", "a/b/x/c"], ["ax", "a/xy"]),
    "star below": ("a/*/x", ["a/b/x"], ["a/x", "a/b/c/x"]),
    "question mark": ("a?", ["ab"], ["a", "a/b"]),
    "range": ("[a-c]x", ["ax", "cx/y"], ["dx"]),
    "other than": ("[^a]x", ["bx"], ["ax"]),
    "escape": ("\\*x", ["*x"], ["ax"]),
    "exception": ("a/*\n!a/b", ["a/c"], ["a/b", "a/b/c"]),
    "later line counts": ("!x\nx", ["x"], []),
    "comment and blank": ("# x\n\nx", ["x"], ["# x"]),
    "dots of a path": ("./a/../x", ["x"], ["a"]),
    "everything": ("*", ["x", "x/y"], ["Dockerfile", ".dockerignore"]),
    "letters of an expression": ("a.b+(c)", ["a.b+(c)"], ["aXb+(c)", "a.bb(c)"]),
}


@pytest.mark.parametrize("name", EXCLUDED)
def test_ignore_file_excludes(name: str) -> None:
    text, excluded, kept = EXCLUDED[name]
    rules = IgnoreRules(text)
    assert (
        [path for path in excluded if not rules.excludes(path)],
        [path for path in kept if rules.excludes(path)],
    ) == ([], [])

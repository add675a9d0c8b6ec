"""Excerpts of a call, with carets under the right characters despite quotes, escapes and wide letters."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._lib.terminal import columns
from corral.model.call import Call
from corral.model.call_excerpt import Span, one_line, underlined


def shell(text: str) -> Call:
    return Call(text, shell=True)


@pytest.mark.parametrize(
    ("call", "span", "rows"),
    [
        pytest.param(Call(["rm", "x"]), Span(0, 2, 0), [("rm x", "^^")], id="a name"),
        pytest.param(Call(["cat", "a/../../b"]), Span(0, 9, 1), [("cat a/../../b", "    ^^^^^^^^^")], id="an argument"),
        pytest.param(
            Call(["x", "--o=/etc"]), Span(4, 4, 1), [("x --o=/etc", "      ^^^^")], id="a part of an argument"
        ),
        pytest.param(Call(["x", "a b;c"]), Span(3, 1, 1), [("x 'a b;c'", "      ^")], id="inside quotes"),
        pytest.param(Call(["x", "it's"]), Span(3, 1, 1), [("x 'it'\\''s'", "         ^")], id="after a quoted quote"),
        pytest.param(Call(["x", "a\nb"]), Span(1, 1, 1), [("x $'a\\nb'", "     ^^")], id="a newline"),
        pytest.param(Call(["x", "\x1b[31m"]), Span(0, 1, 1), [("x $'\\x1b[31m'", "    ^^^^")], id="an escape"),
        pytest.param(Call(["日本", "b"]), Span(0, 1, 1), [("'日本' b", "       ^")], id="after wide letters"),
        pytest.param(Call(["x", 3]), Span(0, 1, 1), [("x 3", "  ^")], id="not a string"),
        pytest.param(shell("ls | sh"), Span(5, 2), [("ls | sh", "     ^^")], id="shell text"),
        pytest.param(shell("ls\n\trm x\nls"), Span(4, 2), [("    rm x", "    ^^")], id="one of several lines"),
        pytest.param(shell("a\nb\nc"), Span(0, 3), [("a", "^"), ("b", "^")], id="over two lines"),
        pytest.param(Call([]), Span(), [], id="nothing to show"),
        pytest.param(Call(["ls"]), Span(0, 2, 5), [], id="an argument that is not there"),
        pytest.param(shell("ls"), Span(9, 2), [], id="past the end"),
    ],
)
def test_span_is_underlined(call: Call, span: Span, rows: list[tuple[str, str]]) -> None:
    assert underlined(call, span, 80, "…") == rows


def test_long_call_is_cut_around_the_span() -> None:
    assert underlined(shell("a " * 50 + "rm" + " b" * 50), Span(100, 2), 30, "…") == [
        ("…a a a a rm b b b b b b b b b…", "         ^^")
    ]
    assert underlined(Call(["a"] * 500 + ["rm"]), Span(0, 2, 500), 12, "…") == [("…a a a a rm", "         ^^")]


def test_lines_of_a_long_span_are_counted() -> None:
    rows = underlined(shell("x\n" * 20), Span(0, 40), 80, "…")
    assert rows == [*[("x", "^")] * 6, ("… and 14 more lines", "")]


def test_megabyte_call_is_cut_first() -> None:
    rows = underlined(shell("x" * 500_000 + "rm" + "y" * 500_000), Span(500_000, 2), 20, "…")
    assert rows == [("…xxxxxrmyyyyyyyyyyy…", "      ^^")]
    assert one_line(Call(["y" * 1_000_000, "z"] * 1000), 10, "…") == "yyyyyyyyy…"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (Call(["ls", "-la", ""]), "ls -la ''"),
        (shell("a\nb"), "a\\nb"),
        (Call("ls -la"), "ls -la"),
        (Call([]), ""),
    ],
    ids=["argv", "shell", "a string that should have been a list", "empty"],
)
def test_call_fits_on_one_line(call: Call, line: str) -> None:
    assert one_line(call, 80, "…") == line


@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=0x20, max_codepoint=0x7E)), min_size=1))
def test_printable_arguments_round_trip_through_shlex(argv: list[str]) -> None:
    assert shlex.split(one_line(Call(argv), 10**6, "…")) == argv


@pytest.mark.parametrize("text", ["a\nb", "\t", "it's\n\\", "\x1b[0m", "caf\u00e9 \u202e", "\x7f"])
def test_escaped_argument_round_trips_through_bash(text: str) -> None:
    shown = one_line(Call([text]), 1000, "…")
    bash = ["bash", "--norc", "-c", f"printf %s {shown}"]
    assert subprocess.run(bash, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}).stdout.decode() == text


@given(
    argv=st.lists(st.text(st.characters(codec=None)), min_size=1, max_size=5),
    argument=st.none() | st.integers(0, 5),
    start=st.integers(0, 40),
    length=st.integers(0, 40),
    width=st.integers(8, 60),
)
def test_any_span_fits_the_width_and_is_printable(
    argv: list[str], argument: int | None, start: int, length: int, width: int
) -> None:
    for call in (Call(argv), shell(" ".join(argv))):
        for text, carets in underlined(call, Span(start, length, argument), width, "…"):
            assert text.isprintable()
            assert columns(text) <= width + 9  # the widest escape is ten columns
            assert set(carets) <= {" ", "^"}

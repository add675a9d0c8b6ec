"""Terminal output: colours and signs as supported, and untrusted text that cannot control the terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._lib.terminal import Terminal, clip, columns, pad, printable, terminal_of, wrap


class Stream(io.TextIOWrapper):
    """A stream with the properties that a test sets."""

    def __init__(self, *, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(
    ("tty", "environ", "encoding", "expected"),
    [
        pytest.param(True, {"TERM": "xterm"}, "utf-8", Terminal(80, color=True), id="a terminal"),
        pytest.param(True, {"TERM": "xterm", "NO_COLOR": "1"}, "utf-8", Terminal(80), id="NO_COLOR"),
        pytest.param(True, {"TERM": "xterm", "NO_COLOR": ""}, "utf-8", Terminal(80, color=True), id="NO_COLOR empty"),
        pytest.param(True, {"TERM": "dumb"}, "utf-8", Terminal(80), id="a dumb terminal"),
        pytest.param(True, {}, "utf-8", Terminal(80), id="a terminal that does not say which"),
        pytest.param(False, {"TERM": "xterm"}, "utf-8", Terminal(100), id="a pipe"),
        pytest.param(False, {"COLUMNS": "60"}, "utf-8", Terminal(60), id="COLUMNS"),
        pytest.param(False, {"COLUMNS": "3"}, "utf-8", Terminal(24), id="too narrow to align anything"),
        pytest.param(False, {"COLUMNS": "wide"}, "utf-8", Terminal(100), id="COLUMNS that is no number"),
        pytest.param(False, {}, "ascii", Terminal(100, unicode=False), id="an ASCII stream"),
    ],
)
def test_terminal_of_a_stream(tty: bool, environ: dict[str, str], encoding: str, expected: Terminal) -> None:
    assert terminal_of(Stream(tty=tty, encoding=encoding), environ) == expected


def test_paint_is_plain_text_without_colour() -> None:
    assert Terminal(color=True).paint("deny", "no") == "\x1b[1;31mno\x1b[0m"
    assert Terminal().paint("deny", "no") == "no"


def test_signs_have_an_ascii_form() -> None:
    for name in ("deny", "ask", "allow", "cut", "dot", "tee", "end", "bar"):
        assert Terminal(unicode=False).sign(name).isascii()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain text, 'quotes' and \\", "plain text, 'quotes' and \\", id="ASCII stays"),
        pytest.param("café 日本 ✓", "café 日本 ✓", id="letters of the world stay"),
        pytest.param("a\nb\tc\r", "a\\nb\\tc\\r", id="line breaks"),
        pytest.param("\x1b[2Jgone", "\\x1b[2Jgone", id="an escape sequence"),
        pytest.param("\x9b31m", "\\u009b31m", id="a C1 control"),
        pytest.param("\u202egpj.exe", "\\u202egpj.exe", id="right-to-left override"),
        pytest.param("a\u200bb\ufeff", "a\\u200bb\\ufeff", id="zero width"),
        pytest.param("\u3164=1", "\\u3164=1", id="a letter that is blank"),
        pytest.param("\udcff\ud800", "\\xff\\ud800", id="bytes that are no text"),
        pytest.param("\U000e0041", "\\U000e0041", id="a tag character"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)))
def test_printable_text_cannot_move_the_cursor(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.parametrize(("text", "expected"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("", 0)])
def test_columns_of_wide_and_combining_characters(text: str, expected: int) -> None:
    assert columns(text) == expected


@given(st.text(st.characters(categories=("L", "N", "P", "Zs"))), st.integers(1, 30))
def test_clipped_text_fits(text: str, width: int) -> None:
    assert columns(clip(text, width, "…")) <= width


@pytest.mark.parametrize(
    ("text", "shown"), [("short", "short"), ("exactly 10", "exactly 10"), ("longer than ten", "longer th…")]
)
def test_only_long_text_is_clipped(text: str, shown: str) -> None:
    assert clip(text, 10, "…") == shown


def test_padding_counts_columns_not_characters() -> None:
    assert [pad("ab", 4), pad("日", 4), pad("abcdef", 4)] == ["ab  ", "日  ", "abcdef"]


def test_wrapping_breaks_between_words_and_in_long_words() -> None:
    assert wrap("one two three incomprehensibility x", 11, "  ") == [
        "  one two",
        "  three",
        "  incompreh",
        "  ensibilit",
        "  y x",
    ]


@given(st.text(st.characters(categories=("L", "N", "Zs"))), st.integers(4, 30))
def test_wrapped_text_fits_and_is_complete(text: str, width: int) -> None:
    lines = wrap(text, width, "  ")
    assert all(columns(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")

"""The sed parser: harmless scripts first, then scripts that run, read and write, then syntax errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.guard.analysis.embedded_languages import SedSyntaxError, parse_sed

HARMLESS = [
    "p", "/^def/p", "60,75p;135,150p", "s/a/b/", "s/a/b/g;s/c/d/2p", "s|/etc|/usr|g", "$d", "1,/x/d", "/a/,/b/{s/x/y/;p}", "2q", "a hello", "a\\\nhello\\\nworld", "i\\  text", "/x/c new",
    "y/abc/xyz/", "s/\\//|/", "s/[/]/x/", ":a;N;$!ba;s/\\n/ /g", "1~2p", "/x/I,+3d", "\\,x,d", "s,a,b,", "n;d", "/e/p", "s/e/w/", "# e id\np", "=", "5!d", "s/a/w\\n/", "$!N", "/w x/d",
]  # fmt: skip
ACTIVE = {
    "1e id": [("runs", "id")],
    "e": [("runs", "")],
    "s/a/b/e": [("runs", "")],
    "s/a/b/ge": [("runs", "")],
    "w out": [("writes", "out")],
    "/x/w ../out": [("writes", "../out")],
    "s/a/b/w out": [("writes", "out")],
    "r in": [("reads", "in")],
    ":x e id": [("runs", "id")],
    "b x\te id": [("runs", "id")],
    "p;R /etc/passwd": [("reads", "/etc/passwd")],
    "p\n1e id": [("runs", "id")],
    "{e id": [("runs", "id")],
    "a x\\\\\ne id": [("runs", "id")],
    "a\\\nx\\\\\ne id": [("runs", "id")],
    "i\\\\\ne id": [("runs", "id")],
    "s/[\\]/x/;e id #]/y/": [("runs", "id #]/y/")],
    "/[\\]/e id #]/p": [("runs", "id #]/p")],
    "s/[\\[\\]]//g": [],
    "c x\\\\\\\ntext\ne id": [("runs", "id")],
    "w /dev/stdout": [],
}


@pytest.mark.parametrize("script", HARMLESS)
def test_harmless_sed_script_has_no_effect(script: str) -> None:
    assert parse_sed(script) == []


@pytest.mark.parametrize(("script", "found"), ACTIVE.items())
def test_sed_script_effects_are_found(script: str, found: list[tuple[str, str]]) -> None:
    assert parse_sed(script) == found


@pytest.mark.parametrize("script", ["s/a", "s", "k", "s/a/b/q", "/x"])
def test_invalid_sed_script_is_a_syntax_error(script: str) -> None:
    with pytest.raises(SedSyntaxError):
        parse_sed(script)


@given(st.text(alphabet="sywerpqdain/;{}\n\\ 1,$!#[]^x"))
def test_sed_parser_accepts_any_text(script: str) -> None:
    try:
        parse_sed(script)
    except SedSyntaxError:
        return

"""Expansion into words, compared with the expansion of bash itself."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.guard.evaluate import commands_of
from corral.guard.machine import Machine
from corral.guard.shell.expansion import decode_ansi_c
from corral.model.call import Call

MACHINE = Machine("/var/tmp", home="/home/nobody")


def last_arguments(text: str) -> list[str | None]:
    """Return the arguments of the last command as the guard expands them; None stands for an unknown argument."""
    commands, _ = commands_of(Call(text, shell=True), MACHINE)
    return [w.text if w.proven else None for w in commands[-1].words[1:]]


CONSTANT = [
    "a 'b c' \"d e\"", "a\\ b", "a''b\"\"c", "$'a\\tb\\x41\\u0062\\101\\cb\\'q'", "{a,b}{1,2}", "{1..4}", "{d..a}", "{01..03}", "a{b,'c d'}e", "~", "~/x", "'~'/x", "x=~", "\\~",
    "\"a\\\"b\\$c\\\\d\\e\"", "a\\\nb", "'a\\b'", "{a}", "{a,}", "a{b", "\"{a,b}\"", "é{à,ü}", "''", "\"\"", "a#b", "$\"x\"", "{a,{b,c}}d", "-{d,p}rint", "{3..1..2}",
]  # fmt: skip


@pytest.mark.parametrize("text", CONSTANT)
def test_constant_word_expands_as_in_bash(text: str) -> None:
    made = subprocess.run(
        ["/bin/bash", "--norc", "-c", f"printf '%s\\0' {text}"],
        capture_output=True, env={"HOME": "/home/nobody", "LC_ALL": "C.UTF-8"}, check=True,
    )  # fmt: skip
    assert last_arguments(f"cmd {text}") == made.stdout.decode().split("\0")[:-1]


VARIABLES = {
    "x=1; cmd $x": ["1"],
    "x='a b'; cmd $x": ["a", "b"],
    "x='a b'; cmd \"$x\"": ["a b"],
    "x=; cmd $x": [],
    'x=; cmd "$x"': [""],
    "x=a; x+=b; cmd $x": ["ab"],
    "x=(a 'b c'); cmd \"${x[@]}\" ${x[1]}": ["a", "b c", "b", "c"],
    "x=a; cmd ${x}b ${#x}": ["ab", None],
    "x=a; cmd ${x:-y}": ["a"],
    "cmd $unknown": [None],
    'cmd "pre$unknown"': [None],
    "cmd $(ls)": [None],
    "cmd $(echo a)": ["a"],
    "cmd *.py": [None],
    "cmd $((1+1))": [None],
    "if a; then x=1; else x=2; fi; cmd $x": [None],
    "if a; then x=1; else x=1; fi; cmd $x": ["1"],
    "a && x=1; cmd $x": [None],
    "x=1; (x=2); cmd $x": ["1"],
    "x=1; a | x=2; cmd $x": ["1"],
    "x=1; while a; do x=2; done; cmd $x": [None],
    "x=1; for i in 1 2; do :; done; cmd $x": ["1"],
    "x=1; read x; cmd $x": [None],
    "x=2 true; cmd $x": [None],
    "x=1; x=2 true; cmd $x": ["1"],
    "cmd $HOME": ["/home/nobody"],
    "cd src && cmd $PWD": ["/var/tmp/src"],
    "cd src; cmd $PWD": [None],
    "HOSTNAME=a/b; cmd $HOSTNAME": ["a/b"],
    "x=../y; ((1 || x)); cmd $x": ["../y"],
    "x=../y; ((0 && (x = 1))); cmd $x": [None],
    "IFS=X; x=aXb; cmd $x": [None],
    "cmd $'\\x{72}m'": ["rm"],
    "cmd $'\\u00e9' $'\\xc3\\xa9' $'\\303' $'\\c?'": [None, None, None, None],
    "x=; : ${x:=rm}; cmd $x": [None],
    "declare x={a,b}; cmd $x": [None],
    "export x=${y}{a,b}; cmd $x": [None],
    "f() { local x={1..3}; cmd $x; }; f": [None],
    "export x='{a,b}'; cmd $x": ["{a,b}"],
    "x={a,b}; cmd $x": ["{a,b}"],
    "x=a & cmd $x": [None],
    "f() { local x; cmd $x; }; x=a; f": [None],
    "x=a; f() { local x=b; }; f; cmd $x": ["a"],
    "declare -l x; x=RM; cmd $x": [None],
    "x=a; f() { x=b; return; x=a; }; f; cmd $x": [None],
    "cmd <(ls)": [None],
    "x=1; unset x; cmd $x": [],
    "unset x; cmd ${x:-/}": ["/"],
    "declare -l x=RM; cmd $x": [None],
    "f=a.txt; cmd ${f%.txt}.md": ["a.md"],
    "a=1 b=2\ncmd $a$b": ["12"],
    "cmd $(command -v node)": [None],
    'set -- p q; cmd "$@"': ["p", "q"],
    "set -- p q; shift; cmd $1": ["q"],
    "declare x=1; cmd $x": ["1"],
    "export x=1; cmd $x": ["1"],
    "x=1; printf -v x y; cmd $x": [None],
}


@pytest.mark.parametrize(("text", "words"), VARIABLES.items())
def test_variable_expands_only_to_a_certain_value(text: str, words: list[str | None]) -> None:
    assert last_arguments(text) == words


@given(st.text())
def test_ansi_c_decoder_accepts_any_text(text: str) -> None:
    assert "\0" not in decode_ansi_c(text)

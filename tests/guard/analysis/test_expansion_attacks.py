"""Attacks that exploit a difference between the walker's beliefs and bash. Each works in bash, and `strict` refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from bash_attack import assert_attack_is_refused

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS_THAT_MAY_BE_EMPTY = [
    "cat src/$!../../outside/secret.txt",
    'cat "src/$!../../outside/secret.txt"',
    "cat src/${LINES}../../outside/secret.txt",
    "cat < src/$COLUMNS../../outside/secret.txt",
    "echo hi > src/$!../../outside/CANARY",
    "find victim $!-delete",
    "tar cf x.tar --$!remove-files victim",
    "bash -$- 'rm -rf victim'",
    'f() { cat src/$1../../outside/secret.txt; }; f "$!"',
    "cat src/${UID#$UID}../../outside/secret.txt",
    "x=$?; cat src/${x%0}../../outside/secret.txt",
    "cat src/${OSTYPE%linux-gnu}../../outside/secret.txt",
    "x=; ((0 && x++)); cat src/$x../../outside/secret.txt",
    "cat src/$TMPDIR../../outside/secret.txt",
    "timeout $TMPDIR 5 find victim -delete",
    "IFS=0; cat src/$((0))../outside/secret.txt",
    "x=; IFS=0; cat src/${#x}../outside/secret.txt",
]
OUTPUT_THAT_MAY_BE_EMPTY = [
    "cat src/$(nproc --bad)../../outside/secret.txt",
    "PATH=/usr/nosuch; read x < src/$(nproc)../../outside/secret.txt; echo $x",
    "for PATH in /usr/nosuch; do read x < src/$(id -u)../../outside/secret.txt; echo $x; done",
    "read y < src/$(PATH=/usr/nosuch nproc)../../outside/secret.txt; echo $y",
    "ulimit -n 4; read x < src/$(echo a)../../outside/secret.txt; echo $x",
    "PATH=/usr/nosuch; x=$(cat <<E\nfoo\nE\n); read y < src/$x../../outside/secret.txt; echo $y",
]
OPTIONS_KNOWN_AT_RUN_TIME = [
    "bash \"-$-\" 'rm -rf victim'",
    "y=$(echo -n c | cat); bash \"-$y\" 'rm -rf victim'",
    'y=$(echo remove-files | cat); tar cf x.tar "--$y" victim',
    'y=$(echo -n fdx | cat); git init -q; git clean "-$y" victim',
    'y=$(echo -n c | cat); python3 "-I$y" \'import shutil; shutil.rmtree("victim")\'',
]
WORDS_THAT_SHIFT = [
    "shopt -s nullglob; timeout ZQ* 5 find victim -delete",
    "shopt -s nullglob; timeout -s ZQ* KILL 5 find victim -delete",
    "shopt -s nullglob; x='ZQ*'; timeout $x 5 find victim -delete",
    "shopt -s nullglob; cp a.txt ../outside/CANARY ZQ*",
    "touch 5 find; timeout [5f]* victim -delete",
    "timeout $(true) 5 find victim -delete",
    "timeout `true` 5 find victim -delete",
    "timeout ${u:+x} 5 find victim -delete",
    'timeout "$@" 5 find victim -delete',
    'timeout "${a[@]}" 5 find victim -delete',
    'a=(); timeout "${a[@]}" 5 find victim -delete',
    "a=('' 5); timeout ${a[@]} find victim -delete",
    'f() { timeout "${@}" 5 find victim -delete; }; f',
    "timeout ${!ZZ*} 5 find victim -delete",
    "nice -n $(true) 5 find victim -delete",
    "x=$(echo '1 ../outside/secret.txt' | cat); head -n$x a.txt",
    "x=$(echo '1 ../outside/secret.txt' | cat); head --lines=$x a.txt",
]
# Each reads, tests or assigns something that bash evaluates as arithmetic. X is a[$(rm -rf victim)].
EVALUATES = [
    "((x))", "echo $((x))", "echo $[x]", "let y=x+1", "[[ x -eq 1 ]]", "[[ 1 -lt $x ]]", "declare -i y=x", "declare -i y; y=$x",
    "declare -i y; read y <<< \"$x\"", "a[x]=1", "a=([x]=1)", "a+=([$x]=1)", "echo ${a[x]}", "s=abc; echo ${s:x}",
    "s=abc; echo ${s:0:x}", "a=(1); echo ${#a[x]}", "echo ${a[x]:-y}",
    "echo ${a[x]/y/z}", "set -- 1 2; echo ${@:x}", "b=(1 2); echo ${b[@]:x}", "for ((i=x;i<1;i++)); do :; done",
    "for ((;x<0;)); do :; done", 'test -v "$x"', '[ -v "$x" ]', "[[ -v $x ]]", 'printf -v "$x" y', 'read "$x" <<< 1',
    "echo ${!x}", 'y="${!x:-z}"', "y=x; z=y; ((z+1))", "f() { echo $(($1)); }; f x", 'b=(1 "$x"); : $((b[1]))',
    'echo "${a[$x]}"', "b=(1); test -v 'b[x]'", "i=b[x]; : ${!i}", 'printf -v "b[x]" y', "case $((x)) in *) ;; esac", "! ((x))", ': "$x"; ((_))', 'set 1 2 3 4 5 6 7 8 9 "$x"; ((${10}))', '[[ $x =~ .* ]]; ((BASH_REMATCH))',
    "z=1 declare -i y=x", "builtin declare -i y=x",
]  # fmt: skip
VALUES = {
    "a literal": "x='a[$(rm -rf victim)]'",
    "a bracket in the subscript": "x='a[b[0]+$(rm -rf victim)]'",
    "a prompt expansion": "p='$(rm -rf victim)'; x='a[${p@P}]'",
    "a pattern substitution": "x='a[#(rm -rf victim)]'; x=${x/\\#/\\$}",
    "output of a command": "x=$(base64 -d <<< YVskKHJtIC1yZiB2aWN0aW0pXQ==)",
    "an escape of printf": "printf -v x 'a[\\x24(rm -rf victim)]'",
    "a line of input": "read -r x <<< 'a[$(rm -rf victim)]'",
}
WORDS_THAT_THE_GRAMMAR_MISREADS = [
    "x=a[\\echo find victim -delete",
    "a[0]=[\\echo find victim -delete",
    "x=a[\\$\\(rm\\ -rf\\ victim\\)]; ((x))",
    "x=$ find victim -delete",
    "echo > src/`true`../../outside/CANARY",
    "cat < src/`true`../../outside/secret.txt",
    "x=(src/`true`../../outside/secret.txt); cat $x",
    "for i in src/`true`../../outside/secret.txt; do cat $i; done",
    "export x=src/`true`../../outside/secret.txt; cat $x",
    "x=a`true` find victim -delete",
    "ls\n\\rm -rf victim",
    'ls "a"\n\\rm -rf victim',
    "x=1\n\\rm -rf victim",
    'find victim -delete$""',
    'x=-delete$""; find victim $x',
    "echo a > b\n\\rm -rf victim",
    "for i in a\ndo ls $i\n\\rm -rf victim\ndone",
]
BODIES = [
    "$((rm -rf victim); :)",
    "$((rm -rf victim) )",
    "${p@P}",
    "$((x))",
    "$[x]",
    "${!x}",
    "${a[x]}",
    "${p:x}",
    "$(: # )\nrm -rf victim)",
    "$(: $'\\')'; rm -rf victim)",
    "$(: <<F\n)\nF\nrm -rf victim)",
    "$(case x in x) rm -rf victim;; esac)",
    '"$(rm -rf victim)"',
    '${y:-"$(rm -rf victim)"}',
    "$\\\n(rm -rf victim)",
    "`: \\\n; rm -rf victim`",
]
HEREDOCS = [
    ": <<-'\tE'\n\tE\nrm -rf victim\n\tE\n",
    "a[1<<E]=3\nrm -rf victim\nE]=3\n",
    ": <<'A' $(: <<'B'\nB\nrm -rf victim\nA\nB\n)\nA",
    ": <<'A' `: <<'B'\nB\nrm -rf victim\nA\nB\n`\nA",
    ': <<"A\\"B" " "\nA"B\nrm -rf victim\nA\\B \n',
    ': <<"A\\\\B"\nA\\B\nrm -rf victim\nA\\\\B\n',
    ": <<E\n${z:=find}\nE\n$z victim -delete",
    "cat <<E; echo $(echo a\nE\nrm -rf victim\n)\nx\nE\n",
    "cat <<EE\nE\\\nE\nrm -rf victim\nEE\n",
    "cat <<'E'\na\\\nE\nrm -rf victim\nE\n",
]
BACKTICKS = [
    ": `: '`; rm -rf victim; : `'`",
    ': `: "`; rm -rf victim; : `"`',
    ': "`: \'`"; rm -rf victim; : "`\'`"',
    "x=`echo 'r\\\nm'`; $x -rf victim",
]
CONTINUED = [
    'echo "$(rm -rf victim)"',
    'echo "${x:-$(rm -rf victim)}"',
    "p='$(rm -rf victim)'; echo ${p@P}",
    "cat <<E\n$(rm -rf victim)\nE",
    "x=1 find victim -delete",
    "true && rm -rf victim",
    "echo x >>../outside/CANARY",
]


@pytest.mark.parametrize("script", NUMBERS_THAT_MAY_BE_EMPTY)
def test_value_that_may_be_empty_is_no_number(script: str) -> None:
    assert_attack_is_refused(script)


@pytest.mark.parametrize("script", OUTPUT_THAT_MAY_BE_EMPTY)
def test_output_of_a_program_that_may_fail_is_unknown(script: str) -> None:
    assert_attack_is_refused(script)


@pytest.mark.parametrize("script", OPTIONS_KNOWN_AT_RUN_TIME)
def test_option_that_is_only_known_at_run_time_is_refused(script: str) -> None:
    assert_attack_is_refused(script)


@pytest.mark.parametrize("script", WORDS_THAT_SHIFT)
def test_word_that_may_vanish_or_multiply_is_refused(script: str) -> None:
    assert_attack_is_refused(script)


@pytest.mark.parametrize("evaluates", EVALUATES)
def test_arithmetic_on_a_command_in_a_subscript_is_refused(evaluates: str) -> None:
    assert_attack_is_refused(f"{VALUES['a bracket in the subscript']}; {evaluates}")
    assert_attack_is_refused(f"{VALUES['output of a command']}; {evaluates}")


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in VALUES.items()])
def test_arithmetic_on_a_computed_value_is_refused(value: str) -> None:
    assert_attack_is_refused(f"{value}; ((x))")
    assert_attack_is_refused(f"{value}; echo ${{!x}}")


@pytest.mark.parametrize(
    "script",
    [
        "x=1; echo $((x + 1))",
        "i=0; while [ $i -lt 5 ]; do echo $i; i=$((i + 1)); done",
        "for ((i = 0; i < 3; i++)); do echo $((i * 2)); done",
        "for i in {1..20}; do echo $((i % 3)); done",
        "a=(1 2 3); echo ${a[1]} $((${#a[@]} + a[0]))",
        "x=abc; echo ${x:1:2} ${x: -1}",
        "echo $((SECONDS / 60)) $(($# + $?))",
        "x=name; name=5; echo ${!x} $((${x:-0} + 1))",
        "[[ $# -eq 0 ]] && echo none",
    ],
)
def test_arithmetic_on_numbers_is_allowed(script: str, tmp_path: Path) -> None:
    assert vet(Call(script, shell=True), SandboxConfig(project_root=str(tmp_path))).allowed


@pytest.mark.parametrize("script", WORDS_THAT_THE_GRAMMAR_MISREADS)
def test_word_that_the_grammar_misreads_is_refused(script: str) -> None:
    assert_attack_is_refused(script)


@pytest.mark.parametrize("body", BODIES)
def test_body_of_a_heredoc_is_expanded_as_a_string(body: str) -> None:
    assert_attack_is_refused(f"x='a[$(rm -rf victim)]'; p='$(rm -rf victim)'; cat <<E\n{body}\nE\n")


@pytest.mark.parametrize("script", HEREDOCS)
def test_heredoc_ends_as_in_bash(script: str) -> None:
    assert_attack_is_refused(script)


@pytest.mark.parametrize("script", BACKTICKS)
def test_backtick_inside_quotes_ends_a_substitution(script: str) -> None:
    assert_attack_is_refused(script)


@pytest.mark.parametrize("script", CONTINUED)
def test_continued_line_hides_nothing(script: str, tmp_path: Path) -> None:
    config = SandboxConfig(project_root=str(tmp_path))
    for at in range(len(script) + 1):
        assert not vet(Call(f"{script[:at]}\\\n{script[at:]}", shell=True), config).allowed, at
    for at in (6, 7):
        assert_attack_is_refused(f"{script[:at]}\\\n{script[at:]}")


@pytest.mark.parametrize(
    "script",
    [
        'cat <<E\nHello $USER, it is $((1 + 1)) "quoted" \\"x\\" $(date) `date` ${x:-none}\nE',
        "cat > out.txt <<E\n$(cat a.txt)\nE",
        "git log \\\n  --oneline \\\n  -5",
        "echo 'a\\\nb' # a \\\nls",
        'echo "a\\\nb"',
        "x=$(cat <<E\na\nE\n)",
    ],
)
def test_heredocs_and_continued_lines_are_allowed(script: str, tmp_path: Path) -> None:
    assert vet(Call(script, shell=True), SandboxConfig(project_root=str(tmp_path))).allowed

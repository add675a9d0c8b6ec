"""Differential test: bash runs generated scripts with a recorder in place of every program. The guard must have judged each command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.guard.evaluate import commands_of
from corral.guard.machine import Machine
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE
from corral.model.call import Call

pytestmark = pytest.mark.real

if TYPE_CHECKING:
    from corral.guard.shell.expansion import Word

# Names that begin with `t` succeed and names that begin with `f` fail, so that tests reach both sides of a condition.
RECORDER = """
command_not_found_handle() {
  printf '%s\\0' "$@" >> "$RECORDS/$BASHPID"; printf '\\1\\0' >> "$RECORDS/$BASHPID"
  case $1 in f*) return 1;; esac
  printf 'out'
}
"""
REFUSING = {"unparsed", "limit", "name-unproven", "code-unproven", "shadow"}


@pytest.fixture(scope="module")
def sandpit(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("sandpit"))
    with open(f"{folder}/recorder.sh", "w") as file:
        file.write(RECORDER)
    return folder


def recorded(script: str, sandpit: str) -> list[list[str]]:
    """Run a script in bash and return every argv that it would have started."""
    for folder in ("work", "records"):  # one file per process: bash writes a record with a newline in two pieces
        shutil.rmtree(f"{sandpit}/{folder}", ignore_errors=True)
        os.mkdir(f"{sandpit}/{folder}")
    env = {
        "BASH_ENV": f"{sandpit}/recorder.sh",
        "RECORDS": f"{sandpit}/records",
        "PATH": "/nonexistent",
        "HOME": "/home/nobody",
        "LC_ALL": "C.UTF-8",
    }
    command = ["/bin/bash", "--noprofile", "--norc", "-c", script]
    try:
        subprocess.run(
            command,
            cwd=f"{sandpit}/work",
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return []
    runs: list[list[str]] = []
    for name in os.listdir(f"{sandpit}/records"):
        with open(f"{sandpit}/records/{name}", newline="") as file:
            # A process that outlives the script may not have written its last record completely.
            *records, _ = file.read().split("\1\0")
        runs += [record.split("\0")[:-1] for record in records]
    return runs


def pattern(words: list[Word]) -> re.Pattern[str]:
    """Return a pattern for the argvs that a command stands for: a hole is any text, an unquoted hole any number of words."""
    pieces = []
    for word in words:
        if word.multi or word.glob:
            pieces.append(r"(?:\x00[^\x00]*)*?")
        else:
            pieces.append(
                r"\x00"
                + "".join(
                    r"[^\x00]*" if c == HOLE else r"-?\d*" if c == NUMBER_HOLE else re.escape(c) for c in word.text
                )
            )
    return re.compile("".join(pieces) + r"\Z", re.DOTALL)


def unjudged(script: str, sandpit: str) -> list[list[str]]:
    """Return the commands that bash ran and the guard did not judge; none if the guard refuses the script anyway."""
    machine = Machine(f"{sandpit}/work", home="/home/nobody")
    commands, complete = commands_of(Call(script, shell=True), machine)
    if not complete or any(key in REFUSING for command in commands for key, _, _ in command.effects):
        return []
    patterns = [pattern(command.words) for command in commands if command.name]
    return [
        argv
        for argv in recorded(script, sandpit)
        if not any(p.match("".join("\0" + a for a in argv)) for p in patterns)
    ]


names = st.sampled_from(["ta", "tb", "tc", "fa", "fb"])
plain = st.sampled_from(["x", "y1", "-n", "a.b", "--opt=v", "dir/f", "é", "0", "%s", "+z", "@", "a:b", "x=1"])
variables = st.sampled_from(["v", "w", "HOME", "unset_one", "arr"])


@st.composite
def words(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.integers(0, 19))
    text = draw(plain)
    if kind < 6:
        return text
    if kind == 6:
        return f"'{text} {draw(plain)}'"
    if kind == 7:
        return f'"{text} ${{{draw(variables)}}} \\$z \\" \\\\"'
    if kind == 8:
        return f"$'{text}\\x41\\n\\'q'"
    if kind == 9:
        return f"{text}\\ {draw(plain)}"
    if kind == 10:
        return f"a{{{text},{draw(plain)}}}b"
    if kind == 11:
        return "{1..3}" + text
    if kind == 12:
        return f"${draw(variables)}"
    if kind == 13:
        return f'"${draw(variables)}"{text}'
    if kind == 14:
        return f"~/{text}"
    if kind == 15:
        return f"a\\\n{text}"
    if kind == 16:
        return f"$((1+2)){text}"
    if kind == 17 and depth:
        return f"$({draw(statements(depth - 1))})"
    if kind == 18 and depth:
        return f'"pre$({draw(statements(depth - 1))})"'
    if kind == 19 and depth:
        return f"<({draw(statements(depth - 1))})"
    return f"{text}''\"\"{draw(plain)}"


redirects = st.sampled_from(["", "", "", " >out", " 2>&1", " >>out 2>/dev/null", " <out", " &>out", " >|out", " 3>out"])


@st.composite
def simple(draw: st.DrawFn, depth: int) -> str:
    prefix = draw(st.sampled_from(["", "", "", "v=1 ", "w='a b' ", ">out "]))
    arguments = draw(st.lists(words(depth), max_size=3))
    after = draw(st.sampled_from(["", "", "", " >out extra", " <<<$v"]))
    name = draw(st.one_of(names, names, names.map(lambda n: f"{n[0]}''{n[1:]}"), names.map(lambda n: f"\\{n}")))
    return prefix + " ".join([name, *arguments]) + draw(redirects) + after


@st.composite
def statements(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 22)) if depth > 0 else draw(st.integers(0, 5))
    inner = statements(depth - 1)
    if kind < 6:
        return draw(simple(max(0, depth - 1)))
    if kind == 6:
        return f"{draw(inner)} | {draw(inner)}"
    if kind == 7:
        return f"{draw(inner)} && {draw(inner)}"
    if kind == 8:
        return f"{draw(inner)} || {draw(inner)}"
    if kind == 9:
        return f"{draw(inner)}; {draw(inner)}"
    if kind == 10:
        return f"({draw(inner)}){draw(redirects)}"
    if kind == 11:
        return f"{{ {draw(inner)}; }}{draw(redirects)}"
    if kind == 12:
        return f"if {draw(inner)}; then {draw(inner)}; else {draw(inner)}; fi"
    if kind == 13:
        return f"for v in {draw(words(0))} {draw(words(0))}; do {draw(inner)}; done"
    if kind == 14:
        return f"case {draw(words(0))} in x) {draw(inner)};; *) {draw(inner)};; esac"
    if kind == 15:
        return f"v={draw(words(0))}; w=$v; {draw(inner)}"
    if kind == 16:
        return f"g() {{ {draw(inner)}; }}; g {draw(words(0))} {draw(words(0))}"
    if kind == 17:
        delimiter = draw(st.sampled_from(["E", "'E'", '"E"', "\\E"]))
        return f"{draw(simple(0))} <<{delimiter}\nbody $v $({draw(simple(0))}) `{draw(names)}` \\$x\nE\n{draw(inner)}"
    if kind == 18:
        return f"! {draw(inner)}"
    if kind == 19:
        return f'arr=({draw(words(0))} {draw(words(0))}); {draw(names)} "${{arr[@]}}" ${{arr[0]}}'
    if kind == 20:
        return f"[[ $v == x ]] && {draw(inner)}"
    if kind == 21:
        return f"until true; do {draw(inner)}; done; echo `{draw(names)} q`"
    return f"{draw(inner)}\n# comment `ta`\n{draw(inner)} &\nwait"


@settings(
    max_examples=int(os.environ.get("CORRAL_DIFFERENTIAL_EXAMPLES", "400")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(script=statements())
def test_bash_runs_only_judged_commands(sandpit: str, script: str) -> None:
    assert unjudged(script, sandpit) == []


DEVIATIONS = {
    "a here-document that a joined line ends": "ta <<EOF\nE\\\nOF\ntb x\nEOF",
    "a background command keeps its changes": "x=ta; x=tb & wait; $x y",
    "an assignment for a wrapper ends with it": "x=ta; env x=tb tc; $x y",
    "a name that arithmetic only mentions": "x=ta; ((1 || x)); $x y",
    "a redirect inside [ ]": "[ a > out ]; ta",
    "a list inside [ ]": "[ a || ta x ]",
    "single quotes inside a quoted expansion": "ta \"${x:-'$(tb)'}\"",
    "single quotes inside arithmetic": "ta $(( '$(tb)' ))",
    "output that goes elsewhere": "$(echo ta >&2) tb x",
    "output that may not come": "$([[ a = b ]] && echo ta) tb x",
    "options of echo": "$(echo -nE ta) x",
    "a function in place of echo": "echo() { ((1)); }; $(echo ta) tb x",
    "a default that is assigned": "x=; : ${x:=ta}; $x y",
    "an element that is set by name": "x=ta; printf -v 'x[0]' tb; $x y",
    "a name that read sets implicitly": "REPLY=ta; read <<< tb; $REPLY x",
    "a match": "BASH_REMATCH=ta; [[ tb =~ tb ]]; $BASH_REMATCH x",
    "an attribute that changes values": "declare -l x; x=TA; $x y",
    "a constant that stays": "readonly x=ta; declare x=tb; $x y",
    "a local variable without a value": "x=ta; f() { local x; $x tb y; }; f",
    "a global variable set in a function": "x=ta; f() { declare -g x=tb; }; f; $x y",
    "a case that falls through": "x=ta; case a in a) x=tb ;& b) $x y;; esac",
    "a condition that changes a variable": "x=ta; if fa; then :; elif x=tb; fa; then :; else $x y; fi",
    "a function left early": "x=ta; f() { x=tb; return; x=ta; }; f; $x y",
    "a loop left early": "x=ta; for i in 1; do x=tb; break; x=ta; done; $x y",
    "a shift in a loop": 'f() { while [ $# -gt 0 ]; do "$@"; shift; done; }; f ta tb',
    "a function that may not be defined": "fa && ta() { :; }; ta x",
    "a function that was unset": "ta() { :; }; builtin unset -f ta; ta x",
    "a function behind time": 'g() { "$@"; }; g ta; time g tb x',
    "another IFS": "IFS=X; x=taXy; $x",
    "an integer attribute": "declare -i x; x='a[$(ta)]'",
    "arithmetic on an argument": "f() { (($1)); }; f 'a[$(ta)]'",
    "arithmetic on text from read": "read -r x <<< 'a[$(ta)]'; ((x))",
    "a comparison between tabs": "[[ 'a[$(ta)]'\t-eq\t0 ]]",
    "a comparison of an ANSI-C string": "[[ $'a[\\x24(ta)]' -eq 0 ]]",
    "a mode that changes prefixes": "x=ta; set -o posix; x=tb : ; $x y",
    "a pipeline that stays in the shell": "x=ta; shopt -s lastpipe; echo tb | read x; $x y",
    "braces in an ANSI-C escape": "$'\\x{74}a' x",
    "backticks in an unquoted here-document": "ta <<E\n`tb`\nE",
    "a substitution in an unquoted here-document": "ta <<E\n$(tb x)\nE",
    "a named coprocess": "coproc NAME { ta; }; wait",
    "a coprocess of a simple command": "coproc ta x; wait",
    "a descriptor variable": "exec {fd}>out; ta x",
    "a carriage return": "ta\r\ntb",
    "two here-documents on one line": "ta <<A - <<B\n1\nA\n$(tb)\nB\ntc",
    "a list behind a here-document": "ta <<A; tb x\n1\nA\ntc",
    "a pipe behind a here-document and a redirect": "ta <<A >out 2>&1 | tb x\n1\nA\ntc",
    "old arithmetic": "ta $[ 1 + $(tb) ]",
    "a dash before a here-document": "ta - <<A\nx\nA",
    "words behind a redirect": "ta >out tb -c x",
    "a redirect first": ">out ta x",
    "a continued word": "t\\\na x\\\ny",
    "an escaped blank": "ta \\ x",
    "a translated string": 'ta $"x"',
    "arithmetic that evaluates a literal": "x='a[$(ta)]'; echo $((x))",
    "a test that evaluates a literal": "[[ 'a[$(ta)]' -eq 0 ]]",
    "a subscript that evaluates a literal": "x='$(ta)'; declare -A a; let 'b[$(ta)]=1'",
    "prompt expansion": "x='$(ta)'; echo ${x@P}",
    "a pattern that holds a substitution": "x=abc; echo ${x//$(ta)/y}",
    "a nested backtick": "echo `echo \\`ta\\``",
    "a function named like a program": "tb() { ta inner; }; tb",
    "a local that shadows": "x=1; g() { local x=2; }; g; ta $x",
    "a loop that changes its own variable": "x=1; for i in 1 2; do ta $x; x=$x$i; done",
    "a split variable": "x='a b'; ta $x",
    "positional parameters": 'set -- p q; ta "$@"',
    "a changed separator": "x=a,b; IFS=,; ta $x",
    "a trap": "trap 'ta trapped' EXIT",
    "eval": "eval 'ta \"x y\"'",
    "a variable as a name": "x=ta; $x y",
    "a brace-made option": "ta -{d,p}rint",
    "time before a group": "time { ta x; }; time -p (tb y)",
    "a negated group": "! { ta x; }",
    "an offset that is a variable": "s=abc; i=1; ta ${s:$i:1}",
    "a dollar before a bracket": "ta $(tb foo$)",
    "an assignment with a redirect": "x=$(ta) 2>/dev/null || tb",
    "two assignments alone on a line": "c=ta\nc=tb d=1\n$c z",
    "a here-document that never ends": "ta <<E\n$(tb)",
    "declarations that change the case": "declare -u x=ta; $x y",
    "a default of a variable that was unset": "unset v; ${v:-ta} x",
    "shifted parameters": 'g() { shift; "$@"; }; g x ta y',
    "a dash before a redirect": "ta - 2>&1",
    "backslashes in backticks": "echo `ta \\`tb\\``",
    "select": "select x in a b; do ta; break; done",
    "an alias": "shopt -s expand_aliases\nalias q='ta aliased'\nq x",
}


@pytest.mark.parametrize("script", [pytest.param(s, id=name) for name, s in DEVIATIONS.items()])
def test_grammar_deviation_is_judged_or_refused(sandpit: str, script: str) -> None:
    assert unjudged(script, sandpit) == []


def test_recorder_records_every_command(sandpit: str) -> None:
    assert sorted(recorded("ta 'x y' | tb $(tc)", sandpit)) == [["ta", "x y"], ["tb", "out"], ["tc"]]

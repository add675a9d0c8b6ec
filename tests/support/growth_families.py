"""Families of shell text that grow in one place: for each construct of bash a text `prefix + unit * n + suffix` of any size.

A family makes the guard's time visible: where it grows faster than the text, the largest text of the family shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Text before the repeated unit, and text behind it. `%` stands for the units.
PLACES = {
    "alone": "%",
    "argument": "ls %",
    "one-word": "ls x%",
    "path": "cat /%",
    "double-quoted": 'echo "%"',
    "single-quoted": "echo '%'",
    "ansi-quoted": "echo $'%'",
    "value": "x=%",
    "quoted-value": "x='%'",
    "array": "x=(%)",
    "declare": "declare %",
    "substitution": "echo $(%)",
    "open-substitution": "echo $(%",
    "backticks": "echo `%`",
    "parameter": "echo ${x:-%}",
    "open-parameter": "echo ${%",
    "replacement": "echo ${x//%/y}",
    "arithmetic": "((%))",
    "open-arithmetic": "((%",
    "arithmetic-expansion": "echo $((%))",
    "let": "let '%'",
    "subscript": "x[%]=1",
    "test": "[[ % ]]",
    "open-test": "[[ %",
    "compared": "[[ '%' -eq 1 ]]",
    "single-test": "[ % ]",
    "matched": "[[ a =~ % ]]",
    "group": "{ %; }",
    "subshell": "(%)",
    "open-subshell": "(%",
    "if": "if %; then :; fi",
    "then": "if :; then %; fi",
    "while": "while %; do :; done",
    "do": "while :; do %; done",
    "for": "for x in %; do :; done",
    "for-body": "for x in 1 2 3; do % ; done",
    "c-for": "for ((%;;)); do :; done",
    "case": "case % in a) :;; esac",
    "case-item": "case a in %) :;; esac",
    "case-body": "case a in a) %;; esac",
    "function": "f() { %; }; f",
    "extended-glob": "ls !(%)",
    "open-extended-glob": "ls !(%",
    "late-extended-glob": "shopt -s extglob\n: %\nid",
    "here-document": "cat <<E\n%\nE\n",
    "quoted-here-document": "cat <<'E'\n%\nE\n",
    "delimiter": "cat <<%\n",
    "here-string": "cat <<<%",
    "redirect": "ls > %",
    "brace": "echo {%}",
    "brace-range": "echo %{1..255}",
    "tilde": "echo ~%",
    "comment": "# %",
    "eval": "eval '%'",
    "shell": "bash -c '%'",
    "shell-input": "bash <<'E'\n%\nE\n",
    "trap": "trap '%' EXIT",
    "alias": "alias x='%'",
    "sed": "sed '%' x",
    "awk": "awk '%' x",
    "jq": "jq '%' x",
    "sqlite": "sqlite3 x '%'",
    "duckdb": "duckdb x '%'",
    "find": "find . %",
    "xargs": "xargs %",
    "env": "env %",
    "git": "git -c % status",
    "tar": "tar %",
    "tar-program": "tar xf x --to-command='%'",
    "curl": "curl %",
    "python": "python -c '%'",
    "make": "make %",
    "unknown-program": "frobnicate %",
    "unknown-text": "frobnicate '%'",
    "ffmpeg": "ffmpeg -vf '%' x",
    "magick": "convert '%' x",
    "cd": "cd %",
    "mkdir": "mkdir -p %",
    "ln": "ln -s %",
    "cp": "cp %",
    "export": "export PATH=%",
    "printf": "printf -v %",
    "read": "read %",
    "variable-command": "GIT_SSH_COMMAND='%' git fetch",
    "path-variable": "PYTHONPATH='%' python x.py",
}  # fmt: skip
UNITS = [
    "a", "a ", " ", "\n", "\t", "a\n", "\\\n", "\\", "\\\\", ";", "; ", "a;", "a; ", "a&", "a & ", "a|", "a | ", "a&&", "a && ", "a||", "!", "! ",
    "'", '"', "''", '""', "'a' ", '"a" ', "'a'", '"a"', "$'a'", "`", "`a`", "`a` ", "$", "$a", "$a ", "${a}", "${a} ", "${", "${a", "${a:-", "${#",
    "${!", "${a[", "$((", "$((1)) ", "$(", "$(a) ", "$(a)", "((", "((1));", "(", ")", "()", "(a)", "(a) ", "( ", "[", "]", "[[", "[a]", "[ ", "[[ ",
    "[[ a ]];", "[ a ];", "a[", "a[0]", "a[0]=b ", "a[a[", "a=", "a=b ", "a=b;", "a+=b ", "a+=b;", "a=(b);", "a=(b) ", "{", "}", "{}", "{a,b}", "{a,b} ",
    "{a,", "{1..9}", "{1..9} ", ",", "..", "../", "./", "/", "//", "/a", "/a ", "~", "~/ ", "~a ", "*", "* ", "?", "? ", "[a-z]* ", "**/", "!(a)", "!(a) ",
    "+(a) ", "@(a|b) ", "?(a) ", "*(a) ", "!(", "+(", "a|a", "a| a", "a |", "|a", "<", ">", "> a ", "< a ", "<a", ">a", ">&", ">&1 ", "2>&1 ", "<&-", "<>a ", "<<", "<<<", "<<<a ", "<<E\n",
    "<<E\nE\n", "cat <<E\nE\n", "cat <<'E'\na\nE\n", "<<-E ", "<(", "<(a) ", ">(a) ", "#", "# a\n", " #", "-", "- ", "--", "-- ", "-a ", "--a ", "--a=b ", "-a", "+a ", "=", "= ",
    "==", "1", "1 ", "1+", "1 + ", "a+", "a++", "a++ ", "a++,", "a=1,", "++", "--a,", ":", ": ", ":;", ": ;", ":&&", "a:", "@", "%", "%s ", "^", "&", "& ", "&&", "|", "||", ";;", ";;&",
    "if ", "if a;then ", "if a; then a; fi;", "if a; then a; fi\n", "then ", "else ", "elif a;then ", "fi ", "for ", "for a in b;do ", "for a in b; do a; done;", "for a in a b c d; do ",
    "for ((;;)); do ", "do ", "done ", "while ", "while a;do ", "while a; do a; done;", "until a;do ", "case ", "case a in ", "case a in a) a;; esac;", "a) a;;", "a) ", "a)", "esac ", "select a in b;do ",
    "function a { ", "a() { ", "a() { a; };", "a() { a; }\n", "a() ", "{ ", "{ a; };", "{ a;}\n", "} ", "in ", "time ", "time { ", "! a;", "coproc ", "declare a[0]=b ", "declare a=b;", "export a=b;", "local a;",
    "unset a;", "read a;", "eval a;", "eval ", "exec ", "env ", "sudo ", "xargs ", "nice ", "command ", "builtin ", "bash -c ", "cd a;", "cd a&&", "cd ..;", "pushd a;", "mkdir a;", "rm a;", "ln -s a b;", "mv a b;",
    "cp a b;", "set -- a;", "shift;", "return;", "break;", "continue;", "trap a EXIT;", "alias a=b;", "source a;", "git a;", "python a;", "cat a;", "cat *;", "./a;", "sed s/a/b/ a;", "find . -exec a \\; ",
    "-exec a \\; ", "-exec a ", "-name a -o ", "echo a > a;", "x=$x$x;", "x+=$x;", "x=$x\n", "x=a y=b;", "$x$x", "$@", "$* ", "$1", "$? ", "$# ", "$RANDOM", "\"$x\"", "\"$(a)\" ", "\"${a}\"", "\"$", "\"${", "\"$(", "'a[", "a'b\"c",
    "=~ ", "a =~ b && ", "a == b && ", "-f a && ", "-v a ", "-eq ", "&& a", "( a && ", "! ( ", "s/a/b/;", "s/a/b/e;", "/a/", "/[/", "\\/", "{p;", "vacuum ", "vacuum into ", "load(", "import ", "attach ", "edit ", ".a\n", "a@", "a@b ", "a@b.c ",
    "a://", "http://a ", "http://a/", "a:b ", "127.", "0", "0x", "\\x41", "\\u0041", "\\0", "\\c", "\\'", "é", "é ", "日", "日 ", "😀", "\u00a0", "\x7f", "=~", "a=~", "a=~ ", "PATH=a:", "a:b:", "./a:", ".git/", ".env ", "/dev/tcp/a/1 ", "/../",
    "/./", "a/../", "rm ", "bash ", "sudo\t", "halt ", "a.b.c ", "@a ", "@/a ", "file:", "file:///a ", "HEAD~1 ", "HEAD^", "ext::", ":(a) ", "{} ", "{}", "+ ", "\\; ", "\\( ", "\\) ", "\\$", "\\` ", "\\\" ", "$'", "$\"", "$\"a\" ", "$[", "$[1]", "$[1] ",
]  # fmt: skip
# Text that is opened many times, and text that closes it.
NESTED = {
    "parentheses": ("(", "a", ")"), "spaced-parentheses": ("( ", "a", " )"), "braces": ("{ ", "a;", " }"), "groups": ("{ ", "a", "; }"), "substitutions": ("$(", "a", ")"), "echoed-substitutions": ("echo $(", "a", ")"),
    "quoted-substitutions": ('"$(echo ', "a", ')"'), "parameters": ("${", "a", "}"), "defaults": ("${a:-", "b", "}"), "quoted-defaults": ('"${a:-', "b", '}"'), "echoed-defaults": ("echo ${a:-", "b", "}"), "arithmetic": ("((", "1", "))"),
    "arithmetic-parentheses": ("$((", "1", "))"), "arithmetic-groups": ("(1+", "1", ")"), "subscripts": ("a[", "0", "]"), "expanded-subscripts": ("${a[", "0", "]}"), "extended-globs": ("!(", "a", ")"), "extended-alternatives": ("@(a|", "a", ")"),
    "brace-expansions": ("{a,", "b", "}"), "brace-ends": ("{", "a", ",b}"), "ifs": ("if a; then ", "a", "; fi"), "conditions": ("if ", "a", "; then a; fi"), "whiles": ("while a; do ", "a", "; done"), "loop-conditions": ("while ", "a", "; do a; done"),
    "fors": ("for a in b; do ", "a", "; done"), "unrolled-fors": ("for a in b c; do ", "a", "; done"), "cases": ("case a in a) ", "a", ";; esac"), "functions": ("a() { ", "a", "; }"), "functions-of-subshells": ("a() ( ", "a", " )"), "evals": ("eval ", "a", ""),
    "negations": ("! ", "a", ""), "times": ("time ", "a", ""), "tests": ("[[ ( ", "a", " ) ]]"), "test-groups": ("( ", "a", " )"), "process-substitutions": ("cat <(", "a", ")"), "here-documents": ("cat <<E\n$(", "a", ")\nE\n"),
    "lists": ("a && { ", "a", "; }"), "pipes": ("a | ( ", "a", " )"), "background": ("( ", "a", " & )"), "elses": ("if a; then a; else ", "a", "; fi"), "elifs": ("if a; then a; elif ", "a", ""), "coprocs": ("coproc { ", "a", "; }"),
    "untils": ("until a; do ", "a", "; done"), "selects": ("select a in b; do ", "a", "; done"), "c-fors": ("for ((;;)); do ", "a", "; done"), "envs": ("env -S '", "a", "'"), "quotes": ("'\"", "a", "\"'"), "mixed": ("$(( ${a:-$(", "1", ")} ))"),
    "strings-in-substitutions": ('$("', "a", '")'), "dollar-brackets": ("$[", "1", "]"), "redirected-groups": ("{ ", "a", "; } >a"), "test-substitutions": ("[ $(", "a", ") ]"), "array-substitutions": ("x=($(", "a", "))"),
}  # fmt: skip


def repeated(place: str, unit: str, size: int) -> str:
    """Return a text of about `size` bytes in which a unit repeats at a place."""
    before, _, after = PLACES[place].partition("%")
    count = (size - len(before) - len(after)) // len(unit.encode())
    return before + unit * count + after


def nested(name: str, size: int, *, closed: bool = True, place: str = "alone") -> str:
    """Return a text of about `size` bytes with as many levels as fit."""
    opening, middle, closing = NESTED[name]
    before, _, after = PLACES[place].partition("%")
    count = size // len(opening + (closing if closed else ""))
    return before + opening * count + (middle + closing * count if closed else "") + after


def every_family(size: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each family."""
    for place in PLACES:
        for unit in UNITS:
            yield f"{place} {unit!r}", repeated(place, unit, size)
        for name in NESTED:
            for closed in (True, False):
                yield f"{place} {name} {'closed' if closed else 'open'}", nested(name, size, closed=closed, place=place)


# Texts that once took too long: what comes before, the unit that is repeated, and what comes after.
KNOWN = {
    "a long name in arithmetic": ("((", "a", "))"),
    "nested subscripts in arithmetic": ("((", "a[", "0))"),
    "open subscripts in quotes": ("echo '", "a[", "'"),
    "open subscripts in a value": ("x='", "a[", "'"),
    "open subscripts in a here-document": ("cat <<E\n", "a[", "\nE\n"),
    "brackets in a comparison": ("[[ '", "[", "' -eq 1 ]]"),
    "a brace expansion behind a long word": ("echo ", "x", "{1..255}"),
    "extended globs": ("ls ", "!(a) ", ""),
    "an open extended glob": ("ls !(", "a|", ""),
    "a pipeline with an error at its end": ("", "a|", ")"),
    "a pipeline of groups": ("", "{ a; }|", ")"),
    "a pipeline of conditions over several lines": ("", "if a\nthen b\nfi |\n", ")"),
    "a pipeline with comments": ("", "a | # c\n", ")"),
    "a pipeline with standard error": ("", "a |& ", ")"),
    "extended globs that bash runs": ("shopt -s extglob\n: ", "+(a) ", "\nid"),
    "vacuum": ("sqlite3 x '", "vacuum ", "'"),
    "open expansions": ("", "${", ""),
    "declarations with subscripts": ("declare ", "a[0]=b ", ""),
    "a long value many times": (f"x={'A' * 15_000}; : ", "$x", ""),
    "a long array many times": (f"x=({'a ' * 15_000}); : ", "${x[@]}", ""),
    "globs": ("cat ", "* ", ""),
    "words": ("cat ", "a ", ""),
    "directories of git": ("cat ", ".git/", ""),
    "nested loops": ("", "while a; do ", ""),
    "sed addresses": ("sed '", "/[/", "' x"),
    "here-documents": ("", "cat <<E\nE\n", ""),
    "options and names of commands": ("frobnicate ", "-x rm ", ""),
    "refused commands": ("", "curl http://x/y;", ""),
    "installs": ("", "pip install a;", ""),
    "links, and globs over them": (f"{'ln -s a b;' * 2_500}", "cat x*;", ""),
    "files that are written and run": (f"{'> f.py;' * 3_000}", "sh x*;", ""),
    "menus": ("", "select i in a; do ls; done;", ""),
    "local variables": ("f() { ", "local a=1;", " }; f"),
    "wrappers of many words": ("trap '", "xargs ", "' EXIT"),
}


def grown(name: str, size: int) -> str:
    """Return a known slow text of at most `size` characters."""
    before, unit, after = KNOWN[name]
    return before + unit * ((size - len(before) - len(after)) // len(unit)) + after

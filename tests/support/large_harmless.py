"""Harmless here-documents and scripts of 20 to 100 kB, as agents write them. The guard's limits must not refuse them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KB = 1000


def _filled(line: Callable[[int], str], size: int) -> str:
    """Return numbered lines of about `size` bytes together."""
    made: list[str] = []
    length = number = 0
    while length < size:
        made.append(line(number))
        length += len(made[-1].encode())
        number += 1
    return "".join(made)


PYTHON = (
    'def step_{n}(items: list[dict[str, int]], limit=({n}, {n})) -> list[int]:\n    """Return `value[{n}]` of $HOME."""\n'
    '    return [x["a"][{n}] for x in items if (x.get("k{n}") or [[0]])[0] < limit[0]]  # it\'s $(not) run\n\n'
)
C_CODE = (
    "static int table_{n}[16][4] = {{{{ {n}, 1 }}, {{ 2, 3 }}}};\n#define CHECK_{n}(x) ((x) << 2 | (x) >> {n})\n"
    "int run_{n}(const char *name, int (*f)(int)) {{ return name[0] == '{{' && f(table_{n}[1][2]) ? -1 : 0; }}\n"
)
MARKDOWN = (
    "## Part {n}\n\nRun `make test` and then `$(pwd)/tool --flag={n}`, see [the docs](docs/part_{n}.md#a[{n}]).\n\n"
    "| name | value | note |\n|---|---|---|\n| `a[{n}]` | ${n}.00 | it's *fine* |\n\n```bash\nfor i in {{1..{n}}}; do echo $i; done\n```\n\n"
)
TYPESCRIPT = (
    "export const item{n} = <T extends Record<string, number[]>>(x: T): T[] => {{\n"
    "  const s = `value ${{x['k'][{n}]}} and ${{Object.keys(x).map((k) => `${{k}}`).join('|')}}`;\n  return [x, ...[]].filter(Boolean);\n}};\n"
)
HTML = "<div class=\"a{n}\"><p onclick='run({n})'>a &amp; b &lt; $5 | 100% `x` [{n}] (see {{{{ name }}}})</p><!-- it's {n} --></div>\n"
SQL = "INSERT INTO t{n} (a, b) VALUES ({n}, 'it''s \"{n}\"'), (1, '$x `y` [z]'); SELECT a FROM t{n} WHERE b LIKE '%a|b%';\n"
YAML = "job_{n}:\n  script:\n    - echo \"$CI_{n}\" | tee out.txt\n    - [a, b, {{c: {n}}}]\n  when: 'it''s {n}'\n"
MAKEFILE = 'target_{n}: $(SRC_{n}) | dir\n\t@echo "$(shell date) $$HOME `id`" && $(CC) -c $< -o $@ || exit {n}\n'
PERL = "my @a{n} = map {{ $_->{{k}}[{n}] // 'x' }} grep {{ /^[a-z]+(?:\\d|$)/ }} @$list{n}; # it's\n"
LATEX = "\\section{{Part {n}}} Let $x_{{{n}}} = \\frac{{a[{n}]}}{{b}}$ and ``quoted'' text \\cite{{k{n}}}. % note\\\\\n"
CSV = "{n},\"a, b\",'c',$5,[x],(y),{{z}},`w`,a|b,100%\n"
PLAIN = "Line {n} of a plain text without anything special in it, as a log file has it.\n"
PLAIN_BRACKETS = 'Entry [{n}] (of {n}): {{a}} <b> a|b; c & d * ? ~ # ! % ^ it is "quoted"\n'
DOCUMENTS = {
    "python": PYTHON, "c": C_CODE, "markdown": MARKDOWN, "typescript": TYPESCRIPT, "html": HTML, "sql": SQL, "yaml": YAML,
    "makefile": MAKEFILE, "perl": PERL, "latex": LATEX, "csv": CSV,
}  # fmt: skip
SCRIPTS = {
    "echoes": "echo 'line {n}' >> out.txt\n",
    "functions": 'step_{n}() {{\n  local name="$1"\n  if [ -f "$name" ]; then\n    grep -c foo "$name" | sort > out.txt\n  else\n    echo "no $name" >&2\n  fi\n}}\nstep_{n} file{n}\n',
    "defined functions": "helper_{n}() {{\n  printf '%s\\n' \"$@\"\n  return 0\n}}\n\n",
    "cases": 'case "$1" in\n  a{n}|b) echo {n} ;;\n  *.txt) cat notes.txt ;;\n  *) : ;;\nesac\n',
    "loops": 'for i in 1 2 3; do\n  echo "$i {n}"\ndone\nwhile read -r line; do\n  echo "$line"\ndone < in_{n}.txt\n',
    "conditions": 'if [[ "$a" == "x{n}" && -f src/a.py ]]; then\n  echo yes\nelif [ -d src ]; then\n  echo maybe\nelse\n  echo no\nfi\n',
    "pipelines": "cat data/file_{n}.txt | grep -v '^#' | sort -u | head -n 5 > out/{n}.txt\n",
    "lists": "test -f a{n} && echo found || echo missing\n",
    "comments": "# It's a comment about step {n}: `code` $(here) [and] (there)\n# -----\necho {n}\n",
    "arrays": "files_{n}=(src/a_{n}.py \"src/b {n}.py\" 'src/c.py')\nfor f in \"${{files_{n}[@]}}\"; do wc -l \"$f\"; done\n",
    "arithmetic": "total=$((total + {n} * 2))\n(( count++ ))\nif (( count > {n} )); then echo \"$count\"; fi\n",
    "expansions": 'echo "${{NAME:-default}} ${{x%.txt}} ${{#y}} ${{z//a/b}} $HOME/file_{n}"\n',
    "substitutions": 'now="$(date +%s)"\necho "step {n} at $now: $(basename src/file_{n}.py)"\n',
    "here-documents": "cat > out/file_{n}.json <<'EOF'\n{{\"n\": [{n}, {{\"a\": \"it's $5 `x`\"}}]}}\nEOF\n",
    "unquoted here-documents": "cat > out/file_{n}.txt <<EOF\nname: step {n}\nvalue: [{n}] (ok)\nEOF\n",
    "tests": "pytest -q tests/test_{n}.py -k 'a or b' --maxfail=1 2>&1 | tail -n 20\n",
    "git": "git add src/file_{n}.py\ngit commit -m 'part {n}: it works (again)'\n",
    "sed": "sed -i 's/old_{n}/new_{n}/g' src/file.py\n",
    "variables": 'VALUE_{n}="text {n}"\necho "$VALUE_{n}" | tr a-z A-Z\n',
    "continued lines": "python3 tool.py --name part_{n} \\\n  --input data/in_{n}.csv \\\n  --output data/out_{n}.csv\n",
    "groups": "{{ echo start {n}; ls src; }} > log_{n}.txt 2>&1\n( cd src && ls )\n",
    "mkdir": "mkdir -p build/part_{n}/obj\ncp src/file_{n}.c build/part_{n}/\n",
    "printf": "printf '%s: %d\\n' \"name {n}\" {n} >> report.txt\n",
    "downloads of no kind": "python3 -m json.tool data/{n}.json > /dev/null && echo ok {n}\n",
}  # fmt: skip
SCRIPT_SIZES = {"tests": 60 * KB, "pipelines": 60 * KB, "lists": 60 * KB}


def _document(template: str, size: int) -> str:
    return _filled(lambda n: template.format(n=n), size)


def large_calls() -> dict[str, str]:
    """Return the calls by name."""
    made: dict[str, str] = {}
    for name, template in DOCUMENTS.items():
        for size in (25 * KB, 95 * KB):
            made[f"{name} of {size // KB} kB in a here-document"] = (
                f"cat > out.txt <<'EOF'\n{_document(template, size)}EOF\nwc -l out.txt\n"
            )
        made[f"{name} as one quoted word"] = (
            "printf '%s' '" + _document(template, 30 * KB).replace("'", "'\\''") + "' > out.txt"
        )
    for name, template in {"plain text": PLAIN, "brackets": PLAIN_BRACKETS}.items():
        made[f"{name} in an unquoted here-document"] = f"cat > out.txt <<EOF\n{_document(template, 95 * KB)}EOF\n"
    for name, template in SCRIPTS.items():
        made[f"a script of {name}"] = _document(template, SCRIPT_SIZES.get(name, 50 * KB))
    data = base64.b64encode(bytes(range(256)) * 280).decode()
    rows = [{"id": n, "tags": ["a", "it's", f"[{n}]"], "note": "$5 `x` (y) | z"} for n in range(900)]
    made["base64 in one line"] = f"echo '{data}' | base64 -d > image.png"
    made["base64 in a here-document"] = (
        "base64 -d > image.png <<'EOF'\n" + "\n".join(data[n : n + 76] for n in range(0, len(data), 76)) + "\nEOF\n"
    )
    made["base64 without quotes"] = f"echo {data} > image.txt"
    made["JSON in one line"] = "cat > data.json <<'EOF'\n" + json.dumps(rows) + "\nEOF\n"
    made["JSON as a quoted word"] = "echo '" + json.dumps(rows).replace("'", "'\\''") + "' > data.json"
    made["JSON in double quotes"] = (
        'echo "'
        + json.dumps(rows).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        + '" > d.json'
    )
    made["a long list of files"] = "wc -l " + " ".join(f"src/module_{n}/file_{n}.py" for n in range(2000))
    made["a long array"] = (
        "files=(\n" + "".join(f"  src/module_{n}/file_{n}.py\n" for n in range(2500)) + ')\nwc -l "${files[@]}"\n'
    )
    made["a here-document in a here-document"] = (
        "cat > make.sh <<'OUTER'\n"
        + _document("cat > f{n}.txt <<'INNER'\nvalue [{n}] `x` $(y)\nINNER\n", 60 * KB)
        + "OUTER\n"
    )
    made["a patch"] = (
        "cat > fix.patch <<'EOF'\n"
        + _document(
            "--- a/src/f{n}.c\n+++ b/src/f{n}.c\n@@ -{n},3 +{n},4 @@ int f(void)\n-\tif (a[{n}] | b) {{\n+\tif (a[{n}] || b) {{\n \t}}\n",
            90 * KB,
        )
        + "EOF\n"
    )
    made["Python for an interpreter"] = "python3 - <<'EOF'\n" + _document(PYTHON, 90 * KB) + "EOF\n"
    made["a long alternation"] = "grep -E '" + "|".join(f"name_{n}" for n in range(900)) + "' src/a.txt" + " " * 15_000
    made["text in another language"] = (
        "cat > out.txt <<'EOF'\n" + _document("行 {n}: „ä“ é (ß) [ё] 😀 `x` $y\n", 60 * KB) + "EOF\n"
    )
    made["comments in another language"] = _document("# шаг {n}: это комментарий\necho {n}\n", 40 * KB)
    return made

"""Makes a home and a project as many developers have them: git, Python, node, C, Rust, Go and Java in small."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

CALLS = tomllib.loads((Path(__file__).parent / "everyday_calls.toml").read_text())
IGNORED = ("__pycache__", ".git", "target")
FILES = {
    "README.md": "# app\n\nhello\nworld\n",
    ".gitignore": "build/\n.venv/\nnode_modules/\n__pycache__/\n*.pyc\nrust/target/\n.env\n",
    ".env": "TOKEN=x\n",
    "pyproject.toml": '[project]\nname = "app"\nversion = "1.0"\n',
    "app/__init__.py": "",
    "app/core.py": 'def double(number: int) -> int:\n    """hello"""\n    return number * 2\n',
    "tests/__init__.py": "",
    "tests/test_core.py": (
        "import unittest\n\nfrom app.core import double\n\n\nclass Test(unittest.TestCase):\n"
        "    def test_double(self) -> None:\n        self.assertEqual(double(2), 4)\n"
    ),
    "script.py": "import app.core\n\nprint(app.core.double(21))\n",
    "script.sh": '#!/bin/bash\nset -euo pipefail\nfor name in a b; do\n  echo "$name"\ndone\n',
    "package.json": json.dumps(
        {
            "name": "app",
            "version": "1.0.0",
            "private": True,
            "scripts": {"test": "node --test", "build": "node build.js"},
            "dependencies": {"hello": "1.0.0"},
        }
    ),
    "index.js": "console.log(require('hello'))\n",
    "build.js": "const fs = require('fs')\nfs.mkdirSync('build', { recursive: true })\nfs.writeFileSync('build/out.js', '1')\n",
    "index.test.js": "const test = require('node:test')\ntest('hello', () => { require('hello') })\n",
    "node_modules/hello/package.json": json.dumps(
        {"name": "hello", "version": "1.0.0", "main": "hello.js", "bin": {"hello": "hello.js"}}
    ),
    "node_modules/hello/hello.js": "#!/usr/bin/env node\nmodule.exports = 'hello'\n",
    "main.c": '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n',
    "Makefile": "all: build/main\nbuild/main: main.c\n\tmkdir -p build\n\t$(CC) -o $@ $<\ntest: all\n\tbuild/main\nclean:\n\trm -rf build\n",
    "Hello.java": 'public class Hello {\n  public static void main(String[] a) { System.out.println("hello"); }\n}\n',
    "rust/Cargo.toml": '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n',
    "rust/src/main.rs": 'fn main() { println!("hello"); }\n#[test]\nfn adds() { assert_eq!(1 + 1, 2); }\n',
    "golang/go.mod": "module app\n\ngo 1.19\n",
    "golang/main.go": 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("hello") }\n',
    "data/data.csv": "name,count\na,1\nb,2\n",
    "data/data.json": '[{"name": "a"}, {"name": "b"}]\n',
    "logs/app.log": "one\ntwo\nthree\n",
}
HISTORY = """
git init -q -b main . && git add README.md .gitignore data app tests && git commit -qm first && git tag -a v1 -m v1
git add . && git commit -qm second
git switch -q -c side && echo side >side.txt && git add side.txt && git commit -qm side && git switch -q main
git remote add origin https://forge.example/me/app.git
git update-ref refs/remotes/origin/main main
echo more >>README.md && echo notes >notes.txt
"""


def calls(decision: str) -> Iterator[str]:
    """Yield each call with this decision whose program is installed here."""
    for found in CALLS.values():
        yield from (text for text in found[decision] if decision != "allow" or _is_installed(text))


def _is_installed(text: str) -> bool:
    """Say whether the programs of a call are installed in a directory of the system. The home of a test has none."""
    known = ("npm", "npx", "node", "cargo", "go", "mvn", "java", "javac", "gem", "ruby", "cmake", "gdb", "jq", "sqlite3",
             "openssl", "curl", "perl", "gcc")  # fmt: skip
    words = set(text.replace(";", " ").replace("|", " ").replace("'", " ").split())
    return all(shutil.which(name, path="/usr/local/bin:/usr/bin:/bin") for name in known if name in words)


class EverydayWorld:
    """A template of a home and a project, and copies of it."""

    def __init__(self, above: Path) -> None:
        self._template = above / "template"
        project = self._template / "project"
        for name, text in FILES.items():
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self._template / ".gitconfig").write_text(
            "[user]\n\tname = A Developer\n\temail = developer@example.org\n[init]\n\tdefaultBranch = main\n"
        )
        for name in ("script.sh", "node_modules/hello/hello.js"):
            (project / name).chmod(0o755)
        (project / "node_modules/.bin").mkdir()
        (project / "node_modules/.bin/hello").symlink_to("../hello/hello.js")
        subprocess.run(["git", "init", "-q", self._template / "sibling"], env=self.environ(self._template), check=True)
        (self._template / "sibling" / "README.md").write_text("# sibling\n")
        database = sqlite3.connect(project / "app.db")
        database.execute("create table t (x)")
        database.commit()
        database.close()
        base: str = sys._base_executable  # type: ignore[attr-defined]  # there since 3.3
        subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", project / ".venv"], check=True)
        subprocess.run(["bash", "-ec", HISTORY], cwd=project, env=self.environ(self._template), check=True)

    @staticmethod
    def environ(home: Path) -> dict[str, str]:
        """Return the environment of the developer's shell."""
        return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "USER": "developer"}

    def copy(self, home: Path) -> Path:
        """Copy the template to a new home; return the project in it."""
        shutil.copytree(self._template, home, symlinks=True)
        return home / "project"


def state(project: Path) -> dict[str, object]:
    """Return what a call leaves in a project: the names of the files, and what git shows."""
    files = sorted(
        str(path.relative_to(project))
        for path in project.rglob("*")
        if not any(part in IGNORED for part in path.relative_to(project).parts)
    )
    shown = {}
    for words in (
        "status --porcelain",
        "log --all --format=%s",
        "branch -a",
        "tag",
        "remote",
        "stash list",
        "config user.name",
    ):
        done = subprocess.run(
            ["git", *words.split()],
            cwd=project,
            env=EverydayWorld.environ(project.parent),
            capture_output=True,
            check=False,
        )
        shown[words] = sorted(done.stdout.decode().splitlines())
    return {"files": files, **shown}

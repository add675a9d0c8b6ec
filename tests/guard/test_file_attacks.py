"""Attacks that rest on files which the script makes, moves or finds. Each takes effect in bash, and `strict` refuses each."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

if TYPE_CHECKING:
    from pathlib import Path

GLOBS_THAT_BECOME_OPTIONS = """
touch -- -delete; find victim -delet?
touch -- -delete; find victim [-]delete
: > ./-delete; find victim *delete
cp a.txt ./-delete; find victim -[d]elete
mkdir -- -delete; find victim -delete*
git mv a.txt ./-delete; find victim -delet?
(touch -- -delete); find victim ?delete
n=delete; touch -- -$n; find victim -$n*
touch -- -delete; x=-delet?; find victim $x
mkdir d; cd d; touch -- '#' -delete; find ../victim ! -newer *
touch -- --remove-files; tar cf x.tar --* victim
touch -- '--checkpoint=1' '--checkpoint-action=exec=rm -rf victim'; tar cf t.tar *
mkdir -p of=../outside; touch of=../outside/new; dd if=a.txt of=*/outside/new
mkdir -p ./--output=../outside; touch ./--output=../outside/new; sort a.txt --output=*/outside/new
mkdir -p ./-o../outside; touch ./-o../outside/new; sort a.txt -o*/outside/new
"""
GLOBS_THAT_BECOME_THE_PARENT = """
shopt -u globskipdots; cat .?/outside/secret.txt
shopt -u globskipdots; cat .*/outside/secret.txt
shopt -u globskipdots; cat .[.]/outside/secret.txt
shopt -u globskipdots; cat .[[:punct:]]/outside/secret.txt
shopt -u globskipdots; cat src/.?/.?/outside/secret.txt
shopt -u globskipdots; x=.?; cat $x/outside/secret.txt
shopt -u globskipdots; cat < .*./outside/secret.txt
shopt -u globskipdots; sort -o .?/outside/new a.txt; cp a.txt .?/outside
shopt -s extglob;; shopt -u globskipdots;; cat @(..)/outside/secret.txt
shopt -s extglob;; shopt -u globskipdots;; x='@(..)';; cat $x/outside/secret.txt
shopt -s extglob;; shopt -u globskipdots;; x=@ y='(..)';; cat $x$y/outside/secret.txt
shopt -s extglob;; shopt -u globskipdots;; cat .@(.)/outside/secret.txt
"""
FIND_ELSEWHERE = """
find $PWD -maxdepth 0 -execdir cat outside/secret.txt \\;
find "$(pwd)" -maxdepth 0 -execdir cat outside/secret.txt \\;
find ../project -maxdepth 0 -execdir env cat outside/secret.txt \\;
find $PWD/ -maxdepth 0 -okdir cat outside/secret.txt \\; < <(yes)
find -L . -name secret.txt -exec cat {} \\;
find . -name secret.txt -exec cat {} + -follow
find -O3 -L . -name secret.txt -exec env cat {} +
find -H . leak -name secret.txt -exec cat {} +
find -L . -name secret.txt -execdir cat secret.txt \\;
find . -maxdepth 0 -exec cat {}./outside/secret.txt \\;
find . -maxdepth 0 -exec cat {}{}/outside/secret.txt \\;
find . -maxdepth 0 -exec grep -r secret {}. \\;
find . -type l -exec cat {}/secret.txt \\;
find . -name leak -exec grep -r secret {}/ \\;
"""
DIRECTORIES_THAT_ARE_NOT_ENTERED = """
: > x; mkdir x; cd x; cat ../outside/secret.txt
mkdir --version x; cd x; cat ../outside/secret.txt
mkdir -m 999 x; cd x; cat ../outside/secret.txt
mkdir -m x y; cd x; cat ../outside/secret.txt
mkdir x < nosuch; cd x; cat ../outside/secret.txt
mkdir x >&9; cd x; cat ../outside/secret.txt
git mv src s2; cd src; cat ../outside/secret.txt
mv src s2; cd src; cat ../outside/secret.txt
mkdir x; f() { cd x; } 3< nosuch; f; cat ../outside/secret.txt
mkdir x; f() { cd x; } >&9; f; cat ../outside/secret.txt
mkdir x; ./cd x; cat ../outside/secret.txt
mkdir x; chdir x; cat ../outside/secret.txt
mkdir x; enable -n cd; cd x; cat ../outside/secret.txt
cd src --; cat ../outside/secret.txt
cd src -P; cat ../outside/secret.txt
cd src src; cat ../outside/secret.txt
mkdir x; true && cd() { :; }; cd x && cat ../outside/secret.txt
mkdir x; builtin -z cd x; cat ../outside/secret.txt
set -r; mkdir x; cd x; cat ../outside/secret.txt
"""
DIRECTORIES_THAT_MOVE = """
mkdir -p p/q && cd p/q && mv ../q ../../r && cat ../../outside/secret.txt
mkdir -p p/q && cd p/q && (mv ../q ../../r) && cat ../../outside/secret.txt
mkdir -p p/q && cd p/q && mv ../* ../.. && cat ../../outside/secret.txt
mkdir -p p/q && cd p/q && env mv ../q ../../r && cat < ../../outside/secret.txt
mkdir -p p/q && cd p/q && mv ../q ../../r && cd -P .. && cat ../outside/secret.txt
mkdir -p p/q && touch p/q/f && git add p && cd p/q && git -C ../.. mv p/q r && cat ../../outside/secret.txt
"""
COPIES_THAT_CHANGE = """
cp ok.sh x; echo 'rm -rf victim' > x; ./x
install -m 755 ok.sh x; echo 'rm -rf victim' >> x; ./x
mkdir d; cp -t d ok.sh; echo 'rm -rf victim' > d/ok.sh; d/ok.sh
echo 'rm -rf victim' > x; cp x ok.sh; ./ok.sh
cp ok.sh x; sed -i '$a rm -rf victim' x; env ./x
cp ok.sh x; tee -a x <<< 'rm -rf victim'; find x -exec ./x \\;
mkdir d; echo 'rm -rf victim' > d/ok.sh; cp -r d/. .; ./ok.sh
mkdir d; echo 'rm -rf victim' > d/ok.sh; cp -rT d .; ./ok.sh
"""
FILES_WITH_TWO_NAMES = """
ln ok.sh x; echo 'rm -rf victim' > x; ./ok.sh
ln ok.sh x; echo 'rm -rf victim' > ok.sh; ./x
cp --link ok.sh x; echo 'rm -rf victim' > x; sh ok.sh
cp -s ok.sh x; echo 'rm -rf victim' > x; ./ok.sh
link ok.sh x; echo 'rm -rf victim' > x; sh ok.sh
ln ok.sh x; ln x y; echo 'rm -rf victim' > y; ./ok.sh
ln -s src s; echo 'rm -rf victim' > s/t; sh src/t
echo 'rm -rf victim' > same.sh; ./ok.sh
"""
WRITTEN_FILES_THAT_MOVE = """
mkdir d; echo 'rm -rf victim' > d/t; mv d e; sh e/t
mkdir d; echo 'rm -rf victim' > d/t; cp -r d e; sh e/t
mkdir d; echo 'rm -rf victim' > d/t; mv d src; . src/d/t
mkdir d; echo 'rm -rf victim' > d/t; git add d; git mv d e; sh e/t
mkdir d; echo 'rm -rf victim' > d/t; (mv d e); mv e g; sh g/t
mkdir d; echo 'rm -rf victim' > d/t; cp -rT d src; sh src/t
echo 'rm -rf victim' > y; git add y; git mv y src; sh src/y
mkdir d; echo 'rm -rf victim' > d/t; find . -name t -exec sh {} \\;
"""
ADDRESSES_THAT_ARE_PATHS = """
mkdir 'file:a?'; cat 'file:a?/../../outside/secret.txt'
mkdir 'file:a?'; tee 'file:a?/../../outside/new' < a.txt
mkdir 'file:a?'; cd 'file:a?/../..' && cat outside/secret.txt
mkdir 'file:a?'; env -C 'file:a?/../../outside' cat secret.txt
mkdir 'file:a?'; find 'file:a?/../../outside' -type f -exec cat {} +
mkdir -p http:/localhost; git diff --no-index /dev/null http://localhost/../../../outside/secret.txt
mkdir -p http:/localhost; cat http://localhost/../../../outside/secret.txt
"""
LINKS_THAT_MOVE = """
mkdir -p p/q; (cd p/q && ln -s ../../outside l); mv p/q r; cat r/l/secret.txt
mkdir -p p/q; (cd p/q && ln -s ../../outside l); cp -a p/q r; cat r/l/secret.txt
mkdir -p p; (cd p && ln -s ../outside l); ln p/l m; cat m/secret.txt
mkdir -p p; (cd p && ln -s ../outside l); cp -P p/l .; cat l/secret.txt
mkdir -p p/q; (cd p/q && ln -s ../../outside/secret.txt l); mv p/* .; cat q/l
mkdir -p p/q; (cd p/q && ln -s ../../outside/secret.txt l); cp -a p/q r; cat ?/l
mkdir -p p/q; (cd p/q && ln -s ../../outside l); mv p/q r; grep -Rh secret .
mkdir -p p/q; (cd p/q && ln -s ../../outside/secret.txt l); git add p; git mv p/q r; cat r/l
mkdir -p p/q; (cd p/q && ln -s ../../outside/secret.txt l); tar cf x.tar -C p q; tar xf x.tar; cat q/l
mkdir -p p/q; (cd p/q && ln -s ../../outside/secret.txt l); tar c p | tar x --strip-components=1; cat q/l
mkdir -p p; (cd p && ln -s ../outside l && tar cf ../x.tar l); trap 'cat l/secret.txt' EXIT; tar xf x.tar
mkdir -p p; (cd p && ln -s ../outside l && tar cf ../x.tar l); { sleep 0.3; cat l/secret.txt; } & tar xf x.tar; wait
mkdir -p p; (cd p && ln -s ../outside l && tar cf ../x.tar l); for i in 1 2; do cat l/secret.txt; tar xf x.tar; done
mkdir -p p/q; (cd p/q && ln -s ../../outside/secret.txt l); git add p; git diff --cached | git apply -p2; cat q/l
mkdir -p p/q; (cd p/q && ln -s ../../outside/secret.txt l); git add p; git diff --cached > d; patch -sp2 < d; cat q/l
git apply <<< $'diff --git a/l b/l\\nnew file mode 120000\\n--- /dev/null\\n+++ b/l\\n@@ -0,0 +1 @@\\n+../outside\\n\\\\ No newline at end of file'; cat l/secret.txt
"""
PATCHES_THAT_DELETE = """
diff -u victim/file /dev/null | patch -p0
diff -u victim/file /dev/null > p; patch -p0 -i p
diff -u victim/file /dev/null > p; patch victim/file p
diff -u victim/file /dev/null > p; patch -p0 < p
diff -u /dev/null victim/file | patch -Rp0
patch -p0 <<< $'--- victim/file\\n+++ /dev/null\\n@@ -1 +0,0 @@\\n-keep'
patch -Ep0 <<< $'--- victim/file\\n+++ victim/file\\n@@ -1 +0,0 @@\\n-keep'
git diff --no-index victim/file /dev/null | git apply
git apply <<< $'diff --git a/victim/file b/x\\nsimilarity index 100%\\nrename from victim/file\\nrename to x'
git apply <(git diff --no-index victim/file /dev/null)
"""
CODE_THAT_A_PROGRAM_FINDS = """
echo 'import shutil; shutil.rmtree("victim")' > json.py; python3 -m json.tool a.txt
echo 'import shutil; shutil.rmtree("victim")' > argparse.py; python3 -m json.tool argparse.py
echo 'import shutil; shutil.rmtree("victim")' > json.py; python3 ok.py
mkdir json; echo 'import shutil; shutil.rmtree("victim")' > json/__init__.py; python3 ok.py
mkdir d; echo 'import shutil; shutil.rmtree("victim")' > d/__init__.py; mv d json; python3 ok.py
printf '>>> import shutil; shutil.rmtree("victim")' > x.txt; python3 -m doctest x.txt
echo 'import shutil; shutil.rmtree("victim")' > test_x.py; python3 -m unittest
echo 'import shutil; shutil.rmtree("victim")' > src/test_x.py; python3 -m unittest discover -s src
echo 'import shutil; shutil.rmtree("victim")' > src/__main__.py; python3 src
echo 'import shutil; shutil.rmtree("victim")' > x.py; python3 -m pydoc ./x.py
printf 'all:\\n\\trm -rf victim\\n' > d.mk; mv d.mk Makefile; make
"""
JUDGED_ONLY = """
echo 1 > x.js; node x
echo 1 > src/index.js; node src
echo 1 > x.test.mjs; node --test
echo 1 > src/main.rs; cargo run
echo 1 > main_test.go; go test ./...
echo 1 > tests/test_x.py; pytest
echo 1 > sub/conftest.py; python -m pytest
echo 1 > lib/x.rb; rspec
echo 1 > docs/conf.py; sphinx-build docs out
echo 1 > lib/X.pm; perl x.pl
"""


def scripts(text: str) -> list[str]:
    """Return the scripts of a table; `;;` stands for a new line."""
    return [line.replace(";; ", "\n") for line in text.strip().splitlines()]


ATTACKS = [
    script
    for table in (
        GLOBS_THAT_BECOME_OPTIONS,
        GLOBS_THAT_BECOME_THE_PARENT,
        FIND_ELSEWHERE,
        DIRECTORIES_THAT_ARE_NOT_ENTERED,
        DIRECTORIES_THAT_MOVE,
        COPIES_THAT_CHANGE,
        FILES_WITH_TWO_NAMES,
        WRITTEN_FILES_THAT_MOVE,
        ADDRESSES_THAT_ARE_PATHS,
        LINKS_THAT_MOVE,
        PATCHES_THAT_DELETE,
        CODE_THAT_A_PROGRAM_FINDS,
    )
    for script in scripts(table)
]
HARMLESS = """
mkdir -p build && cd build && make
touch pkg/__init__.py && python3 ok.py
echo 'x = 1' > src/x.py; python3 -m pylint src/x.py
echo x > x.txt; node build.js; python3 ok.py; cargo test
tar xf a.tar && ls -la out && cat out/readme
git apply fix.patch && cat a.txt
patch -p0 <<< $'--- a.txt\\n+++ a.txt\\n@@ -1 +1 @@\\n-a\\n+b'; cat a.txt
ln -s a.txt b.txt && cat src/a.c
cp a.txt b.txt; ./ok.sh; sh ok.sh
gcc --version; make --version
cd src; cat ../a.txt
mkdir -p build && cd build && cat ../a.txt
mkdir -p build; cd build; touch x; cat a.txt
mv a.txt b.txt && cat b.txt
grep -rn x --include=*.py .
ls *.txt; cat src/*.c; wc -l *.txt
find . -name '*.c' -exec grep -l main {} +
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with files to lose, beside a directory with a secret to which a link leads."""
    root = tmp_path / "project"
    for folder in (root / "victim", root / "src", tmp_path / "outside"):
        folder.mkdir(parents=True)
    (root / "victim" / "file").write_text("keep\n")
    (root / "src" / "a.c").write_text("int main(void) { return 0; }\n")
    (root / "a.txt").write_text('{"a": 1}\n')
    (root / "ok.sh").write_text("#!/bin/sh\necho ok\n")
    (root / "ok.py").write_text("import json\n")
    (root / "ok.sh").chmod(0o755)
    (tmp_path / "outside" / "secret.txt").write_text("the secret\n")
    os.symlink("../outside", root / "leak")
    os.symlink("ok.sh", root / "same.sh")
    return root


def takes_effect(script: str, root: Path) -> bool:
    """Run a script in bash; return whether it lost a file, showed the secret or changed a file outside the project."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    for arguments in (["init", "-q"], ["add", "a.txt", "src", "victim"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], cwd=root, check=True)
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-c", script],
        cwd=root,
        capture_output=True,
        timeout=20,
        check=False,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C.UTF-8", "GIT_CONFIG_GLOBAL": "/dev/null"},
    )
    outside = {path.name: path.read_bytes() for path in root.with_name("outside").iterdir()}
    is_changed = outside != {"secret.txt": b"the secret\n"}
    return b"the secret" in done.stdout or is_changed or not (root / "victim" / "file").exists()


def refusing_rules(script: str, root: Path) -> list[str]:
    """Return the rules for which `strict` refuses a script."""
    verdict = vet(Call(script, shell=True), SandboxConfig(project_root=str(root)))
    return [finding.rule for finding in verdict.findings]


@pytest.mark.parametrize("script", [*ATTACKS, *scripts(JUDGED_ONLY)])
def test_strict_refuses_the_attack(script: str, project: Path) -> None:
    assert refusing_rules(script, project)


@pytest.mark.real
@pytest.mark.parametrize("script", ATTACKS)
def test_attack_takes_effect_in_bash(script: str, project: Path) -> None:
    assert takes_effect(script, project)


@pytest.mark.parametrize("script", scripts(HARMLESS))
def test_strict_allows_the_near_miss(script: str, project: Path) -> None:
    assert refusing_rules(script, project) == []

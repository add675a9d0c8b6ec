"""Paths, commands and standard input that options, variables and revisions hide. Each attack works in bash and is refused under `strict`."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from corral import Decision, SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "TOPSECRET99"
ATTACKS = {
    "a directory for temporary files": "TMPDIR=../outside mktemp",
    "a program that zdiff starts": "DIFF='rm -rf victim' zdiff a.txt b.txt",
    "names of files for xz": "xz -kc --files <<< ../outside/secret.txt",
    "the cache of Python": "python3 -X pycache_prefix=../outside/c -m compileall -q src",
    "a suffix of sed": "sed -i'../outside/*' s/a/b/ a.txt",
    "text of sed that ends": "sed 'a x\\\\\ne rm -rf victim' a.txt",
    "options of tar that delete": "TAR_OPTIONS=--remove-files tar cf a.tar victim",
    "an archive over a directory": "mkdir t; : > t/victim; tar cf a.tar -C t victim; tar xf a.tar --recursive-unlink",
    "an environment that is emptied": "python3 -m venv --without-pip --clear victim",
    "a module of Python by its path": 'python3 "$(python3 -c \'import timeit; print(timeit.__file__)\')" -n1 \'open("../outside/c", "w")\'',
    "a list of options for the assembler": "gcc -c src/a.c -Wa,-MD,../outside/c -o t.o",
    "a list of options for the preprocessor": "gcc -c src/a.c -Wp,-MMD,../outside/c -o t.o",
    "a dump of gcc": "gcc -c src/a.c -fdump-tree-original=../outside/c -o t.o",
    "arguments in a file": "echo '-o ../outside/c' > args; gcc -c src/a.c @args",
    "source on standard input": "gcc -E -xc - <<< '#include \"../outside/secret.txt\"'",
    "source that the call writes": "echo '#include \"../outside/secret.txt\"' > x.c; gcc -E x.c",
    "a script of the linker": "ld -r -b binary a.txt -T <(echo 'OUTPUT(../outside/c)')",
    "a script of ar": "ar -M <<< $'CREATE ../outside/c\\nADDMOD a.txt\\nSAVE\\nEND'",
    "a section of an object file": "gcc -c src/a.c -o t.o; objcopy --dump-section .text=../outside/c t.o",
    "a log of java": "java -Xlog:gc:file=../outside/c -version",
    "a command of sqlite3": "printf '.shell rm -rf victim\\n' | sqlite3 :memory:",
    "a comment in SQL": "sqlite3 :memory: \"select readfile/*x*/('../outside/secret.txt')\"",
    "a table that is a function": "sqlite3 :memory: \"select data from fsdir where path='../outside/secret.txt'\"",
    "a command in a cluster of zip": "zip -q9TT 'rm -rf victim #' -T a.zip a.txt",
    "names of files for zip": "zip -q a.zip -@ <<< ../outside/secret.txt; unzip -p a.zip",
    "a file that groff includes": "groff -Tascii <<< '.so ../outside/secret.txt'",
    "a directory for objects of git": "git multi-pack-index --object-dir=../outside write",
    "a program of git's own directory": '"$(git --exec-path)/git-rm" -rqf victim',
    "a path of the last commit": "git checkout HEAD victim",
    "a path of the index": "git checkout victim/f1",
    "a path in another directory": "git -C victim checkout f1",
    "a pattern of paths": "git checkout HEAD ':(glob)victim/**'",
    "a change that is undone": "git diff | git apply -R",
    "a key of the last commit": "git cat-file -p HEAD:.ssh/id_rsa",
    "a credential of the index": "git show :.boto",
    "a credential in the history": "git log -p -- .boto",
    "a credential in a search": "git grep -h . HEAD -- .boto",
    "a credential in an archive": "git archive HEAD .boto",
    "names of objects": "git cat-file --batch <<< HEAD:.boto",
}
HARMLESS = [
    "git checkout main",
    "git checkout -b victim2 HEAD",
    "git cat-file -p HEAD:a.txt",
    "git show HEAD:src/a.c",
    "gcc -c src/a.c -o a.o && gcc a.o -o a",
    "pytest --basetemp=.new",
    "sed -i.bak s/a/b/ a.txt",
    "TAR_OPTIONS=--no-same-owner tar cf a.tar src",
    "TMPDIR=src mktemp",
    "git log --grep=/etc/passwd",
    "java -Xmx1g -version",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with an uncommitted change in `victim`, and a secret beside it."""
    root, outside = tmp_path / "p", tmp_path / "outside"
    for folder in (outside, root / "victim", root / "src", root / ".ssh"):
        folder.mkdir(parents=True)
    (outside / "secret.txt").write_text(f"{SECRET}\n")
    (root / "victim" / "f1").write_text("1\n")
    (root / "a.txt").write_text("a\n")
    (root / "b.txt").write_text("b\n")
    (root / "src" / "a.c").write_text("int main(void) { return 0; }\n")
    (root / "src" / "m.py").write_text("x = 1\n")
    for name in (".ssh/id_rsa", ".boto"):
        (root / name).write_text(f"{SECRET}\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "-Af"), (*identity, "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=root, check=True)
    (root / "victim" / "f1").write_text("changed\n")
    shutil.rmtree(root / ".ssh")
    (root / ".boto").unlink()
    return root


def _state(root: Path) -> tuple[str, list[str]]:
    victim = root / "victim" / "f1"
    return victim.read_text() if victim.is_file() else "", sorted(os.listdir(root.parent / "outside"))


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_attack_that_works_is_refused(project: Path, text: str) -> None:
    verdict = vet(Call(text, shell=True), SandboxConfig(project_root=str(project)))
    assert verdict.decision is Decision.DENY
    program = next(word for word in text.split() if "=" not in word and word not in ("mkdir", "echo", "printf"))
    if program.isalnum() and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    before = _state(project)
    environment = {**os.environ, "HOME": str(project.parent)}
    done = subprocess.run(["bash", "-c", text], cwd=project, env=environment, capture_output=True, check=False)
    if done.returncode == 127:
        pytest.skip("a program is not installed")
    assert SECRET.encode() in done.stdout + done.stderr or _state(project) != before


@pytest.mark.parametrize("text", HARMLESS)
def test_everyday_call_is_allowed(project: Path, text: str) -> None:
    assert vet(Call(text, shell=True), SandboxConfig(project_root=str(project))).allowed


@pytest.mark.parametrize(
    "text", ["pytest --basetemp=victim", "mkdocs build -d victim", "cargo clean --target-dir victim"]
)
def test_directory_that_a_program_empties_counts_as_deleted(project: Path, text: str) -> None:
    verdict = vet(Call(text, shell=True), SandboxConfig(project_root=str(project)))
    assert "path-delete-inside" in {finding.rule for finding in verdict.findings}

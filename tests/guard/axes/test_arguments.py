"""Tests the argv axis: near misses first, then code that is given inline, on standard input or by module."""

from __future__ import annotations

import pytest

from corral import DEFAULT_INTERPRETER_BLOCK, Containment, SandboxConfig
from corral.axes import _check_argv_interpreter
from corral.guard.evaluate import vet
from corral.model.call import Call

ALLOWED = {
    "a script": ["python3", "script.py"],
    "a script with its own -c": ["python3", "script.py", "-c", "x"],
    "a module that is a tool": ["python", "-m", "pytest", "-q"],
    "a build script": ["node", "build.js"],
    "a version question": ["python3", "--version"],
    "another program's -c": ["wc", "-c", "notes.txt"],
    "another program's -e": ["grep", "-e", "x", "notes.txt"],
    "a sed expression": ["sed", "-n", "/^def/p", "script.py"],
    "unbuffered": ["python3", "-u", "script.py"],
    "a shell script": ["bash", "run.sh", "-c"],
    "an awk program in a file": ["awk", "-f", "prog.awk", "notes.txt"],
}
REFUSED = {
    "-c": ["python3", "-c", "print(1)"],
    "-c with its code attached": ["python3", "-cprint(1)"],
    "a cluster": ["python3", "-Ic", "x"],
    "a versioned name": ["python3.12", "-c", "x"],
    "pypy": ["pypy3", "-c", "x"],
    "lua with a version": ["lua5.4", "-e", "x"],
    "a login shell": ["bash", "-lc", "ls"],
    "a shell by path": ["/bin/sh", "-c", "ls"],
    "perl -e": ["perl", "-e", "x"],
    "perl -E": ["perl", "-E", "x"],
    "perl -ne": ["perl", "-ne", "print"],
    "ruby -e": ["ruby", "-e", "x"],
    "node -e": ["node", "-e", "x"],
    "node --eval": ["node", "--eval", "x"],
    "node --eval=": ["node", "--eval=x"],
    "node -p": ["node", "-p", "1"],
    "php -r": ["php", "-r", "x"],
    "deno eval": ["deno", "eval", "x"],
    "awk with its program": ["awk", "{print}", "notes.txt"],
    "osascript -e": ["osascript", "-e", "x"],
    "powershell -Command": ["powershell", "-Command", "x"],
    "powershell -EncodedCommand": ["pwsh", "-EncodedCommand", "eA=="],
    "standard input": ["python", "-"],
    "a shell on standard input": ["bash", "-s"],
    "an interpreter with no script": ["python3"],
    "a shell with no script": ["sh"],
    "timeit": ["python", "-m", "timeit", "x"],
    "pdb -c": ["python", "-m", "pdb", "-c", "x"],
    "behind env": ["env", "python3", "-c", "x"],
    "behind xargs": ["xargs", "-n1", "sh", "-c", "ls"],
}


@pytest.mark.parametrize("argv", [pytest.param(a, id=name) for name, a in ALLOWED.items()])
def test_code_in_a_file_is_allowed(strict: SandboxConfig, argv: list[str]) -> None:
    assert _check_argv_interpreter(argv, strict) is None


@pytest.mark.parametrize("argv", [pytest.param(a, id=name) for name, a in REFUSED.items()])
def test_code_that_is_not_in_a_file_is_refused(strict: SandboxConfig, argv: list[str]) -> None:
    reason = _check_argv_interpreter(argv, strict)
    assert reason is not None
    assert "interpreter" in reason


def test_user_can_unblock_an_interpreter(project: str) -> None:
    config = SandboxConfig(project_root=project, interpreter_block=DEFAULT_INTERPRETER_BLOCK - {"python", "python3"})
    assert _check_argv_interpreter(["python3", "-c", "x"], config) is None
    assert _check_argv_interpreter(["perl", "-e", "x"], config) is not None


@pytest.mark.parametrize("listed", ["python", "python3", "python3.*"])
@pytest.mark.parametrize("program", ["python3.11", "/usr/bin/python3.11"])
def test_listed_interpreter_blocks_its_versions(project: str, listed: str, program: str) -> None:
    config = SandboxConfig(project_root=project, interpreter_block={listed})
    assert _check_argv_interpreter([program, "-c", "x"], config) is not None
    assert _check_argv_interpreter(["perl", "-e", "x"], config) is None


def test_listed_version_blocks_no_other_version(project: str) -> None:
    config = SandboxConfig(project_root=project, interpreter_block={"python3"})
    assert _check_argv_interpreter(["python2", "-c", "x"], config) is None


def test_user_can_block_an_interpreter_without_a_row(project: str) -> None:
    config = SandboxConfig(project_root=project, interpreter_block={"foolang"})
    assert _check_argv_interpreter(["foolang", "-e", "x"], config) is not None
    assert _check_argv_interpreter(["foolang", "x.foo"], config) is None


def test_file_written_and_run_in_one_call_is_refused(strict: SandboxConfig) -> None:
    verdict = vet(Call("echo 'import os' > x.py; python3 x.py", shell=True), strict)
    assert [f.rule for f in verdict.findings] == ["argv-python-run-written"]


def test_guard_follows_the_network_setting(project: str) -> None:
    for network, allowed in (("off", False), ("on", True)):
        config = SandboxConfig(project, profile="workspace", containment=Containment(network=network))
        assert vet(Call(["curl", "https://example.com/"]), config).allowed is allowed

"""Tests the path axis: near misses first, then every place where a path can hide and lead outside."""

from __future__ import annotations

import os

import pytest

from corral import Containment, Decision, SandboxConfig
from corral.axes import _check_path_jail
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Axis, Call

ALLOWED = {
    "a file": ["cat", "src/main.py"],
    "a file by its absolute path": ["cat", "{root}/src/main.py"],
    "dots that stay inside": ["cat", "src/../notes.txt"],
    "a link that stays inside": ["cat", "lib/main.py"],
    "a file that does not exist": ["touch", "new.txt"],
    "the root itself": ["ls", "."],
    "an address": ["echo", "https://example.com/a/b"],
    "a git reference": ["git", "log", "origin/main"],
    "a sed expression": ["sed", "-n", "/^def/p", "script.py"],
    "a sed substitution": ["sed", "s/etc/usr/", "notes.txt"],
    "a pattern": ["grep", "/etc/passwd", "notes.txt"],
    "the null device": ["cat", "/dev/null"],
    "a program of the system": ["/bin/cat", "notes.txt"],
    "an option's value inside": ["tool", "--config=src/x.toml"],
    "dots in a name": ["cat", "a..b"],
}
REFUSED = {
    "the parent": ["cat", "../secret.txt"],
    "deep dots": ["cat", "src/../../secret.txt"],
    "an absolute path": ["cat", "/etc/passwd"],
    "a neighbour with the same prefix": ["cat", "{root}_evil/f"],
    "a link to a file": ["cat", "leak"],
    "a link to a directory": ["cat", "up/secret.txt"],
    "home": ["cat", "~/.bashrc"],
    "another user's home": ["cat", "~root/x"],
    "--option=path": ["tool", "--config=/etc/x"],
    "-Ipath": ["tool", "-I/etc"],
    "key=path": ["dd", "if=/etc/passwd"],
    "@path": ["tool", "@/etc/x"],
    "file://": ["tool", "file:///etc/passwd"],
    "file://localhost": ["tool", "file://localhost/etc/passwd"],
    "an unknown program's argument": ["frobnicate", "/etc/passwd"],
    "an unknown program's existing file": ["frobnicate", "leak"],
    "a program outside": ["{root}_evil/prog"],
    "a program through a link": ["./up/proj_evil/prog"],
    "the project's credentials": ["cat", ".env"],
    "a directory above": ["ls", ".."],
    "the file system's root": ["find", "/", "-name", "x"],
}


def _at(argv: list[str], root: str) -> list[str]:
    return [a.replace("{root}", root) for a in argv]


@pytest.mark.parametrize("argv", [pytest.param(a, id=name) for name, a in ALLOWED.items()])
def test_path_inside_the_project_is_allowed(strict: SandboxConfig, argv: list[str]) -> None:
    assert _check_path_jail(_at(argv, strict.project_root), strict) is None


@pytest.mark.parametrize("argv", [pytest.param(a, id=name) for name, a in REFUSED.items()])
def test_path_outside_the_project_is_refused(strict: SandboxConfig, argv: list[str]) -> None:
    reason = _check_path_jail(_at(argv, strict.project_root), strict)
    assert reason is not None
    assert "outside project root" in reason or "credentials" in reason


@pytest.mark.parametrize(
    "text",
    [
        "echo x > ../y", "echo x >> /etc/x", "cat < ../secret.txt", "> ../y", "echo x >| ../y", "echo x &> ../y", "echo x >& ../y",
        "cd .. && cat secret.txt", "cd src && cat ../../secret.txt", "(cd ..; cat secret.txt)", "cd up && cat secret.txt",
        "x=/etc/passwd; cat $x", "cat /et{c,d}/passwd", "cat $'/etc/passwd'", "cat \"/etc\"/passwd", "for f in /etc/passwd; do cat $f; done",
        "cat *", "cd nowhere && true; cat ../secret.txt", "tee ../x", "cp src/main.py ../x", "cat l[e]ak", "f() { cat $1; }; f /etc/passwd",
    ],
)  # fmt: skip
def test_path_built_by_the_shell_is_followed(strict: SandboxConfig, text: str) -> None:
    findings = vet(Call(text, shell=True), strict).findings
    assert [f for f in findings if f.axis is Axis.PATH]


@pytest.mark.parametrize(
    "text",
    [
        "cd src && cat ../notes.txt",
        "cd src; cd ..; cat notes.txt",
        "cat src/*.py",
        "echo x > out 2>/dev/null",
        "(cd src); cat notes.txt",
    ],
)
def test_shell_paths_inside_the_project_are_allowed(strict: SandboxConfig, text: str) -> None:
    assert vet(Call(text, shell=True), strict).findings == ()


def test_working_directory_outside_is_refused(strict: SandboxConfig) -> None:
    verdict = vet(Call(["ls"], cwd=os.path.dirname(strict.project_root)), strict)
    assert "path-cwd" in [f.rule for f in verdict.findings]


def test_paths_are_relative_to_the_working_directory(strict: SandboxConfig) -> None:
    assert vet(Call(["cat", "../notes.txt"], cwd="src"), strict).allowed
    assert not vet(Call(["cat", "../../secret.txt"], cwd="src"), strict).allowed


PROTECTED = [
    ".git/hooks/pre-commit",
    ".git/config",
    "sub/.git/hooks/post-checkout",
    ".envrc",
    ".claude/settings.json",
    ".vscode/tasks.json",
    "corral.toml",
    ".mcp.json",
]


@pytest.mark.parametrize("path", PROTECTED)
def test_no_profile_allows_writing_protected_files(strict: SandboxConfig, workspace: SandboxConfig, path: str) -> None:
    for config in (strict, workspace):
        verdict = vet(Call(f"echo x > {path}", shell=True), config)
        assert [(f.rule, f.decision) for f in verdict.findings] == [("path-write-protected", Decision.DENY)]


@pytest.mark.parametrize(
    "path", ["~/.ssh/id_rsa", "~/.aws/credentials", "/etc/shadow", "/root/.netrc", "/home/other/.ssh/config"]
)
def test_no_profile_allows_reading_credentials(strict: SandboxConfig, workspace: SandboxConfig, path: str) -> None:
    for config in (strict, workspace):
        assert "path-read-secret" in [f.rule for f in vet(Call(f"cat {path}", shell=True), config).findings]


def test_workspace_reads_the_system_and_writes_scratch(workspace: SandboxConfig) -> None:
    for text in ("cat /usr/include/stdio.h", "cat /proc/cpuinfo", "echo x > /tmp/corral-x", "rm -rf build", "ls /etc"):
        assert vet(Call(text, shell=True), workspace).findings == ()


@pytest.mark.parametrize("root", ["/tmp/corral-x/project", "/srv/corral-x/project"])
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("rm -rf ..", "path-delete-outside"),
        ("rm -rf $PWD/..", "path-delete-outside"),
        ("find .. -delete", "path-delete-outside"),
        ("cd .. && rm -rf *", "path-delete-outside"),
        ("rm -rf $UNSET/*", "path-delete-root"),
        ('rm -rf "$UNSET"/', "path-delete-root"),
        ("rm -rf ${UNSET}/.*", "path-delete-root"),
    ],
)
def test_project_is_not_deleted_from_above(workspace: SandboxConfig, root: str, text: str, rule: str) -> None:
    verdict = vet(Call(text, shell=True), workspace, Machine(root))
    assert {finding.rule for finding in verdict.findings} == {rule}


@pytest.mark.parametrize("text", ["rm -rf ../*", "rm -rf /tmp/*", "rm -rf /tmp/corral-x/pro*", "rm -rf /tmp/*/project"])
def test_glob_above_a_project_in_scratch_is_asked_about(workspace: SandboxConfig, text: str) -> None:
    machine = Machine("/tmp/corral-x/project")
    assert [finding.rule for finding in vet(Call(text, shell=True), workspace, machine).findings] == [
        "path-delete-root"
    ]
    assert vet(Call("rm -rf /tmp/other* /tmp/corral-x/old*; cp a /tmp", shell=True), workspace, machine).allowed


def test_granted_paths_are_allowed(project: str) -> None:
    beside = os.path.dirname(project)
    grants = Containment(read=(f"{beside}/proj_evil",), write=("/mnt",))
    config = SandboxConfig(project, containment=grants)
    assert vet(Call(["cat", f"{beside}/proj_evil/f"]), config).allowed
    assert vet(Call("echo x > /mnt/x", shell=True), config).allowed
    assert not vet(Call(f"echo x > {beside}/proj_evil/f", shell=True), config).allowed
    assert not vet(Call(["cat", f"{beside}/secret.txt"]), config).allowed


@pytest.mark.parametrize("script", ["node deep/../../x.js", "npm --prefix deep/../../x ls", "cat deep/../../x"])
def test_dots_behind_a_link_are_read_both_ways(script: str, project: str) -> None:
    os.makedirs(f"{project}/a/b")
    os.symlink("a/b", f"{project}/deep")
    config = SandboxConfig(project_root=project)
    assert vet(Call("cat deep/../c", shell=True), config).allowed
    assert not vet(Call(script, shell=True), config).allowed  # the kernel stays in the project, node leaves it

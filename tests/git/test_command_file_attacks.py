"""Attacks that lead the user's git into files of commands outside the project: their /tmp, and their copies of git directories."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

# Where the files lie outside: the kernel shows it to a command.
FACTS = """
mounts = {line.split()[4]: line.split()[3] for line in open("/proc/self/mountinfo")}
HERE = os.getcwd()
TMP, COPY = mounts.get("/tmp", "/tmp"), mounts.get(HERE + "/.git", HERE + "/.git")
"""
REPOSITORY = f"""{FACTS}
shutil.rmtree("/tmp/e", ignore_errors=True)
git("init", "-q", "/tmp/e")
git("-C", "/tmp/e", "config", "core.fsmonitor", TOUCH + "; false")
"""
REMOTE = f"""{FACTS}
shutil.rmtree("/tmp/b.git", ignore_errors=True)
git("init", "-q", "--bare", "/tmp/b.git")
for hook in ("post-update", "pre-receive"):
    put("/tmp/b.git/hooks/" + hook, "#!/bin/sh\\n" + TOUCH + "\\n", 0o755)
"""
PUSH = "git push -q new main"
ATTACKS = {
    "link to a repository": Attack(f"{REPOSITORY}os.symlink(TMP + '/e', 'docs')", "cd docs && git status", CANARY),
    "link to a directory above it": Attack(f"{REPOSITORY}os.symlink(TMP, 'docs')", "cd docs/e && git status", CANARY),
    "link over a link": Attack(f"{REPOSITORY}os.symlink(TMP, 'a'); os.symlink('a/e', 'docs')", "cd docs && git status", CANARY),
    "link in a new directory": Attack(f"{REPOSITORY}os.makedirs('n/m'); os.symlink(TMP + '/e', 'n/m/x')", "cd n/m/x && git status", CANARY),
    "link that climbs": Attack(f"{REPOSITORY}os.symlink(os.path.relpath(TMP + '/e', HERE), 'x')", "cd x && git status", CANARY),
    "link to the copy of the project's git directory": Attack(
        f"{FACTS}git('config', 'core.fsmonitor', TOUCH + '; false'); git('config', 'core.worktree', HERE); os.symlink(COPY, 'x')",
        "cd x && git status",
        CANARY,
    ),
    "link that is moved into the project with its directory": Attack(
        (f"{REPOSITORY}os.makedirs('/tmp/d', exist_ok=True)", f"{FACTS}os.mkdir('d'); os.symlink(TMP + '/e', 'd/x'); os.rename('d', 'f2')"),
        "cd f2/x && git status",
        CANARY,
    ),
    "remote by path": Attack(f"{REMOTE}git('remote', 'add', 'new', TMP + '/b.git')", PUSH, CANARY),
    "remote by url": Attack(f"{REMOTE}git('remote', 'add', 'new', 'file://' + TMP + '/b.git')", PUSH, CANARY),
    "remote that climbs": Attack(f"{REMOTE}git('remote', 'add', 'new', os.path.relpath(TMP + '/b.git', HERE))", PUSH, CANARY),
    "remote behind a link": Attack(f"{REMOTE}os.symlink(TMP + '/b.git', 'l'); git('remote', 'add', 'new', './l')", PUSH, CANARY),
    "remote that becomes a link": Attack((f"{FACTS}git('remote', 'add', 'new', './l')", f"{REMOTE}os.symlink(TMP + '/b.git', 'l')"), PUSH, CANARY),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_attack_by_command_files_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_attack_by_command_files_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)

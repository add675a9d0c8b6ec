"""Attacks through refs and reflogs: names that hide other names, lost refs, forged logs, and values that break git."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import EVIL_FILE, HANGS, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

SIDE = "git reset -q --hard side"
UPSTREAM = "git reset -q --hard origin/main"
# No ref leads to the user's commit any more.
NAME = "git rev-parse side > $OUT/name"
LOST = "! git for-each-ref --contains $(cat $OUT/name) | grep -q ."
BACK = "git reset -q --hard HEAD@{1}"


def file(path: str) -> str:
    return f"put('.git/{path}', evil_commit() + '\\n')"


ATTACKS = {
    "file at the top that hides a branch": Attack(file("side"), SIDE, EVIL_FILE),
    "file at the top that hides a tag": Attack(file("v1"), "git reset -q --hard v1", EVIL_FILE),
    "file at the top that hides a remote's branch": Attack(file("origin/main"), UPSTREAM, EVIL_FILE),
    "file at the top, by merge": Attack(file("side"), "git merge -q side", EVIL_FILE),
    "file in a directory at the top": Attack(file("heads/side"), "git reset -q --hard heads/side", EVIL_FILE),
    "file at the top of a submodule": Attack(
        "name = git('-C', 'sub', 'hash-object', '-w', '--stdin', data='EVIL\\n')\nname = git('-C', 'sub', 'mktree', data=f'100644 blob {name}\\tf\\n')\n"
        "put('.git/modules/sub/main', git('-C', 'sub', 'commit-tree', name, '-m', 'x') + '\\n')",
        "cd sub; git reset -q --hard main",
        "grep -q EVIL sub/f",
        setup="git submodule -q add ../remote.git sub; git commit -qm sub",
    ),
    "ref directly in refs": Attack(file("refs/side"), SIDE, EVIL_FILE),
    "ref directly in refs, by git": Attack("git('update-ref', 'refs/side', evil_commit())", SIDE, EVIL_FILE),
    "ref in a directory of refs that git does not use": Attack(file("refs/origin/main"), UPSTREAM, EVIL_FILE),
    "tag of a branch's name": Attack("git('tag', 'side', evil_commit())", SIDE, EVIL_FILE),
    "tag of a branch's name in packed-refs": Attack(
        "append('.git/packed-refs', f'{evil_commit()} refs/tags/side\\n')", SIDE, EVIL_FILE
    ),
    "tag of a remote branch's name": Attack("git('tag', 'origin/main', evil_commit())", UPSTREAM, EVIL_FILE),
    "branch of a remote branch's name": Attack("git('branch', 'origin/main', evil_commit())", UPSTREAM, EVIL_FILE),
    "branch named like a short object name": Attack(
        "git('branch', git('rev-parse', '--short=7', 'side'), evil_commit())",
        "git reset -q --hard $(cut -c-7 $OUT/name)",
        EVIL_FILE,
        setup=NAME,
    ),
    "branch named like an option": Attack(
        "git('update-ref', f'refs/heads/--output={OUT}/victim', 'HEAD')",
        "git for-each-ref --format='%(refname:short)' refs/heads | xargs -n1 git log --oneline -1",
        "! grep -q good $OUT/victim",
    ),
    "symbolic ref in place of a branch": Attack(
        "git('branch', 'evil', evil_commit())\ngit('symbolic-ref', 'refs/heads/side', 'refs/heads/evil')",
        "git checkout -q side; git commit -q --allow-empty -m mine",
        "test $(git rev-parse refs/heads/side) = $(git rev-parse refs/heads/evil)",
    ),
    "symbolic ref to the branch that is checked out": Attack(
        "git('update-ref', '-d', 'refs/heads/side')\ngit('symbolic-ref', 'refs/heads/side', 'refs/heads/main')",
        "git push -q . +conflict:side",
        "test $(git rev-parse main) = $(git rev-parse conflict)",
    ),
    "symbolic ref in place of the remote's branch": Attack(
        "git('branch', 'evil', evil_commit())\ngit('symbolic-ref', 'refs/remotes/origin/HEAD', 'refs/heads/evil')",
        "git reset -q --hard origin",
        EVIL_FILE,
        setup="git remote set-head origin main",
    ),
    "symbolic ref to itself": Attack("put('.git/refs/heads/side', 'ref: refs/heads/side\\n')", NAME.replace("$OUT/name", "$OUT/x"), "! git rev-parse side"),
    "HEAD that leads nowhere": Attack("put('.git/HEAD', 'ref: nowhere\\n')", "true", "! git status"),
    "HEAD without text": Attack("put('.git/HEAD', '')", "true", "! git log"),
    "HEAD removed": Attack("os.unlink('.git/HEAD')", "true", "! git log"),
    "HEAD of a linked worktree that is not text": Attack("put('.git/worktrees/wt/HEAD', bytes(100))", "true", "! git -C wt log", setup="git worktree add -q wt side"),
    "HEAD that names a branch outside heads": Attack(
        "put('.git/HEAD', 'ref: refs/remotes/origin/main\\n')",
        "git commit -q --allow-empty -m mine",
        "git log -1 --format=%s refs/remotes/origin/main | grep -q mine",
    ),
    "ref to an object that is not there": Attack("put('.git/refs/heads/evil', '12' * 20 + '\\n')", "true", "! git gc -q"),
    "ref to an object that is not there, by fetch": Attack(
        "put('.git/refs/heads/evil', '12' * 20 + '\\n')",
        "true",
        "! git fetch -q origin",
        setup="git clone -q ../remote.git $OUT/c; git -C $OUT/c commit -q --allow-empty -m new; git -C $OUT/c push -q",
    ),
    "branch that is a blob": Attack("put('.git/refs/heads/side', blob() + '\\n')", "git fsck", "grep -q 'not a commit' $SAID"),
    "ref with a broken name": Attack(
        "put('.git/refs/heads/a..b', git('rev-parse', 'HEAD') + '\\n')", "git branch", "grep -q 'broken name' $SAID"
    ),
    "ref that is not text": Attack("put('.git/refs/heads/evil', bytes(range(256)))", "git branch", "grep -q 'broken ref' $SAID"),
    "packed-refs that git cannot read": Attack("put('.git/packed-refs', 'noise\\n')", "true", "! git branch"),
    "packed-refs with a peeled line that lies": Attack(
        "text = re.sub(r'\\^.*', '^' + git('rev-parse', 'HEAD'), open('.git/packed-refs').read())\nput('.git/packed-refs', text)",
        "git describe",
        "grep -qx v1 $SAID",
        setup="git pack-refs --all",
    ),
    "lock of a branch": Attack("put('.git/refs/heads/main.lock', '')", "true", "! git commit -q --allow-empty -m mine"),
    "lock of the index": Attack("put('.git/index.lock', '')", "echo x > f", "! git commit -qam mine"),
    "lock of packed-refs": Attack("put('.git/packed-refs.lock', '')", "true", "! git pack-refs --all"),
    "lock of HEAD": Attack("put('.git/HEAD.lock', '')", "true", "! git checkout -q side"),
    "directory in place of a branch to come": Attack(
        "put('.git/refs/heads/new/x.lock', '')", "true", "! git branch new"
    ),
    "directory of refs without permissions": Attack(
        "os.chmod('.git/refs/heads', 0)", "true", "test $(stat -c %a .git/refs/heads) = 0"
    ),
    "all refs removed": Attack("shutil.rmtree('.git/refs')\nos.makedirs('.git/refs')", "true", LOST, setup=NAME),
    "all packed refs removed": Attack("os.unlink('.git/packed-refs')", "true", LOST, setup=f"git pack-refs --all; {NAME}"),
    "whole repository removed": Attack("shutil.rmtree('.git')", "true", LOST, setup=NAME),
    "whole repository renamed": Attack("os.rename('.git', 'other')", "true", LOST, setup=NAME),
    "whole repository made anew": Attack("shutil.rmtree('.git')\ngit('init', '-q')", "true", LOST, setup=NAME),
    "repository of a submodule removed": Attack(
        "shutil.rmtree('.git/modules/sub')",
        "true",
        "! git -C sub log",
        setup="git submodule -q add ../remote.git sub; git commit -qm sub",
    ),
    "sixty thousand refs": Attack(
        "name = git('rev-parse', 'HEAD')\n"
        "put('.git/packed-refs', '# pack-refs with: peeled fully-peeled sorted \\n' + ''.join(f'{name} refs/tags/t{n:06}\\n' for n in range(60000)))",
        "true",
        "test $(git for-each-ref | wc -l) -gt 50000",
    ),
    "forged log of HEAD": Attack(
        "tip, evil = git('rev-parse', 'HEAD'), evil_commit()\nappend('.git/logs/HEAD', log_line(tip, evil) + log_line(evil, tip))", BACK, EVIL_FILE
    ),
    "forged log of a branch": Attack(
        "tip, evil = git('rev-parse', 'HEAD'), evil_commit()\nput('.git/logs/refs/heads/main', log_line(tip, evil) + log_line(evil, tip))",
        "git reset -q --hard main@{1}",
        EVIL_FILE,
    ),
    "forged log of HEAD, by switching back": Attack(
        "tip, evil = git('rev-parse', 'HEAD'), evil_commit()\nappend('.git/logs/HEAD', log_line(tip, tip, f'checkout: moving from {evil} to main'))",
        "git checkout -q -",
        EVIL_FILE,
        setup="git checkout -q side; git checkout -q main",
    ),
    "log of the stash with codes for the terminal": Attack(
        "tip = git('rev-parse', 'stash')\nput('.git/logs/refs/stash', log_line('0' * 40, tip, 'On main: \\x1b]0;EVIL\\x07'))",
        "git stash list",
        "grep -q EVIL $SAID",
        setup="echo mine > f; git stash push -qm mine",
    ),
    "pipe in place of the stash's log": Attack(
        "fifo('.git/logs/refs/stash')", "git stash list", HANGS, setup="echo mine > f; git stash push -qm mine"
    ),
    "directory of notes being merged that is a link": Attack(
        "os.symlink(f'{OUT}/dir', '.git/NOTES_MERGE_WORKTREE')\nput('.git/NOTES_MERGE_PARTIAL', git('rev-parse', 'HEAD') + '\\n')\n"
        "put('.git/NOTES_MERGE_REF', 'ref: refs/notes/commits\\n')",
        "git notes merge --abort",
        "! test -e $OUT/dir/kept",
    ),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_ref_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_ref_attack_is_stopped(tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
